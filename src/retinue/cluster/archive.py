"""Files of an attempt as one archive, between a steward and a node.

An archive that comes from a node is a claim like everything that a child wrote: it is unpacked
into a new folder, and a name that leads elsewhere, a device, a hard link or too much data is
refused. Overlay marks travel as they are: whiteouts as devices 0:0, opaque folders as a PAX header.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from retinue.files import is_mark, is_opaque

OPAQUE = "RETINUE.opaque"
LARGEST_BYTES = 4 * 1024**3  # unpacked; more is refused
LARGEST_PACKED = 1024**3
MOST_ENTRIES = 2_000_000
PIECE = 1024 * 1024
_OUT_OF_RANGE = (ValueError, OverflowError, RecursionError)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ArchiveRefused(ValueError):
    """The archive is damaged, hostile or too large; the message says how."""


class TooLarge(ArchiveRefused):
    """There is more to pack than an archive may hold."""


def pack(
    top: Path,
    names: Sequence[str],
    *,
    skip: Callable[[str], bool] = lambda _: False,
    left: list[str] | None = None,
) -> bytes:
    """Return an archive of these names in a folder; names that do not exist are left out.

    Args:
        skip: whether to leave out a path, relative to the folder.
        left: receives what cannot be packed, such as pipes and unreadable files.

    Raises:
        TooLarge: there is more than an archive may hold.
    """
    out = io.BytesIO()
    with (
        # Without a time, so that the same files give the same bytes.
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, status in _walk(str(top), names, skip):
            if out.tell() > LARGEST_PACKED:
                raise TooLarge(f"there are more than {LARGEST_PACKED >> 20} MB to send")
            if not _add(archive, f"{top}/{path}", path, status) and left is not None:
                left.append(path)
    return out.getvalue()


def _walk(
    top: str, names: Sequence[str], skip: Callable[[str], bool]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield paths with their status, a folder before its content."""
    waiting = list(reversed(names))
    made: set[str] = set()
    while waiting:
        path = waiting.pop()
        if skip(path):
            continue
        try:
            status = os.lstat(f"{top}/{path}")
        except OSError:
            continue
        # The folders that a name lies in come first.
        above = path.split("/")[:-1]
        for depth in range(1, len(above) + 1):
            folder = "/".join(above[:depth])
            if folder not in made:
                made.add(folder)
                yield folder, os.lstat(f"{top}/{folder}")
        if stat.S_ISDIR(status.st_mode):
            if path in made:
                continue
            made.add(path)
            yield path, status
            waiting += [f"{path}/{name}" for name in reversed(_list(f"{top}/{path}"))]
        else:
            yield path, status


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except PermissionError:
        # The child may have locked its own folder; its owner can open it again.
        try:
            os.chmod(folder, 0o700)
            return sorted(os.listdir(folder))
        except OSError:
            return []
    except OSError:
        return []


def _add(archive: tarfile.TarFile, place: str, path: str, status: os.stat_result) -> bool:
    """Add one entry; return whether that was possible."""
    entry = tarfile.TarInfo(path)
    entry.mode = stat.S_IMODE(status.st_mode) & 0o777
    entry.mtime = int(status.st_mtime)
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        entry.type = tarfile.DIRTYPE
        if is_opaque(place):
            entry.pax_headers = {OPAQUE: "y"}
    elif stat.S_ISLNK(mode):
        entry.type = tarfile.SYMTYPE
        entry.linkname = os.readlink(place)
    elif is_mark(status):
        entry.type = tarfile.CHRTYPE
        entry.devmajor = entry.devminor = 0
    elif stat.S_ISREG(mode):
        try:
            with _open(place, status) as file:
                # The size is that of what is read: nothing else guarantees that they agree.
                data = file.read(LARGEST_PACKED + 1)
        except OSError:
            return False
        if len(data) > LARGEST_PACKED:
            raise TooLarge(f"{path} is larger than {LARGEST_PACKED >> 20} MB")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
        return True
    else:
        return False
    archive.addfile(entry)
    return True


def _open(place: str, status: os.stat_result) -> IO[bytes]:
    try:
        return open(os.open(place, _READ), "rb")
    except PermissionError:
        os.chmod(place, stat.S_IMODE(status.st_mode) | 0o400, follow_symlinks=True)
        return open(os.open(place, _READ), "rb")


