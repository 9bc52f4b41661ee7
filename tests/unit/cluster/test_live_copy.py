"""What a node sends of a running child is only what the child's own folder holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from retinue.cluster import messages
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


def test_paths_that_no_file_can_have_are_not_remembered(tmp_path: Path) -> None:
    connection = OneSubscription()

    async def scene() -> None:
        receiver = LiveReceiver(cast(HubConnection, connection), KEY, SECRET, tmp_path)
        await receiver.start()
        too_long = "x" * 5000
        for path in (*(f"full_logs/{n}{too_long}" for n in range(MOST_FILES)), LAST):
            data = seal(SECRET, messages.encode({"path": path, "at": 0}, b"the child's"))
            await connection.send(SimpleNamespace(data=data))

    asyncio.run(scene())

    assert (tmp_path / LAST).read_bytes() == b"the child's"
