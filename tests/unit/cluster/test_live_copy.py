"""What a node sends of a running child is only what the child's own folder holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from retinue.cluster import live_copy, messages
from retinue.cluster.folder_watches import FolderWatches
from retinue.cluster.hub_connection import HubConnection
from retinue.cluster.live_copy import MOST_FILES, LiveReceiver, LiveSender
from retinue.cluster.messages import AttemptKey
from retinue.cluster.sealing import seal, unseal

KEY = AttemptKey(node="node", steward="steward", nonce="nonce")
SECRET = bytes(32)
LAST = "full_logs/last"


class SwappingConnection:
    """Connection during whose first message the child replaces a folder by a link."""

    def __init__(self, folder: Path, outside: Path) -> None:
        self._folder = folder
        self._outside = outside
        self.sent: dict[str, bytes] = {}
        self.done = asyncio.Event()

    async def publish(self, subject: str, data: bytes) -> None:
        head, piece = messages.decode(unseal(SECRET, data))
        self.sent[str(head["path"])] = piece
        if not self._folder.is_symlink():
            self._folder.rename(self._folder.with_name("before"))
            self._folder.symlink_to(self._outside)
            # Found when the folders are listed again, after all that were listed before.
            self._folder.with_name("last").write_text("the child's")
        if head["path"] == LAST:
            self.done.set()


async def send_until_done(folder: Path, outside: Path) -> dict[str, bytes]:
    connection = SwappingConnection(folder / "full_logs" / "a", outside)
    watches = FolderWatches()
    sender = LiveSender(cast(HubConnection, connection), KEY, SECRET, folder, watches)
    sender.start()
    try:
        await asyncio.wait_for(connection.done.wait(), 10)
    finally:
        await sender.close()
        watches.close()
    return connection.sent


def test_a_folder_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    logs = tmp_path / "agent" / "full_logs"
    (logs / "a").mkdir(parents=True)
    (logs / "a" / "first").write_text("the child's")
    (logs / "a" / "key").write_text("the child's")
    (logs / "plain").write_text("the child's")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("not the child's")

    sent = asyncio.run(send_until_done(tmp_path / "agent", outside))

    assert b"not the child's" not in sent.values()
    assert sent["full_logs/plain"] == sent[LAST] == b"the child's"


class OneSubscription:
    """Connection that hands messages to the one handler that subscribed."""

    async def subscribe(self, subject: str, handler: Any) -> Any:
        self.send = handler
        return None

    async def give(self, path: str, at: int, text: bytes) -> None:
        head = {"path": path, "at": at, "from_start": at == 0}
        data = seal(SECRET, messages.encode(head, text))
        await self.send(SimpleNamespace(data=data))


def make_receiver(connection: OneSubscription, folder: Path, gaps: list[str]) -> LiveReceiver:
    hub = cast(HubConnection, connection)
    return LiveReceiver(hub, KEY, SECRET, folder, lambda: gaps.append("gap"))


def test_nothing_is_written_behind_a_gap_which_is_asked_for(tmp_path: Path) -> None:
    connection, gaps = OneSubscription(), list[str]()
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "stdout.log").write_bytes(b"before ")

    async def scene() -> dict[str, int]:
        receiver = make_receiver(connection, tmp_path, gaps)
        receiver.take_up()
        await receiver.start()
        await connection.give("runtime/stdout.log", 12, b"after")
        await connection.give(LAST, 3, b"after")
        assert len(gaps) == 2
        have = receiver.list_sizes()
        await connection.give("runtime/stdout.log", 7, b"then ")
        await connection.give("runtime/stdout.log", 12, b"after")
        return have

    assert asyncio.run(scene()) == {"runtime/stdout.log": 7}
    assert len(gaps) == 2
    assert (tmp_path / "runtime" / "stdout.log").read_bytes() == b"before then after"
    assert not (tmp_path / LAST).exists()


def test_a_copy_that_is_full_asks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_copy, "LARGEST_COPY", 10)
    connection, gaps = OneSubscription(), list[str]()

    async def scene() -> None:
        receiver = make_receiver(connection, tmp_path, gaps)
        await receiver.start()
        for at in range(0, 20, 5):
            await connection.give(LAST, at, b"12345")

    asyncio.run(scene())
    assert not gaps
    assert (tmp_path / LAST).read_bytes() == b"1234512345"


class Recording:
    """Connection that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, bytes]] = []
        self.more = asyncio.Event()

    async def publish(self, _: str, data: bytes) -> None:
        head, piece = messages.decode(unseal(SECRET, data))
        self.sent.append((head["path"], head["at"], piece))
        self.more.set()

    async def wait_for(self, path: str, end: int) -> tuple[int, bytes]:
        """Return the piece of a file that ends there."""
        while True:
            for name, at, piece in self.sent:
                if (name, at + len(piece)) == (path, end):
                    return at, piece
            self.more.clear()
            await asyncio.wait_for(self.more.wait(), 10)


def test_what_the_steward_lacks_is_sent_again_and_small_files_whole(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "full_logs").mkdir()
    large, small = "runtime/stdout.log", "full_logs/status.json"
    text = bytes(range(256)) * 1024
    (tmp_path / large).write_bytes(text)
    (tmp_path / small).write_bytes(b"status")

    async def scene() -> None:
        connection, watches = Recording(), FolderWatches()
        hub = cast(HubConnection, connection)
        sender = LiveSender(hub, KEY, SECRET, tmp_path, watches)
        sender.start()
        try:
            await connection.wait_for(large, len(text))
            await connection.wait_for(small, 6)
            connection.sent.clear()
            sender.send_again({large: len(text) - 9, small: 6})
            assert await connection.wait_for(large, len(text)) == (len(text) - 9, text[-9:])
            assert await connection.wait_for(small, 6) == (0, b"status")
            connection.sent.clear()
            # After a reconnect the node does not know what was lost: the last byte tells the size.
            sender.send_again()
            assert await connection.wait_for(large, len(text)) == (len(text) - 1, text[-1:])
            assert await connection.wait_for(small, 6) == (0, b"status")
        finally:
            await sender.close()
            watches.close()

    asyncio.run(scene())


def test_paths_that_no_file_can_have_are_not_remembered(tmp_path: Path) -> None:
    connection = OneSubscription()

    async def scene() -> None:
        receiver = make_receiver(connection, tmp_path, [])
        await receiver.start()
        too_long = "x" * 5000
        for path in (*(f"full_logs/{n}{too_long}" for n in range(MOST_FILES)), LAST):
            data = seal(SECRET, messages.encode({"path": path, "at": 0}, b"the child's"))
            await connection.send(SimpleNamespace(data=data))

    asyncio.run(scene())

    assert (tmp_path / LAST).read_bytes() == b"the child's"
