"""The steward's connection to its hub: the nodes there, and the attempts that run on them.

An attempt has one key in the hub. Each step is a compare-and-swap on the revision before:

    (none) --steward--> offered --node--> accepted --node--> ended
                           |                  '--steward, if the node is lost--> revoked
                           '--steward, if the node does not answer--> revoked

The steward's database stays authoritative. If the hub loses its data, attempts take longer, but no
result is wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg

from retinue.cluster import messages
from retinue.cluster.blob_store import BlobStore
from retinue.cluster.folder_watches import FolderWatches
from retinue.cluster.hub_connection import (
    REFUSED_AGAIN_S,
    HubConnection,
    HubUnreachable,
    MemberRefused,
    Stored,
    SwapRefused,
    read_replaced,
)
from retinue.cluster.hub_users import ATTEMPTS, NODES
from retinue.cluster.invitation import Membership
from retinue.cluster.messages import AttemptKey, InvalidMessage, NodeRecord
from retinue.cluster.node_keys import NodeKeys
from retinue.cluster.sealing import NotSealed, derive_key, seal, unseal
from retinue.core.errors import RetinueError
from retinue.core.placement import NodeFacts, Placement, choose_node

READ_AGAIN_S = 10.0  # a hint may be lost: open attempts are read again this often
CONTROL_S = 2.0
LONG_S = 30.0  # for an answer that comes when files were moved
CANCEL_AGAIN_S = 1.0
RETRY_S = 0.5
STORED_AFTER_S = (0, 0.005, 0.02, 0.1, 0.5, 2.0)  # pauses before reads of an announced end
OVERDUE = 1.5  # leases of silence, after which a lease that the hub still has is ended
KEPT_GONE = 50  # nodes that are lost or left, and still shown

UP, SUSPECTED, DRAINING, LOST, LEFT = "up", "suspected", "draining", "lost", "left"


def compute_suspicion_s(lease_s: float) -> float:
    """Return the seconds of silence after which a node gets no more orders."""
    return lease_s * 8 / 30


@dataclass(kw_only=True)
class KnownNode:
    """A node's record in the hub, and the time of its last message."""

    id: str
    record: NodeRecord
    heard: float
    steward: str  # that knows it
    state: str = UP
    gone_since: float | None = None  # when the hub was first seen without its record
    renewal: int = -1  # the newest that was heard, by the revision that it replaced
    reserved: int = 0  # attempts of this steward that are placed there and not over
    refused_at: float = -1.0  # when an order for it last failed
    refused_why: str = ""

    def to_facts(self) -> NodeFacts:
        busy = max(self.record.busy, self.reserved)
        facts = self.record.to_facts(self.id, self.state, busy)
        return replace(facts, quota=self.record.get_quota(self.steward), own=self.reserved)


@dataclass(frozen=True, kw_only=True)
class EndClaim:
    """The end of an attempt as its node reported it; none of it is verified."""

    head: dict[str, Any]
    files: bytes


class NodeLost(RetinueError):
    """The node that ran an attempt is gone, and nothing of it runs there any more."""

    default_code = "node_lost"


class RemoteAttempt:
    """An attempt whose key this steward follows."""

    def __init__(self, key: AttemptKey, secret: bytes) -> None:
        self.key = key
        self.secret = secret
        self.revision = 0
        self.accepted = False
        self.reaches_models = False
        self.holds_slot = False  # it is counted among the reserved slots of its node
        self.on_reconnect: Callable[[], None] = lambda: None  # what was sent may be lost
        self.over: asyncio.Future[EndClaim | None] | None = None  # None: the node was lost
        self.looking = asyncio.Lock()

    def settle(self, claim: EndClaim | None) -> None:
        if self.over is None:
            self.over = asyncio.get_running_loop().create_future()
        if not self.over.done():
            self.over.set_result(claim)

    @property
    def is_over(self) -> bool:
        return self.over is not None and self.over.done()

    async def wait(self) -> EndClaim | None:
        if self.over is None:
            self.over = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self.over)


Report = Callable[[str, NodeFacts], None]  # what happened to a node: joined, suspected, lost, left


