"""Checkpoints: copies of a workspace in the hub, made while its child runs on a node.

If the node is lost, the steward restores the last one. A checkpoint is complete, because the
reference to it is written last. It is no snapshot of one moment: the child writes while it is made.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from retinue.clock import get_timestamp
from retinue.cluster import archive, messages
from retinue.cluster.archive import ArchiveRefused
from retinue.cluster.blob_store import BlobMissing, BlobRef, BlobStore
from retinue.cluster.hub_connection import HubConnection, HubUnreachable
from retinue.cluster.hub_users import BLOBS
from retinue.cluster.messages import AttemptKey
from retinue.cluster.sealing import NotSealed, seal, unseal

TIME = re.compile(r"[0-9TZ:.-]{10,40}")
SLOTS = ("a", "b")  # two copies in turn: the one that is referred to is never written


def _name_reference(key: AttemptKey) -> str:
    return f"blob.{key.node}.checkpoint{key.nonce}.0"


class CheckpointSender:
    """The node's end: packs one workspace every so often."""

    def __init__(
        self,
        connection: HubConnection,
        key: AttemptKey,
        secret: bytes,
        pack: Callable[[], bytes],
        complain: Callable[[str], None],
    ) -> None:
        """Args: pack: returns the workspace as an archive; called in a thread."""
        self._connection = connection
        self._blobs = BlobStore(connection)
        self._key = key
        self._secret = secret
        self._pack = pack
        self._complain = complain
        self._last = b""  # digest of the newest
        self._task: asyncio.Task[None] | None = None

    def start(self, every_s: float) -> None:
        self._task = asyncio.create_task(self._run(every_s))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, every_s: float) -> None:
        # A program that was restarted must not write over the checkpoint that counts.
        slot = await self._choose_first_slot()
        while True:
            await asyncio.sleep(every_s)
            try:
                if await self._save(SLOTS[slot]):
                    slot = 1 - slot
            except (ArchiveRefused, HubUnreachable, OSError) as error:
                # Files may vanish while they are packed. The next one is tried at its time.
                self._complain(f"{self._key}: no checkpoint: {error}")

    async def _choose_first_slot(self) -> int:
        with suppress(HubUnreachable, ValueError, KeyError):
            known = await read_reference(self._connection, self._key, self._secret)
            if known is not None and str(known["name"]).endswith(SLOTS[0]):
                return 1
        return 0

    async def _save(self, slot: str) -> bool:
        """Store a checkpoint; return False if nothing changed since the last one."""
        at = get_timestamp()
        data = await asyncio.to_thread(self._pack)
        digest = hashlib.sha256(data).digest()
        if digest == self._last:
            return False
        ref = await self._blobs.put(f"checkpoint{self._key.nonce}{slot}", self._secret, data)
        reference = messages.encode(asdict(ref) | {"at": at})
        await self._connection.swap(_name_reference(self._key), seal(self._secret, reference), None)
        self._last = digest
        return True


async def read_reference(
    connection: HubConnection, key: AttemptKey, secret: bytes
) -> Mapping[str, Any] | None:
    """Return the reference to the newest checkpoint of an attempt; None if there is none.

    Raises:
        HubUnreachable: no answer.
        ValueError: the reference is damaged.
    """
    stored = await connection.read(BLOBS, _name_reference(key))
    if stored is None or not stored.data:
        return None
    try:
        return messages.decode(unseal(secret, stored.data))[0]
    except NotSealed as error:
        raise ValueError("the reference to its checkpoint was changed") from error


async def fetch_checkpoint(
    connection: HubConnection,
    key: AttemptKey,
    secret: bytes,
    retry: Callable[[], Awaitable[None]],
) -> tuple[bytes, str]:
    """Return the newest checkpoint of an attempt and its time; no bytes if there is none.

    Args:
        retry: waits before another try where the hub does not answer.

    Raises:
        BlobMissing: the checkpoint that the reference names is not in the hub.
        ValueError, KeyError, TypeError: the reference is damaged.
    """
    while True:
        try:
            reference = await read_reference(connection, key, secret)
            if reference is None:
                return b"", ""
            ref = BlobRef.from_json(reference)
            if not ref.name.startswith(f"{key.node}.checkpoint{key.nonce}"):
                raise BlobMissing("a checkpoint of another attempt")
            data = await BlobStore(connection).get(ref, secret, archive.LARGEST_PACKED)
            at = str(reference["at"])
            return data, at if TIME.fullmatch(at) else "an unknown time"
        except HubUnreachable:
            await retry()
