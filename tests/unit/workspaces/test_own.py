"""What is ours inside a child's reach."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.domain.errors import StorageFailed
from retinue.workspaces.own import put, put_first


@pytest.mark.parametrize("way", [put, put_first])
def test_a_file_that_cannot_be_written_whole_is_not_there(
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
