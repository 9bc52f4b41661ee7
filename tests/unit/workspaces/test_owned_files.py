"""Retinue's own files within reach of a child."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.core.errors import StorageFailed
from retinue.files import unlock_folders
from retinue.workspaces.owned_files import add, put, put_first


@pytest.mark.parametrize("way", [put, put_first])
def test_a_file_that_cannot_be_written_completely_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Path, bytes], None]
) -> None:
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(StorageFailed):
        way(tmp_path / "answer.txt", b"x" * 100)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_unlocked_and_the_target_of_a_link_is_not_changed(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir(mode=0)
    other.mkdir(mode=0)
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "file").touch(mode=0o400)
    unlock_folders(folder, tmp_path / "link", tmp_path / "file", tmp_path / "missing")
    modes = {path.name: path.lstat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert (modes["folder"], modes["other"], modes["file"]) == (0o700, 0, 0o400)


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_lines_are_never_added_to_what_a_child_put_in_place_of_a_file(
    tmp_path: Path, kind: str
) -> None:
    other, place = tmp_path / "other", tmp_path / "conversation.jsonl"
    other.write_bytes(b"another file\n")
    if kind == "link":
        place.symlink_to(other)
    elif kind == "hard link":
        os.link(other, place)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    for line in (b"first\n", b"second\n"):
        add(place, line)
    assert other.read_bytes() == b"another file\n"
    assert (place.is_symlink(), place.read_bytes()) == (False, b"first\nsecond\n")
