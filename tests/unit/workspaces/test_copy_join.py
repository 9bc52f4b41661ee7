"""Concurrent copies of children's output."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from retinue.workspaces.copy_join import copy_out
from support.values import CONTRACT

COPIES = 8


def test_concurrent_copies_into_the_same_folders_all_succeed(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "f").write_text("1")
    ready = Barrier(COPIES)

    def copy(number: int, below: Path) -> str:
        ready.wait(10)
        note = tmp_path / f"note-{below.parts[-1]}-{number}"
        return copy_out(workspace, below / str(number), note, CONTRACT).reason

    with ThreadPoolExecutor(COPIES) as threads:
        for turn in range(20):
            below = tmp_path.joinpath(*"abcdefgh", str(turn), *"abcdefgh", str(turn))
            assert set(threads.map(copy, range(COPIES), [below] * COPIES)) == {"copied"}
            assert all((below / str(number) / "f").exists() for number in range(COPIES))
