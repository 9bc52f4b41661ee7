"""Files of ours: descriptors that are kept back for what must be read; what is in a folder."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

import pytest

from retinue.files import DescriptorReserve, list_entries, write_atomic


def kept() -> int:
    count = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{each}") == os.devnull
    return count


def test_one_of_two_holders_does_not_take_the_reserve_of_the_other() -> None:
    before, reserve = kept(), DescriptorReserve(3)
    reserve.fill()
    reserve.fill()
    reserve.release()
    assert kept() == before + 3
    with reserve.use_descriptors():
        assert kept() == before + 1
    assert kept() == before + 3
    reserve.release()
    assert kept() == before
    with reserve.use_descriptors():
        pass
    assert kept() == before  # whoever holds none is left with none


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    assert list_entries(tmp_path) == [tmp_path / "one"]
    assert list_entries(tmp_path / "none") == list_entries(tmp_path / "one") == []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            list_entries(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("synced", "calls"), [(False, ["rename"]), (True, ["fsync", "rename"])])
def test_a_synced_file_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: bool, calls: list[str]
) -> None:
    seen: list[str] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "rename", lambda old, new: (seen.append("rename"), rename(old, new)))
    write_atomic(tmp_path / "a", b"text", synced=synced)
    assert (seen, (tmp_path / "a").read_bytes()) == (calls, b"text")
