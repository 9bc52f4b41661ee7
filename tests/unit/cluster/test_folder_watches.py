"""One inotify instance serves the folders of all attempts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

pytest.importorskip("nats")
from retinue.cluster.folder_watches import FolderWatches
from retinue.cluster.remote_runtime import InboxWatch
from retinue.inotify import CHANGED


class User:
    def __init__(self) -> None:
        self.calls = 0
        self.called = asyncio.Event()

    def on_change(self) -> None:
        self.calls += 1
        self.called.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self.called.wait(), 10)
        self.called.clear()


def test_only_the_users_of_a_changed_folder_are_called(tmp_path: Path) -> None:
    asyncio.run(change_two_folders(tmp_path))


async def change_two_folders(tmp_path: Path) -> None:
    watches = FolderWatches()
    folders = [tmp_path / name for name in ("a", "b")]
    users = [User(), User()]
    for folder, user in zip(folders, users, strict=True):
        folder.mkdir()
        watches.watch(str(folder), CHANGED, user.on_change)
    before = len(os.listdir("/proc/self/fd"))
    try:
        for folder, user, other in zip(folders, users, reversed(users), strict=True):
            known = other.calls
            (folder / "file").touch()
            await user.wait()
            assert other.calls == known
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        watches.close()


def test_a_user_that_forgets_leaves_the_watch_to_the_other(tmp_path: Path) -> None:
    asyncio.run(forget_one_after_the_other(tmp_path))


async def forget_one_after_the_other(tmp_path: Path) -> None:
    watches = FolderWatches()
    gone, left = User(), User()
    number = watches.watch(str(tmp_path), CHANGED, gone.on_change)
    assert watches.watch(str(tmp_path), CHANGED, left.on_change) == number
    try:
        watches.forget(number, gone.on_change)
        watches.forget(number, gone.on_change)
        (tmp_path / "one").touch()
        await left.wait()
        assert not gone.calls

        watches.forget(number, left.on_change)
        calls = left.calls
        (tmp_path / "two").touch()
        again = watches.watch(str(tmp_path), CHANGED, gone.on_change)
        (tmp_path / "three").touch()
        await gone.wait()
        assert again != number
        assert left.calls == calls
    finally:
        watches.close()
        watches.forget(number, left.on_change)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    asyncio.run(watch_missing_folder(tmp_path))


async def watch_missing_folder(tmp_path: Path) -> None:
    watches = FolderWatches()
    try:
        with pytest.raises(OSError, match="No such file"):
            watches.watch(str(tmp_path / "missing"), CHANGED, User().on_change)
    finally:
        watches.close()


def test_an_inbox_that_is_gone_leaves_the_others_served(tmp_path: Path) -> None:
    asyncio.run(remove_one_inbox(tmp_path))


async def remove_one_inbox(tmp_path: Path) -> None:
    watches = FolderWatches()
    delivered: asyncio.Queue[str] = asyncio.Queue()
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        InboxWatch(folder, [], lambda name, _: delivered.put_nowait(name), watches).start()
    try:
        # All before the loop reads what changed.
        folders[0].rmdir()
        (folders[1] / "1.txt").write_text("hello")
        assert await asyncio.wait_for(delivered.get(), 10) == "1.txt"
    finally:
        watches.close()


def test_a_message_that_cannot_be_read_leaves_the_others_delivered(tmp_path: Path) -> None:
    asyncio.run(deliver_beside_a_folder(tmp_path))


async def deliver_beside_a_folder(tmp_path: Path) -> None:
    watches = FolderWatches()
    delivered: list[str] = []
    try:
        (tmp_path / "1.txt").mkdir()
        (tmp_path / "2.txt").write_text("hello")
        inbox = InboxWatch(tmp_path, [], lambda name, _: delivered.append(name), watches)
        inbox.start()
        assert delivered == ["2.txt"]
        inbox.close()
    finally:
        watches.close()