class StewardLink:
    """Connection of one steward to its hub."""

    def __init__(
        self,
        membership: Membership,
        complain: Callable[[str], None],
        failpoint: Callable[[str], None] = lambda _: None,
        keys: Path | None = None,
    ) -> None:
        """Args: keys: file with the keys of the nodes that were seen."""
        self.steward = membership.address.identity
        self.lease_s = membership.address.lease_s
        self.secret = membership.secret
        self.failpoint = failpoint
        self.connection = HubConnection(membership.address, complain)
        self.blobs = BlobStore(self.connection)
        self.watches = FolderWatches()
        self.report: Report = lambda what, node: None
        self._complain = complain
        self._keys = NodeKeys(keys)
        self._doubted: set[str] = set()  # nodes that announced another key
        self._nodes: dict[str, KnownNode] = {}
        self._attempts: dict[str, RemoteAttempt] = {}
        self._changed = asyncio.Condition()
        self._ready = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._listening_since = 0.0  # the time from which no renewal was missed here

    # Opening.

    def start(self) -> None:
        """Connect in the background; everything that needs the hub waits for that."""
        self._spawn(self._open())

    async def close(self) -> None:
        self._closed = True
        # More than once: before Python 3.12, wait_for drops a cancellation that arrives together
        # with what it waits for, and the task goes on.
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(self._tasks, timeout=CANCEL_AGAIN_S)
        self.watches.close()
        await self.connection.close()

    def run_soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in a task of its own, which ends when the link is closed."""
        self._spawn(work)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._complain(f"hub: {type(error).__name__}: {error}")

    async def _open(self) -> None:
        told = False
        while True:
            try:
                await self.connection.open(patient=True)
                break
            except (HubUnreachable, MemberRefused) as error:
                if not told:
                    self._complain(error.message)
                told = True
                await asyncio.sleep(REFUSED_AGAIN_S if self.connection.refused.is_set() else 1.0)
        self.connection.on_reconnect(self._on_reconnect)
        await self.connection.subscribe("$KV.nodes.>", self._on_node)
        await self.connection.subscribe(f"$KV.attempts.*.{self.steward}.>", self._on_attempt)
        self._listening_since = time.monotonic()
        await self._read_everything()
        self._ready.set()
        self._spawn(self._watch_silence())
        self._spawn(self._read_again())

    async def _read_everything(self) -> None:
        """Read all nodes, and revoke keys of this steward that its database does not know."""
        while True:
            try:
                await self.connection.make_streams()
                for stored in await self.connection.read_all(NODES, "$KV.nodes.>"):
                    await self._take_node(stored)
                mine = f"$KV.attempts.*.{self.steward}.>"
                for stored in await self.connection.read_all(ATTEMPTS, mine):
                    await self._revoke_unknown(stored)
                return
            except HubUnreachable:
                await asyncio.sleep(RETRY_S)

    async def _revoke_unknown(self, stored: Stored) -> None:
        if stored.data is None:
            return
        # A node may have written there what is no key, or no message.
        with suppress(InvalidMessage, SwapRefused):
            key = AttemptKey.parse(stored.subject.removeprefix("$KV.attempts."))
            if str(key) in self._attempts:
                return
            head, _ = messages.decode(stored.data)
            if head.get("state") in (messages.OFFERED, messages.ACCEPTED):
                revoked = messages.encode({"state": messages.REVOKED})
                await self.connection.swap(key.subject, revoked, stored.revision)
                self._spawn(self._tell_once(key, "kill"))
            else:
                self._spawn(self._tell_once(key, "forget"))

    async def wait_ready(self, seconds: float | None = None) -> bool:
        """Wait until the hub was read once; return whether it was."""
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def _on_reconnect(self) -> None:
        self._listening_since = time.monotonic()
        for attempt in self._attempts.values():
            attempt.on_reconnect()
            # Pieces of connections to models may be lost: they begin anew.
            if attempt.reaches_models:
                self.tell_soon(attempt, {"word": "reconnect"})
        self._spawn(self._look_again())

    async def _look_again(self) -> None:
        with suppress(HubUnreachable):
            await self.connection.make_streams()
            for stored in await self.connection.read_all(NODES, "$KV.nodes.>"):
                await self._take_node(stored)
        for attempt in list(self._attempts.values()):
            await self._look(attempt)

    async def _read_again(self) -> None:
        while True:
            await asyncio.sleep(READ_AGAIN_S)
            await self._look_again()

    # Nodes.

    def list_nodes(self) -> list[NodeFacts]:
        return [node.to_facts() for node in self._nodes.values()]

    def list_heard(self) -> dict[str, float]:
        now = time.monotonic()
        return {node.id: now - node.heard for node in self._nodes.values()}

    def get_record(self, node: str) -> NodeRecord | None:
        known = self._nodes.get(node)
        return None if known is None else known.record

    def get_name(self, node: str) -> str:
        known = self._nodes.get(node)
        return known.record.name if known is not None else node

    async def _on_node(self, message: Msg) -> None:
        """A renewal is a hint: it may have been refused by the hub."""
        identity = message.subject.rpartition(".")[2]
        known = self._nodes.get(identity)
        if known is not None and message.data:
            known.heard = time.monotonic()
            record = self._read_record(identity, message.data)
            same = record is not None and record.epoch == known.record.epoch
            if record is not None and same and known.state in (UP, DRAINING):
                changed = (record.busy, record.state) != (known.record.busy, known.record.state)
                known.record = record
                known.renewal = read_replaced(message.headers)
                known.state = DRAINING if record.state == DRAINING else UP
                if changed:
                    known.refused_at = -1.0  # what it refused before may fit now
                    await self._notify()
                return
        self._spawn(self._confirm(identity))

    async def _confirm(self, identity: str) -> None:
        with suppress(HubUnreachable):
            stored = await self.connection.read(NODES, f"$KV.nodes.{identity}")
            if stored is not None:
                await self._take_node(stored)

    async def _take_node(self, stored: Stored) -> None:
        """Read the record of a node from the hub and apply it."""
        identity = stored.subject.rpartition(".")[2]
        known = self._nodes.get(identity)
        if not stored.data:
            # An expired lease alone proves nothing; see `_watch_silence`. A node that left said so.
            if known is not None and stored.deleted and known.state not in (LOST, LEFT):
                await self._set_gone(known, LEFT)
            return
        record = self._read_record(identity, stored.data)
        if record is None:
            return
        if known is None:
            known = self._nodes[identity] = KnownNode(
                id=identity,
                record=record,
                heard=time.monotonic(),
                steward=self.steward,
                renewal=stored.after,
            )
            self.report("joined", known.to_facts())
        else:
            another = record.epoch != known.record.epoch
            back = known.state in (LOST, LEFT)
            known.gone_since = None
            # The renewal that was heard last is stored until the lease is over. To read it again
            # says nothing about the node now.
            if not another and stored.after == known.renewal >= 0:
                return
            known.record = record
            known.heard = time.monotonic()
            known.renewal = stored.after
            known.state = DRAINING if record.state == DRAINING else UP
            if back:
                self.report("joined", known.to_facts())
            if another:
                # The node ended all children of its earlier epoch before it began this one.
                await self._look_at_attempts_of(identity)
        await self._notify()

    def _read_record(self, identity: str, data: bytes) -> NodeRecord | None:
        """Return the record of a node; None if it is invalid, or has another key than before.

        Orders are encrypted to that key. A hostile hub that put its own key into the record could
        read them, so the first key that was seen of a node is the only valid one.
        """
        try:
            record = NodeRecord.parse(data)
        except InvalidMessage:
            return None
        if record.box and self._keys.pin(identity, record.box):
            return record
        if identity not in self._doubted:
            self._doubted.add(identity)
            self._complain(
                f"the node {record.name} ({identity}) announces another key than before, which is "
                "ignored; if its machine was set up anew, let it join with a new invitation"
            )
        return None

    async def _set_gone(self, known: KnownNode, state: str) -> None:
        known.state = state
        self.report(state, known.to_facts())
        await self._look_at_attempts_of(known.id)
        # One whose attempts are not settled yet is still needed for that.
        needed = {attempt.key.node for attempt in self._attempts.values()}
        gone = [
            node.id
            for node in self._nodes.values()
            if node.state in (LOST, LEFT) and node.id not in needed
        ]
        for identity in gone[:-KEPT_GONE]:
            del self._nodes[identity]
        await self._notify()

    async def _look_at_attempts_of(self, identity: str) -> None:
        for attempt in list(self._attempts.values()):
            if attempt.key.node == identity:
                await self._look(attempt)

    async def _watch_silence(self) -> None:
        """Mark silent nodes as suspected early, and as lost when their lease has ended.

        A node is lost when its key has expired in the hub and this steward's own clock measured
        a whole lease without a renewal. Both are needed: a server's clock may jump, and a steward
        may not have run for a while.
        """
        suspicion = compute_suspicion_s(self.lease_s)
        while True:
            now = time.monotonic()
            due = now + suspicion
            for known in list(self._nodes.values()):
                if known.state in (LOST, LEFT):
                    continue
                heard = max(known.heard, self._listening_since)
                silence = now - heard
                if silence > suspicion and known.state == UP and self.connection.is_connected:
                    known.state = SUSPECTED
                    self.report(SUSPECTED, known.to_facts())
                    await self._notify()
                if now - known.heard > self.lease_s:
                    if await self._is_lost(known):
                        await self._set_gone(known, LOST)
                    due = min(due, now + RETRY_S)
                else:
                    limit = suspicion if silence < suspicion else self.lease_s
                    due = min(due, heard + limit)
            await asyncio.sleep(max(0.02, due - time.monotonic()))

    async def _is_lost(self, known: KnownNode) -> bool:
        """Return whether a node's key has expired in the hub, and nothing of it can be left.

        Either the key was gone for a whole lease by this steward's own clock, and could not be
        renewed since, or no renewal was heard for as long. An expired key alone is not enough: a
        server's clock may jump, its store may be lost. Silence alone is not, either: this steward
        may have been away.
        """
        try:
            stored = await self.connection.read(NODES, f"$KV.nodes.{known.id}")
        except HubUnreachable:
            return False
        now = time.monotonic()
        if stored is not None and stored.data:
            known.gone_since = None
            await self._end_overdue_lease(known, stored)
            return False
        if known.gone_since is None:
            known.gone_since = now
        # A renewal may have come while the answer was under way.
        since = min(max(known.heard, self._listening_since), known.gone_since)
        return now - since > self.lease_s

    async def _end_overdue_lease(self, known: KnownNode, stored: Stored) -> None:
        """End the lease of a silent node if the hub should have done so long ago.

        A hub that was killed can come back with a lease that it had ended, and then keeps it for
        ever. Each renewal replaces the record, so one that has not changed for longer than the
        lease was not renewed. It is replaced in the hub first: a renewal that is under way would
        then be refused, and the node would begin another epoch.
        """
        lease_s = max(self.lease_s, stored.ttl_s)
        silence = time.monotonic() - max(known.heard, self._listening_since)
        unchanged = stored.after == known.renewal >= 0
        if unchanged and stored.ttl_s and silence > OVERDUE * lease_s:
            with suppress(HubUnreachable, SwapRefused):
                await self.connection.swap(stored.subject, b"", stored.revision, ttl_s=1)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # Placement.

    async def reserve(
        self,
        needs: Placement,
        *,
        isolated: bool,
        memory_mb: int = 0,
        avoid: Sequence[str] = (),
        waiting: Callable[[str], None] = lambda _: None,
    ) -> str:
        """Wait for a node with a free slot and reserve that; return the node's id.

        Args:
            memory_mb: the memory that the limits of the subagent allow it.
            waiting: called if there is none now, with why orders were refused, if any were.
        """
        while True:
            now = time.monotonic()
            # One that just refused an order is asked again after its next renewal.
            refused = [
                node
                for node in self._nodes.values()
                if node.refused_at >= max(0.0, now - self.lease_s / 10)
            ]
            facts = [node.to_facts() for node in self._nodes.values() if node not in refused]
            chosen = choose_node(facts, needs, isolated=isolated, memory_mb=memory_mb, avoid=avoid)
            # Without the hub, what is known of the nodes is old, and none can be asked.
            if chosen is not None and self.connection.is_connected:
                self._nodes[chosen.id].reserved += 1
                return chosen.id
            waiting("; ".join(dict.fromkeys(node.refused_why for node in refused)))
            async with self._changed:
                # Nodes renew their leases all the time, but only changes are announced.
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.2, self.lease_s / 10)):
                        await self._changed.wait()

    def release(self, node: str) -> None:
        known = self._nodes.get(node)
        if known is not None:
            known.reserved = max(0, known.reserved - 1)
            self._spawn(self._notify())

    def note_refused(self, node: str, why: str) -> None:
        if (known := self._nodes.get(node)) is not None:
            known.refused_at = time.monotonic()
            known.refused_why = why

    # Attempts.

    def derive_secret(self, key: AttemptKey) -> bytes:
        """Return the key of an order; the next steward derives the same."""
        return derive_key(self.secret, f"attempt {key}")

    def follow(self, key: AttemptKey) -> RemoteAttempt:
        """Follow an attempt that was recorded."""
        attempt = self._attempts.get(str(key))
        if attempt is None:
            attempt = self._attempts[str(key)] = RemoteAttempt(key, self.derive_secret(key))
            attempt.accepted = True
            self._spawn(self._look_when_ready(attempt))
        return attempt

    async def _look_when_ready(self, attempt: RemoteAttempt) -> None:
        # Its node is not known before the hub was read.
        await self._ready.wait()
        node = attempt.key.node
        # The node may have been lost before this steward started: it is heard of from now on.
        if node not in self._nodes:
            self._nodes[node] = KnownNode(
                id=node, record=_make_unknown(node), heard=time.monotonic(), steward=self.steward
            )
        if str(attempt.key) in self._attempts:
            self._nodes[node].reserved += 1
            attempt.holds_slot = True
        await self._look(attempt)

    async def offer(self, key: AttemptKey) -> RemoteAttempt:
        """Announce an attempt in the hub.

        Raises:
            HubUnreachable: the hub did not store it.
        """
        attempt = RemoteAttempt(key, self.derive_secret(key))
        attempt.holds_slot = True  # by `reserve`
        # Known before it is written: a reading of all keys that is under way leaves it alone.
        self._attempts[str(key)] = attempt
        value = messages.encode({"state": messages.OFFERED})
        try:
            attempt.revision = await self.connection.swap(key.subject, value, 0)
        except HubUnreachable:
            # It may be written all the same; the next steward revokes it, and no node was asked.
            del self._attempts[str(key)]
            raise
        return attempt

    def forget(self, attempt: RemoteAttempt) -> None:
        """Stop following; the end is recorded, so the node may delete its copy."""
        self._attempts.pop(str(attempt.key), None)
        if attempt.holds_slot:
            attempt.holds_slot = False
            self.release(attempt.key.node)
        if not self._closed:
            self._spawn(self._let_go(attempt.key))

    async def _let_go(self, key: AttemptKey) -> None:
        await self._tell_once(key, "forget")
        with suppress(HubUnreachable):
            await self.connection.publish(key.subject, b"", {"KV-Operation": "PURGE"})

    async def withdraw(self, attempt: RemoteAttempt) -> bool:
        """Revoke an offer that was not answered; return False if it was accepted meanwhile."""
        revoked = messages.encode({"state": messages.REVOKED})
        while True:
            try:
                await self.connection.swap(attempt.key.subject, revoked, attempt.revision)
                break
            except SwapRefused:
                with suppress(HubUnreachable):
                    stored = await self.connection.read(ATTEMPTS, attempt.key.subject)
                    head = _read_state(stored)
                    if stored is not None and head in (messages.ACCEPTED, messages.ENDED):
                        attempt.revision = stored.revision
                        attempt.accepted = True
                        return False
                    break
            except HubUnreachable:
                await asyncio.sleep(RETRY_S)
        self._attempts.pop(str(attempt.key), None)
        return True

    async def _on_attempt(self, message: Msg) -> None:
        """Handle a change of a key. It is only a hint, so the stored state is read."""
        attempt = self._attempts.get(message.subject.removeprefix("$KV.attempts."))
        if attempt is not None and attempt.accepted:
            with suppress(InvalidMessage):
                head, _ = messages.decode(message.data)
                if head.get("state") == messages.ENDED:
                    self._spawn(self._look_for_end(attempt))

    async def _look_for_end(self, attempt: RemoteAttempt) -> None:
        """Read an attempt whose end was announced, until the hub has stored the end.

        Subscribers receive a message before the hub has stored it, and a read in between returns
        the previous state. An end that the hub refused is never stored.
        """
        for pause_s in STORED_AFTER_S:
            await asyncio.sleep(pause_s)
            await self._look(attempt)
            if attempt.is_over:
                return

    async def _look(self, attempt: RemoteAttempt) -> None:
        """Read what the hub has stored of an attempt, and settle it if it is over."""
        if attempt.is_over or not attempt.accepted or not self._ready.is_set():
            return
        async with attempt.looking:
            with suppress(HubUnreachable, SwapRefused):
                stored = await self.connection.read(ATTEMPTS, attempt.key.subject)
                state = _read_state(stored)
                if state == messages.ENDED and stored is not None and stored.data is not None:
                    attempt.settle(self._open_end(attempt, stored.data))
                elif state == messages.REVOKED:
                    attempt.settle(None)
                elif state == messages.ACCEPTED and stored is not None:
                    attempt.revision = stored.revision
                    if await self._is_gone(attempt, stored):
                        await self._revoke(attempt, stored.revision)
                else:
                    await self._restore(attempt, stored)

    def _open_end(self, attempt: RemoteAttempt, data: bytes) -> EndClaim:
        try:
            head, files = messages.decode(unseal(attempt.secret, messages.decode(data)[1]))
            return EndClaim(head=head, files=files)
        except (NotSealed, InvalidMessage):
            problem = "its node told an end that does not belong to it"
            return EndClaim(head={"kind": "lost", "error": problem}, files=b"")

    async def _is_gone(self, attempt: RemoteAttempt, stored: Stored) -> bool:
        """Return whether the node that accepted it is lost, left, or began another epoch.

        Raises:
            HubUnreachable: the record of the node could not be read.
        """
        known = self._nodes.get(attempt.key.node)
        if known is None:
            return False
        if known.state in (LOST, LEFT):
            return True
        epoch = str(messages.decode(stored.data or b"")[0].get("epoch"))
        return epoch != known.record.epoch and await self._has_moved_on(known, epoch)

    async def _has_moved_on(self, known: KnownNode, epoch: str) -> bool:
        """Return whether a node has ended all children of an epoch and begun another one.

        The record that this steward knows may be older than the attempt, so the hub is asked.
        """
        fresh = await self.connection.read(NODES, f"$KV.nodes.{known.id}")
        record = None
        if fresh is not None and fresh.data is not None:
            record = self._read_record(known.id, fresh.data)
        return record is not None and record.epoch != epoch

    async def _revoke(self, attempt: RemoteAttempt, last: int) -> None:
        """Revoke the attempt in the hub before its loss is recorded, so that no late end counts.

        Raises:
            SwapRefused: it has just ended, and that end counts.
        """
        await self.connection.swap(
            attempt.key.subject, messages.encode({"state": messages.REVOKED}), last
        )
        attempt.settle(None)

    async def _restore(self, attempt: RemoteAttempt, stored: Stored | None) -> None:
        """Handle a key that is older than the steward's records: the hub has lost data.

        The attempt is offered again only after its node was asked or is gone.
        """
        last = stored.revision if stored is not None else 0
        known = self._nodes.get(attempt.key.node)
        if known is None or known.state in (LOST, LEFT):
            await self._revoke(attempt, last)
            return
        said = await self._ask(attempt.key, attempt.secret, {"word": "state"})
        if said is None:
            return  # silent: it is asked again, or becomes lost
        head, body = said
        if head.get("state") == "ended":
            value = messages.encode({"state": messages.ENDED}, body)
            await self.connection.swap(attempt.key.subject, value, last)
            attempt.settle(self._open_end(attempt, value))
        elif head.get("state") == "running" and not await self._has_moved_on(
            known, epoch := str(head.get("epoch"))
        ):
            # It runs there, whatever the hub has lost.
            value = messages.encode({"state": messages.ACCEPTED, "epoch": epoch})
            attempt.revision = await self.connection.swap(attempt.key.subject, value, last)
            word = {"word": "revision", "revision": attempt.revision}
            await self._ask(attempt.key, attempt.secret, word)
        else:
            await self._revoke(attempt, last)

    async def _ask(
        self, key: AttemptKey, secret: bytes, said: dict[str, Any], body: bytes = b""
    ) -> tuple[dict[str, Any], bytes] | None:
        """Return a node's answer about an attempt; None if there is none.

        An answer with an empty head means that the node does not know the attempt.
        """
        data = messages.encode({"key": str(key)}, seal(secret, messages.encode(said, body)))
        timeout_s = LONG_S if said["word"] in ("go", "files") else CONTROL_S
        try:
            answer = await self.connection.request(f"node.{key.node}.control", data, timeout_s)
            return messages.decode(unseal(secret, answer)) if answer else ({}, b"")
        except (HubUnreachable, NotSealed, InvalidMessage):
            return None

    async def tell(
        self, attempt: RemoteAttempt, said: dict[str, Any], body: bytes = b""
    ) -> dict[str, Any]:
        """Send a message about an attempt to its node until it answers or the attempt is over.

        Returns its answer; an empty one if the attempt is over, or unknown to the node.
        """
        pause = 0.1
        while not attempt.is_over:
            answer = await self._ask(attempt.key, attempt.secret, said, body)
            if answer is not None:
                if not answer[0]:
                    await self._settle_unknown(attempt)
                return answer[0]
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)
        return {}

    async def _settle_unknown(self, attempt: RemoteAttempt) -> None:
        """Settle an attempt that its node does not know, although it accepted it in the hub.

        The node was stopped before it wrote its database, so there is no process.
        """
        async with attempt.looking:
            with suppress(HubUnreachable, SwapRefused):
                stored = await self.connection.read(ATTEMPTS, attempt.key.subject)
                if _read_state(stored) == messages.ACCEPTED and stored is not None:
                    revoked = messages.encode({"state": messages.REVOKED})
                    await self.connection.swap(attempt.key.subject, revoked, stored.revision)
                    attempt.settle(EndClaim(head={"kind": "never_ran"}, files=b""))
        await self._look(attempt)

    async def ask_for_files(self, attempt: RemoteAttempt) -> bool:
        """Let the node store the files of an end again; return whether it has.

        It is asked until it answers or is gone.
        """
        while True:
            said = await self._ask(attempt.key, attempt.secret, {"word": "files"})
            if said is not None:
                return bool(said[0].get("done"))
            known = self._nodes.get(attempt.key.node)
            if known is None or known.state in (LOST, LEFT):
                return False
            await asyncio.sleep(RETRY_S)

    async def _tell_once(self, key: AttemptKey, word: str) -> None:
        await self._ask(key, self.derive_secret(key), {"word": word})

    def tell_soon(self, attempt: RemoteAttempt, said: dict[str, Any], body: bytes = b"") -> None:
        self._spawn(self._tell_and_drop(attempt, said, body))

    async def _tell_and_drop(
        self, attempt: RemoteAttempt, said: dict[str, Any], body: bytes
    ) -> None:
        await self.tell(attempt, said, body)

    async def drain(self, node: str, within_s: float | None) -> bool:
        """Ask a node to accept no more orders; return whether it answered."""
        data = messages.encode({"within": within_s})
        try:
            await self.connection.request(f"node.{node}.drain", data, CONTROL_S)
        except HubUnreachable:
            return False
        return True


def _read_state(stored: Stored | None) -> str:
    """Return the state of a key; empty if it does not exist or cannot be read."""
    if stored is None or stored.data is None:
        return ""
    try:
        return str(messages.decode(stored.data)[0].get("state", ""))
    except InvalidMessage:
        return ""


def _make_unknown(identity: str) -> NodeRecord:
    """Return a stand-in for a node that was not heard of yet."""
    return NodeRecord(
        name=identity,
        epoch="",
        state=UP,
        slots=1,
        busy=1,
        labels=(),
        isolation="",
        layers=False,
        version="",
        box="",
    )
