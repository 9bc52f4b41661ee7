"""Watch for saved files, under load."""

from __future__ import annotations

import asyncio
from pathlib import Path

from retinue.core.ids import TaskId
from retinue.workspaces.file_watch import FileWatch

TASK = TaskId("t")
MOST_QUEUED = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


def write_much(folder: Path) -> None:
    for number in range(MOST_QUEUED + 1):
        (folder / f"other-{number % 2}").touch()
    (folder / "task.yaml").touch()


def test_a_saved_file_is_noticed_after_the_inotify_queue_overflows(
    tmp_path: Path,
) -> None:
    folder = tmp_path / TASK
    folder.mkdir()

    async def scene() -> None:
        looked = asyncio.Event()

        def look(task: TaskId) -> bool:
            looked.set()
            return True

        watched = FileWatch(tmp_path, "task.yaml", print)
        watched.look = look
        watched.watch(TASK)
        write_much(folder)
        async with asyncio.timeout(10):
            await looked.wait()
        watched.close()

    asyncio.run(scene())
