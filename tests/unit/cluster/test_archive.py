"""An archive that came from a node leaves nothing outside of its folder."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from retinue.cluster import archive
from retinue.cluster.archive import ArchiveRefused, pack, pack_as, unpack


def make(*entries: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for entry in entries:
            made.addfile(entry, io.BytesIO(bytes(entry.size)) if entry.isreg() else None)
    return out.getvalue()


def entry(
    name: str,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
    size: int = 0,
    headers: dict[str, str] | None = None,
) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.pax_headers = headers or {}
    made.type = kind
    made.linkname = link
    made.size = size
    made.mode = 0o755
    return made


FOLDER = entry("it", tarfile.DIRTYPE)
HOSTILE = {
    "a name with ..": [FOLDER, entry("it/../../out")],
    "an absolute name": [entry("/etc/out")],
    "an empty part": [FOLDER, entry("it//out")],
    "a name through a link": [FOLDER, entry("it/l", tarfile.SYMTYPE, "/tmp"), entry("it/l/out")],
    "a device": [FOLDER, entry("it/d", tarfile.BLKTYPE)],
    "a pipe": [FOLDER, entry("it/p", tarfile.FIFOTYPE)],
    "a hard link": [FOLDER, entry("it/h", tarfile.LNKTYPE, "/etc/passwd")],
    "the same name twice": [FOLDER, entry("it/a"), entry("it/a")],
    "a file over a link": [FOLDER, entry("it/a", tarfile.SYMTYPE, "/tmp/x"), entry("it/a")],
    "a name that was not asked for": [entry("other", tarfile.DIRTYPE)],
    "a file with holes": [FOLDER, entry("it/s", tarfile.GNUTYPE_SPARSE)],
    "a file without its folder": [entry("it/deep/file")],
    "a time beyond all times": [FOLDER, entry("it/a", headers={"mtime": "1e300"})],
    "a time that is no number": [FOLDER, entry("it/a", headers={"mtime": "nan"})],
    "a link to nothing": [FOLDER, entry("it/l", tarfile.SYMTYPE, "")],
    "a name that is too long": [FOLDER, entry("it/" + "x" * 300)],
    "a link that is too long": [FOLDER, entry("it/l", tarfile.SYMTYPE, "x" * 5000)],
    "a link to a NUL": [FOLDER, entry("it/l", tarfile.SYMTYPE, headers={"linkpath": "a\0b"})],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_archive_is_refused(entries: list[tarfile.TarInfo], tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(ArchiveRefused):
        unpack(make(*entries), inside, ["it"])
    assert os.listdir(tmp_path) == ["inside"]


def test_a_header_that_unpacks_to_very_much_takes_no_memory(tmp_path: Path) -> None:
    bomb = entry("it", tarfile.XHDTYPE)
    bomb.size = 256 * 1024 * 1024
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as packed:
        packed.write(bomb.tobuf())
        for _ in range(256):
            packed.write(bytes(1024 * 1024))
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveRefused, match="a header in it is longer"):
            unpack(out.getvalue(), tmp_path, ["it"])
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_headers_that_nest_without_end_are_refused(tmp_path: Path) -> None:
    header = entry("it", tarfile.XHDTYPE).tobuf()
    with pytest.raises(ArchiveRefused):
        unpack(gzip.compress(header * 5000), tmp_path, ["it"])


def test_many_entries_take_little_memory(tmp_path: Path) -> None:
    many = [FOLDER, *(entry(f"it/{number}") for number in range(3000))]
    packed = make(*many)
    tracemalloc.start()
    try:
        unpack(packed, tmp_path, ["it"])
        assert tracemalloc.get_traced_memory()[1] < 2 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert len(os.listdir(tmp_path / "it")) == 3000


def test_an_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST_BYTES", 1_000_000)
    bomb = make(FOLDER, *(entry(f"it/{n}", size=100_000) for n in range(20)))
    assert len(bomb) < 10_000
    with pytest.raises(ArchiveRefused, match="more than"):
        unpack(bomb, tmp_path, ["it"])


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_claims_to_be_huge_is_refused_before_it_is_read(
    kind: bytes, tmp_path: Path
) -> None:
    huge = entry("it/long", kind, size=512 << 20)
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb") as packed:
        packed.write(FOLDER.tobuf() + huge.tobuf())
        for _ in range(64):
            packed.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveRefused, match="header"):
            unpack(out.getvalue(), tmp_path, ["it"])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data", [b"", b"nothing", make(FOLDER)[:-20]], ids=["empty", "something else", "cut"]
)
def test_a_damaged_archive_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused):
        unpack(data, tmp_path, ["it"])


def test_files_links_modes_and_marks_come_back_as_they_were(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "it/deep").mkdir(parents=True)
    (there / "it/deep/run.sh").write_text("echo\n")
    (there / "it/deep/run.sh").chmod(0o755)
    (there / "it/link").symlink_to("deep/run.sh")
    os.mkfifo(there / "it/pipe")
    try:
        os.mknod(there / "it/removed", stat.S_IFCHR, 0)
        os.setxattr(there / "it/deep", "user.overlay.opaque", b"y")
    except OSError:
        pytest.skip("no overlay marks here")
    here = tmp_path / "here"
    here.mkdir()
    left: list[str] = []
    unpack(pack(there, ["it"], left=left), here, ["it"])
    assert (here / "it/deep/run.sh").read_text() == "echo\n"
    assert stat.S_IMODE((here / "it/deep/run.sh").stat().st_mode) == 0o755
    assert os.readlink(here / "it/link") == "deep/run.sh"
    assert stat.S_ISCHR((here / "it/removed").lstat().st_mode)
    assert os.getxattr(here / "it/deep", "user.overlay.opaque") == b"y"
    assert left == ["it/pipe"]


def test_a_folder_that_becomes_a_link_while_it_is_packed_is_not_followed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("not the child's")
    for name in ("a", "b"):
        (top / "it" / name).mkdir(parents=True)
        (top / "it" / name / "key").write_text("the child's")

    def swap(path: str) -> bool:
        """Replace the folders, as a running child may, before what is in them is read."""
        if path == "it/b":
            (top / "it" / "a").rename(top / "old-a")
            (top / "it" / "a").symlink_to(outside)
        if path == "it/b/key":
            (top / "it" / "b").rename(top / "old-b")
            (top / "it" / "b").symlink_to(outside)
        return False

    data = pack(top, ["it"], skip=swap, unlocking=False)

    assert b"not the child's" not in gzip.decompress(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        assert packed.getnames() == ["it", "it/a", "it/b", "it/b/key"]


def test_a_lent_folder_that_was_replaced_is_refused(tmp_path: Path) -> None:
    lent = tmp_path / "lent"
    lent.mkdir()
    status = lent.stat()
    identity = (status.st_dev, status.st_ino)
    assert pack_as(tmp_path, "lent", "it", skip=lambda _: False, identity=identity)
    lent.rename(tmp_path / "kept")
    lent.mkdir()
    with pytest.raises(ArchiveRefused, match="replaced"):
        pack_as(tmp_path, "lent", "it", skip=lambda _: False, identity=identity)


def test_what_a_running_child_locked_stays_locked(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "file").write_text("x")
    (tmp_path / "it" / "file").chmod(0)
    (tmp_path / "it").chmod(0o500)
    pack(tmp_path, ["it"], unlocking=False)
    assert stat.S_IMODE((tmp_path / "it").stat().st_mode) == 0o500
    assert stat.S_IMODE((tmp_path / "it" / "file").stat().st_mode) == 0