def unpack(data: bytes, top: Path, allowed: Sequence[str]) -> None:
    """Unpack an archive into an existing, empty folder that no other process writes.

    Args:
        allowed: the paths that may be in it, each with all that is below.

    Raises:
        ArchiveRefused: the archive is hostile or damaged; what is in the folder is useless.
        OSError: the disk refused.
    """
    folders = {""}
    total = 0
    try:
        with tarfile.open(fileobj=_Unpacked(data), mode="r:") as archive:  # type: ignore[call-overload]
            number = 0
            while (entry := archive.next()) is not None:
                # It keeps all of them, for look-ups by name.
                archive.members.clear()
                number += 1
                if number > MOST_ENTRIES:
                    raise ArchiveRefused(f"it has more than {MOST_ENTRIES} entries")
                path = _check(entry, folders, allowed)
                place = f"{top}/{path}"
                if entry.isdir():
                    os.mkdir(place, 0o700)
                    folders.add(path)
                    _finish_folder(entry, place)
                elif entry.ischr():
                    os.mknod(place, stat.S_IFCHR, 0)
                elif entry.issym():
                    os.symlink(entry.linkname, place)
                else:
                    total += entry.size
                    if total > LARGEST_BYTES:
                        raise ArchiveRefused(f"it unpacks to more than {LARGEST_BYTES >> 30} GB")
                    _write(archive, entry, place)
    except ArchiveRefused:
        raise
    # Times and sizes out of range, and headers that nest without end, are left to us by tarfile.
    except (tarfile.TarError, EOFError, zlib.error, FileExistsError, *_OUT_OF_RANGE) as error:
        raise ArchiveRefused(f"the archive is damaged: {error}") from error
    except OSError as error:
        # A damaged gzip stream is an OSError without a number.
        if error.errno is None:
            raise ArchiveRefused(f"the archive is damaged: {error}") from error
        raise


class _Unpacked:
    """The content of a compressed archive, in reads of a bounded size.

    tarfile reads a header into memory at once, whatever length it claims. All else is read here in
    pieces, or refused before anything is skipped.
    """

    def __init__(self, data: bytes) -> None:
        self._file = gzip.GzipFile(fileobj=io.BytesIO(data))
        self.tell = self._file.tell
        self.seek = self._file.seek

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= PIECE:
            raise ArchiveRefused(f"a header in it is longer than {PIECE >> 20} MB")
        if self.tell() > 2 * LARGEST_BYTES:
            raise ArchiveRefused(f"it unpacks to more than {2 * LARGEST_BYTES >> 30} GB")
        return self._file.read(size)


def _check(entry: tarfile.TarInfo, folders: set[str], allowed: Sequence[str]) -> str:
    """Return the path of an entry.

    Raises:
        ArchiveRefused: it must not be unpacked.
    """
    path = entry.name
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ArchiveRefused(f"a name leads elsewhere: {path[:80]!a}")
    if not any(
        path == name or path.startswith(f"{name}/") or name.startswith(f"{path}/")
        for name in allowed
    ):
        raise ArchiveRefused(f"a name that was not asked for: {path[:80]!a}")
    # Every folder on the way was made here: none of them is a link.
    if path.rpartition("/")[0] not in folders:
        raise ArchiveRefused(f"a name leads through something else: {path[:80]!a}")
    plain = (entry.isreg() and not entry.issparse()) or entry.isdir() or entry.issym()
    if not plain and not (entry.ischr() and entry.devmajor == entry.devminor == 0):
        raise ArchiveRefused(f"neither a file, a folder nor a link: {path[:80]!a}")
    return path


def _finish_folder(entry: tarfile.TarInfo, place: str) -> None:
    if entry.pax_headers.get(OPAQUE) == "y":
        os.setxattr(place, "user.overlay.opaque", b"y")
    # The owner keeps access: what is below is written next.
    os.chmod(place, entry.mode & 0o777 | 0o700)


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, place: str) -> None:
    source = archive.extractfile(entry)
    if source is None:
        raise ArchiveRefused(f"no content: {entry.name[:80]!a}")
    descriptor = os.open(place, _CREATE, 0o600)
    with source, open(descriptor, "wb") as file:
        while piece := source.read(PIECE):
            file.write(piece)
        os.fchmod(descriptor, entry.mode & 0o777)
    os.utime(place, (entry.mtime, entry.mtime), follow_symlinks=False)


def pack_as(top: Path, name: str, shown: str, *, skip: Callable[[str], bool]) -> bytes:
    """Return an archive of one file or folder, under another name.

    The same files give the same bytes: neither the archive nor its entries hold a time.

    Raises:
        TooLarge: there is more than an archive may hold.
        OSError: it does not exist.
    """
    os.lstat(top / name)
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, status in _walk(str(top), [name], skip):
            if out.tell() > LARGEST_PACKED:
                raise TooLarge(f"there are more than {LARGEST_PACKED >> 20} MB to send")
            _add(archive, f"{top}/{path}", shown + path[len(name) :], status)
    return out.getvalue()


def digest(data: bytes, key: bytes) -> str:
    """Return a name for content that says nothing about it without the key."""
    return hashlib.blake2b(data, key=key, digest_size=16).hexdigest()
