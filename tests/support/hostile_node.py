"""A member of a hub that accepts orders like a node, executes nothing and tells false ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from nats.aio.msg import Msg

from retinue.cluster import messages
from retinue.cluster.blob_store import BlobStore
from retinue.cluster.hub_connection import HubConnection, HubUnreachable
from retinue.cluster.invitation import redeem
from retinue.cluster.messages import AttemptKey, NodeRecord
from retinue.cluster.sealing import find_public_key, make_key, seal, unseal, unseal_from_box

BOUND_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Taken:
    """An order that this node accepted."""

    key: AttemptKey
    secret: bytes
    order: dict[str, Any]
    blobs: BlobStore

    @property
    def agent(self) -> str:
        """The folder of the subagent, as it is named in archives."""
        return str(self.order["folder"])

    def end(self, files: bytes = b"", **head: Any) -> bytes:
        """The sealed end with these files, as a node tells it."""
        return seal(self.secret, messages.encode({"v": 1, "kind": "exited", **head}, files))

    async def put(self, files: bytes) -> dict[str, Any]:
        """The reference to files in the hub."""
        return asdict(await self.blobs.put(f"out{self.key.nonce}", self.secret, files))


Act = Callable[[Taken], Awaitable[bytes | None]]  # the sealed end; None: it never ran


class HostileNode:
    """What a subagent's last word names is what this node does with it."""

    def __init__(self, invitation: str, name: str, acts: dict[str, Act], lease_s: float) -> None:
        self.acts = acts
        self.problems: list[str] = []
        self._invitation = invitation
        self._name = name
        self._lease_s = lease_s
        self._taken: dict[str, Taken] = {}
        self._revisions: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._box = make_key()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._up.wait(BOUND_S), self.problems

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(BOUND_S)

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        address, _ = await redeem(self._invitation, "node")
        self._connection = HubConnection(address, self.problems.append)
        await self._connection.open(patient=True)
        self._blobs = BlobStore(self._connection)
        me = address.identity
        await self._connection.subscribe(f"node.{me}.order", self._take_order)
        await self._connection.subscribe(f"node.{me}.control", self._take_control)
        await self._connection.flush()
        record = NodeRecord(
            name=self._name,
            epoch="e",
            state="up",
            slots=100,
            busy=0,
            labels=("x86_64",),
            isolation="",
            layers=True,
            version="9.9.9",
            box=find_public_key(self._box).hex(),
        )
        while not self._stop.is_set():
            with suppress(HubUnreachable):
                await self._connection.swap(
                    f"$KV.nodes.{me}", record.to_json(), None, ttl_s=self._lease_s
                )
                self._up.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_s / 10):
                    await self._stop.wait()
        await self._connection.close()

    async def _take_order(self, message: Msg) -> None:
        head, payload = messages.decode(unseal_from_box(self._box, message.data))
        secret = bytes.fromhex(head["secret"])
        key = AttemptKey.parse(head["key"])
        order, _ = messages.decode(payload)
        accepted = messages.encode({"state": messages.ACCEPTED, "epoch": "e"})
        revision = await self._connection.swap(key.subject, accepted, int(head["revision"]))
        self._revisions[str(key)] = revision
        self._taken[str(key)] = Taken(key=key, secret=secret, order=order, blobs=self._blobs)
        await message.respond(seal(secret, messages.encode({"yes": True, "revision": revision})))

    async def _take_control(self, message: Msg) -> None:
        outer, sealed = messages.decode(message.data)
        taken = self._taken.get(outer["key"])
        if taken is None:
            await message.respond(b"")
            return
        said, _ = messages.decode(unseal(taken.secret, sealed))
        answer: dict[str, Any] = {"done": True}
        if said["word"] == "go":
            end = await self.acts[taken.order["argv"][-1]](taken)
            answer = {"failed": "", "never_ran": end is None}
            if end is None:
                end = taken.end(kind="never_ran")
            value = messages.encode({"state": messages.ENDED, "epoch": "e"}, end)
            revision = self._revisions[outer["key"]]
            await message.respond(seal(taken.secret, messages.encode(answer)))
            await self._connection.swap(taken.key.subject, value, revision)
            return
        await message.respond(seal(taken.secret, messages.encode(answer)))
