"""Main program of a node: renews its lease, accepts orders and runs them.

node folder/
  cluster.json   address of the hub and this node's credentials
  node.db        epoch of the lease, and accepted orders
  node.lock      held by the running program
  lease          until when children may run, in ms of CLOCK_BOOTTIME; their inits read it
  tasks/         files of attempts; bases/, repositories/, contexts/ are caches
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import platform
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg

from retinue.cluster import messages
from retinue.cluster.base_packs import NodeBases
from retinue.cluster.blob_store import BlobRef, BlobStore
from retinue.cluster.folder_watches import FolderWatches
from retinue.cluster.hub_connection import HubConnection, HubUnreachable, SwapRefused
from retinue.cluster.hub_users import NODES
from retinue.cluster.invitation import Membership
from retinue.cluster.messages import AttemptKey, InvalidMessage, NodeRecord
from retinue.cluster.node_attempt import NodeAttempt, read_process
from retinue.cluster.node_database import AcceptedOrder, NodeDatabase
from retinue.cluster.sealing import (
    find_public_key,
    seal,
    unseal,
    unseal_from_box,
)
from retinue.core.errors import Refused, RetinueError
from retinue.core.placement import PROTOCOL
from retinue.files import make_folder, write_atomic
from retinue.runtime.cgroups import ChildCgroups
from retinue.runtime.process_runtime import ProcessRuntime
from retinue.runtime.sandbox_view import ChildUsers
from retinue.version import VERSION

PROCESS, DRAIN = "node.pid", "drain"
LARGEST_ORDER = 1024**3
MOST_RENEWALS = 3  # seen of a lease that should have ended; a killed program may have sent one
PROGRAMS = ("claude", "codex", "gemini", "opencode", "aider", "cursor-agent", "docker", "git")


def compute_margin_s(lease_s: float) -> float:
    """Return how long before the end of the lease children are ended, for clocks and delays."""
    return min(5.0, lease_s / 5)


def compute_renewal_s(lease_s: float) -> float:
    return lease_s / 10


def read_boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    slots: int
    labels: tuple[str, ...] = ()
    memory_mb: int = 0  # sum of the limits of its children; 0: not limited
    quotas: Mapping[str, int] = field(default_factory=dict)  # as in its record
    drain_on_term: bool = False
    failpoint: Callable[[str], None] = lambda _: None


class Node:
    """A node that serves the stewards of one hub."""

    def __init__(
        self,
        root: Path,
        membership: Membership,
        options: NodeOptions,
        complain: Callable[[str], None],
    ) -> None:
        """Raises:
        Refused: another program serves this node.
        StorageFailed: its folder cannot be used.
        """
        self.root = root
        self.complain = complain
        self.failpoint = options.failpoint
        self._options = options
        self._membership = membership
        self.identity = membership.address.identity
        self.lease_s = membership.address.lease_s
        self.lease_file = root / "lease"
        self._lock = _lock(root)
        self.database = NodeDatabase(root / "node.db")
        self.connection = HubConnection(membership.address, complain)
        self.blobs = BlobStore(self.connection)
        self.watches = FolderWatches()
        cgroups = ChildCgroups(root)
        cgroups.sweep()
        self.runtime = ProcessRuntime(users=ChildUsers(root), cgroups=cgroups)
        self.bases = NodeBases(root, self.runtime)
        self._attempts: dict[str, NodeAttempt] = {}
        self._accepting: dict[AttemptKey, int] = {}  # orders that are being accepted; memory in MB
        self._tasks: set[asyncio.Task[None]] = set()
        self._epoch = self.database.read_epoch()
        # Stewards remember the key, so it lasts as long as the membership.
        self._private_key = membership.secret
        self._public_key = find_public_key(self._private_key).hex()
        self._revision = 0
        self._isolation: str | None = None
        self._layers = False
        self._state = "up"
        self._changed = asyncio.Event()  # renew at once: something in the record changed
        self._idle = asyncio.Event()
        self.up = asyncio.Event()

    # Its course.

    async def serve(self, stopping: asyncio.Event) -> None:
        """Serve until asked to stop. Children go on; the next program of this node adopts them.

        Raises:
            Refused: another program holds the lease of this node, or the hub does not accept it.
        """
        missing = await self.runtime.isolation_missing()
        self._isolation = missing
        self._layers = missing is None and await self.runtime.layers_missing(self.root) is None
        await self.runtime.warm()
        try:
            if not await self._open(stopping):
                return
            renewal = asyncio.create_task(self._keep_lease())
            self.up.set()
            try:
                await self._wait_stop(stopping, renewal)
            finally:
                renewal.cancel()
        finally:
            for task in list(self._tasks):
                task.cancel()
            self.watches.close()
            await self.connection.close()
            self.runtime.close()
            self.database.close()
            os.close(self._lock)

    async def _open(self, stopping: asyncio.Event) -> bool:
        """Connect and take the lease; return False if asked to stop before that succeeds."""
        opening = asyncio.create_task(self._connect())
        stop = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({opening, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return False
            opening.result()
            return True
        finally:
            stop.cancel()
            opening.cancel()
            await asyncio.wait({opening})

    async def _connect(self) -> None:
        await self.connection.open(patient=True)
        self.connection.on_reconnect(self._on_reconnect)
        await self._resume_or_begin_epoch()
        await self.connection.subscribe(f"node.{self.identity}.order", self._on_order)
        await self.connection.subscribe(f"node.{self.identity}.control", self._on_control)
        await self.connection.subscribe(f"node.{self.identity}.drain", self._on_drain)
        # A hub that is away now has the subscriptions when it is back.
        with suppress(HubUnreachable):
            await self.connection.flush()

    async def _wait_stop(self, stopping: asyncio.Event, renewal: asyncio.Task[None]) -> None:
        stop = asyncio.create_task(stopping.wait())
        drained = asyncio.create_task(self._wait_drained())
        refused = asyncio.create_task(self.connection.refused.wait())
        try:
            ends = {stop, drained, renewal, refused}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if renewal.done():
                renewal.result()
            if refused.done():
                raise self.connection.make_refusal()
            if stop.done() and self._options.drain_on_term and not drained.done():
                self.drain()
                await drained
            if drained.done():
                renewal.cancel()
                await self._leave()
                self.complain("drained: this node has left the hub")
            elif stop.done() and (count := len(self._list_running())):
                words = "child continues" if count == 1 else "children continue"
                self.complain(f"{count} {words}; 'retinue node start' takes over")
        finally:
            stop.cancel()
            drained.cancel()
            refused.cancel()

    async def _wait_drained(self) -> None:
        while self._state != "draining" or self._attempts or self._accepting:
            self._idle.clear()
            await self._idle.wait()

    def drain(self, within_s: float | None = None) -> None:
        """Accept no more orders; the program ends when the last attempt is over.

        Args:
            within_s: stop the attempts that are not over after this time.
        """
        self._state = "draining"
        self._changed.set()
        self._idle.set()
        if within_s is not None:
            asyncio.get_running_loop().call_later(within_s, self._stop_all)

    def _stop_all(self) -> None:
        for attempt in list(self._attempts.values()):
            attempt.stop(kill=False)

    async def _leave(self) -> None:
        """Remove the node's record from the hub, so that the node counts as left, not as lost."""
        subject = f"$KV.nodes.{self.identity}"
        with suppress(HubUnreachable):
            # A renewal may have been under way: its revision is the one to replace.
            while (own := await self._read_own()) is not None and own[0] is not None:
                if own[0].epoch != self._epoch:
                    return
                with suppress(SwapRefused):
                    await self.connection.swap(
                        subject, b"", own[1], headers={"KV-Operation": "DEL"}
                    )
            self.database.write_epoch("")

    # The lease.

    async def _resume_or_begin_epoch(self) -> None:
        """Continue the last epoch; if the hub has another one, end all children and begin anew."""
        subject = f"$KV.nodes.{self.identity}"
        entries = self.database.list_orders()
        renewals: set[int] = set()
        while True:
            try:
                stored = await self.connection.read(NODES, subject)
            except HubUnreachable:
                await asyncio.sleep(0.2)
                continue
            known = None
            if stored is not None and stored.data is not None:
                with suppress(InvalidMessage):
                    known = NodeRecord.parse(stored.data)
            if known is None:
                break
            assert stored is not None
            same = self._epoch and known.epoch == self._epoch
            if same and self.database.is_epoch_of_this_place():
                self._revision = stored.revision
                self._resume(entries)
                return
            # The machine was restarted, the database was lost, or another program has this
            # membership. Children of that epoch may be running elsewhere: wait until its lease is
            # over.
            if not renewals:
                self.complain(
                    f"waiting until the earlier lease of this node is over: at most "
                    f"{self.lease_s:g} s, unless another program renews it"
                )
            renewals.add(stored.revision)
            if len(renewals) > MOST_RENEWALS:
                raise _make_in_use()
            await asyncio.sleep(compute_renewal_s(self.lease_s))
        for each in entries:
            child = read_process(each, self.runtime, self.root)
            if child is not None:
                child.kill()
                await child.wait_ended()
            if AttemptKey.parse(each.key).node != self.identity:
                # Of an earlier membership of this folder, whose keys this one may not write.
                NodeAttempt(self, each).forget()
        await self._begin_epoch(stored.revision if stored is not None else 0)
        self._resume(self.database.list_orders())

    async def _begin_epoch(self, last: int) -> None:
        """Take a new lease; all children of earlier ones have ended.

        Raises:
            Refused: another program took it first.
        """
        self._epoch = os.urandom(4).hex()
        self.database.write_epoch(self._epoch)
        while True:
            sent = read_boottime_ms()
            try:
                self._revision = await self.connection.swap(
                    f"$KV.nodes.{self.identity}",
                    self._make_record(),
                    last,
                    ttl_s=self.lease_s,
                )
                break
            except SwapRefused:
                stored = await self._read_own()
                if stored and stored[0] is not None and stored[0].epoch != self._epoch:
                    # Its children may be running, so its lease must not be ended from here.
                    raise _make_in_use() from None
                last = stored[1] if stored else 0
            except HubUnreachable:
                await asyncio.sleep(compute_renewal_s(self.lease_s))
        self._extend(sent)

    async def _read_own(self) -> tuple[NodeRecord | None, int] | None:
        """Return the node's record in the hub and its revision; None if there is no record."""
        with suppress(HubUnreachable):
            stored = await self.connection.read(NODES, f"$KV.nodes.{self.identity}")
            if stored is None:
                return None
            if not stored.data:
                return None, stored.revision
            with suppress(InvalidMessage):
                return NodeRecord.parse(stored.data), stored.revision
        return None

    def _extend(self, sent_ms: int) -> None:
        """Let children run until the lease ends, counted from when the renewal was sent."""
        until = sent_ms + round(1000 * (self.lease_s - compute_margin_s(self.lease_s)))
        descriptor = os.open(self.lease_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, until.to_bytes(8, "little"), 0)
        finally:
            os.close(descriptor)

    async def _keep_lease(self) -> None:
        pause = compute_renewal_s(self.lease_s)
        failed = False
        while True:
            # A change during the renewal is told by the next one, which follows at once.
            self._changed.clear()
            sent = read_boottime_ms()
            try:
                self._revision = await self.connection.swap(
                    f"$KV.nodes.{self.identity}",
                    self._make_record(),
                    self._revision,
                    ttl_s=self.lease_s,
                    timeout_s=max(1.0, pause),
                )
                self._extend(sent)
                if failed:
                    self.complain("the lease is renewed again")
                failed = False
            except SwapRefused:
                await self._check_refused_renewal()
                continue
            except HubUnreachable as error:
                # Children end by themselves when the lease is over.
                if not failed:
                    self.complain(f"the lease cannot be renewed now: {error.message}")
                failed = True
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _check_refused_renewal(self) -> None:
        """Find out why a renewal was refused: its acknowledgement was lost, or the lease was."""
        try:
            stored = await self.connection.read(NODES, f"$KV.nodes.{self.identity}")
        except HubUnreachable:
            return
        known = None
        if stored is not None and stored.data is not None:
            with suppress(InvalidMessage):
                known = NodeRecord.parse(stored.data)
        if known is not None and stored is not None and known.epoch == self._epoch:
            self._revision = stored.revision
            return
        if known is not None:
            raise _make_in_use()
        self.complain("the lease was lost: ending all children, then going on with a new one")
        # From here on, an order for that epoch is refused, even one that is being accepted.
        self._epoch = ""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.fenced = True
            attempt.stop(kill=True)
        for attempt in attempts:
            await attempt.over.wait()
        await self._begin_epoch(stored.revision if stored is not None else 0)

    def _make_record(self) -> bytes:
        record = NodeRecord(
            name=self._membership.name or self.identity,
            epoch=self._epoch,
            state=self._state,
            slots=self._options.slots,
            busy=len(self._list_running()) + len(self._accepting),
            labels=self._list_labels(),
            isolation=" ".join((self._isolation or "").split())[: messages.LONGEST_TEXT],
            layers=self._layers,
            version=VERSION,
            box=self._public_key,
            speaks=(PROTOCOL, PROTOCOL),
            memory_mb=self._options.memory_mb,
            bases=self.bases.list_known(),
            quotas=self._options.quotas,
        )
        return record.to_json()

    def _list_labels(self) -> tuple[str, ...]:
        found = [platform.machine()]
        found += [] if self._isolation else ["isolated"]
        found += ["layers"] if self._layers else []
        found += [name for name in PROGRAMS if shutil.which(name)]
        return tuple(dict.fromkeys((*self._membership.labels, *self._options.labels, *found)))

    # Orders.

    def _resume(self, entries: Sequence[AcceptedOrder]) -> None:
        for each in entries:
            attempt = NodeAttempt(self, each)
            if each.ended is not None:
                self._report(attempt, each.ended)
            else:
                child = read_process(each, self.runtime, self.root)
                attempt.fenced = each.epoch != self._epoch
                if child is not None and attempt.fenced:
                    child.kill()
                self._begin(attempt, attempt.resume(child, released=each.released))

    def _report(self, attempt: NodeAttempt, ended: bytes) -> None:
        """Report an end of the book. Such an attempt takes no slot, and no loss ends it."""
        attempt.over.set()
        self._begin(attempt, attempt.report(ended))

    def _begin(self, attempt: NodeAttempt, course: Any) -> None:
        self._attempts[str(attempt.key)] = attempt
        self._start(course)

    def _start(self, course: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._guard(course))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, course: Any) -> None:
        try:
            await course
        except (RetinueError, OSError, ValueError, KeyError, TypeError) as error:
            self.complain(f"{type(error).__name__}: {error}")

    def on_attempt_over(self, key: str) -> None:
        self._attempts.pop(key, None)
        self._changed.set()
        self._idle.set()

    async def _on_reconnect(self) -> None:
        """Report again the ends that no steward has recorded; earlier reports may be lost."""
        self._changed.set()
        for running in list(self._attempts.values()):
            running.send_again()
            await running.drop_connections()
        for each in self.database.list_orders():
            if each.ended is not None and each.key not in self._attempts:
                self._report(NodeAttempt(self, each), each.ended)

    async def _on_order(self, message: Msg) -> None:
        self._start(self._take_order(message))

    async def _take_order(self, message: Msg) -> None:
        head, payload = messages.decode(unseal_from_box(self._private_key, message.data))
        key = AttemptKey.parse(str(head["key"]))
        secret = bytes.fromhex(str(head["secret"]))

        async def answer(**said: Any) -> None:
            await message.respond(seal(secret, messages.encode(said)))

        if why := self._find_refusal(head, key):
            await answer(no=why)
            return
        # The slot is taken before the first wait, so that no other order gets it meanwhile.
        self._accepting[key] = _read_memory(head)
        try:
            attempt, revision = await self._accept(head, payload, key, secret)
            self.failpoint("node_accepted")
            self._begin(attempt, attempt.run())
        except (RetinueError, ValueError, KeyError, TypeError) as error:
            self._changed.set()
            await answer(no=str(error))
            return
        finally:
            del self._accepting[key]
            self._idle.set()
        await answer(yes=True, revision=revision)

    async def _accept(
        self, head: dict[str, Any], payload: bytes, key: AttemptKey, secret: bytes
    ) -> tuple[NodeAttempt, int]:
        """Accept an order in the hub and enter it into the database; return it and its revision.

        Raises:
            RetinueError, ValueError, KeyError, TypeError: it is not accepted.
        """
        epoch = self._epoch
        if head.get("blob"):
            payload = await self.blobs.get(BlobRef.from_json(head["blob"]), secret, LARGEST_ORDER)
        order, files = messages.decode(payload)
        accepted = {"state": messages.ACCEPTED, "epoch": epoch}
        revision = await self.connection.swap(
            key.subject, messages.encode(accepted), int(head["revision"])
        )
        self.failpoint("node_swapped")
        # From here to `_begin` nothing waits, so that the lease cannot be lost in between.
        if self._epoch != epoch:
            raise InvalidMessage("the order is for an earlier epoch of this node")
        entry = AcceptedOrder(
            key=str(key),
            epoch=epoch,
            revision=revision,
            secret=secret,
            head=json.dumps(order).encode(),
        )
        attempt = NodeAttempt(self, entry, files)
        self.database.accept(entry)
        return attempt, revision

    def _list_running(self) -> list[NodeAttempt]:
        """Return the attempts that need a slot: all except those that have ended."""
        return [each for each in self._attempts.values() if not each.over.is_set()]

    def _find_refusal(self, head: dict[str, Any], key: AttemptKey) -> str:
        if key.node != self.identity or head.get("epoch") != self._epoch:
            return "the order is for an earlier epoch of this node"
        if head.get("v") != PROTOCOL:
            return "the order has another version"
        if self._state != "up":
            return "the node is draining"
        known = str(key) in self._attempts or self.database.find(str(key)) is not None
        if known or key in self._accepting:
            return "the order was accepted before"
        taken = [(each.key, each.memory_mb) for each in self._list_running()]
        taken += self._accepting.items()
        if len(taken) >= self._options.slots:
            return "all slots are taken"
        quota = messages.find_quota(self._options.quotas, key.steward)
        own = [each for each, _ in taken if each.steward == key.steward]
        if quota and len(own) >= quota:
            return "its steward has all the slots that it may have here"
        memory_mb = _read_memory(head) + sum(each for _, each in taken)
        if self._options.memory_mb and memory_mb > self._options.memory_mb:
            return "not enough memory is left for it"
        return ""

    # What stewards ask of running attempts.

    async def _on_control(self, message: Msg) -> None:
        self._start(self._take_control(message))

    async def _take_control(self, message: Msg) -> None:
        outer, sealed = messages.decode(message.data)
        text = str(outer.get("key"))
        attempt = self._attempts.get(text)
        entry = self.database.find(text)
        if entry is None:
            # Without an entry there is no process, even if the swap in the hub was made.
            await message.respond(b"")
            return
        said, body = messages.decode(unseal(entry.secret, sealed))

        async def answer(data: bytes = b"", **head: Any) -> None:
            await message.respond(seal(entry.secret, messages.encode(head, data)))

        match said.get("word"):
            case "go" if attempt is not None:
                failure = await attempt.release()
                await answer(failed=failure, never_ran=attempt.never_ran)
            case "go":
                # It has ended; the answer to an earlier `go` may have been lost.
                await answer(failed="", never_ran=not entry.released)
            case "stop" | "kill":
                if attempt is not None:
                    attempt.stop(kill=said["word"] == "kill")
                await answer(done=True)
            case "deliver" if attempt is not None:
                attempt.deliver(str(said["name"]), body)
                await answer(done=True)
            case "reconnect":
                if attempt is not None:
                    await attempt.drop_connections()
                await answer(done=True)
            case "live":
                if attempt is not None:
                    attempt.send_again({str(k): int(v) for k, v in dict(said["have"]).items()})
                await answer(done=True)
            case "state":
                state = "ended" if entry.ended is not None else "running"
                await answer(entry.ended or b"", state=state, epoch=entry.epoch)
            case "revision":
                self.database.note_revision(text, int(said["revision"]))
                if attempt is not None:
                    await attempt.set_revision(int(said["revision"]))
                await answer(done=True)
            case "files" if entry.ended is not None:
                await answer(done=await (attempt or NodeAttempt(self, entry)).put_files_again())
            case "forget":
                if attempt is None:
                    NodeAttempt(self, entry).forget()
                await answer(done=True)
            case _:
                await answer(done=False)

    async def _on_drain(self, message: Msg) -> None:
        within = messages.decode(message.data)[0].get("within")
        self.drain(float(within) if within is not None else None)
        await message.respond(b"draining")


def _read_memory(head: Mapping[str, Any]) -> int:
    """Return the memory in MB that an order takes; 0 if the node does not count it."""
    return int(head.get("memory_mb", 0))


def _make_in_use() -> Refused:
    return Refused(
        "another program serves with the membership of this node",
        code="node_in_use",
        hint="every node needs an invitation of its own: 'retinue hub invite'. In a copied folder, "
        "'retinue node leave' gives up the membership of the original",
    )


def _lock(root: Path) -> int:
    """Raises:
    Refused: another program serves this node.
    """
    make_folder(root, mode=0o711)
    descriptor = os.open(root / "node.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise Refused(
            f"another program serves the node in {root}",
            code="node_running",
            hint="stop it first, or name another folder with --root",
        ) from None
    return descriptor


async def run_node(
    root: Path,
    membership: Membership,
    options: NodeOptions,
    complain: Callable[[str], None],
    on_up: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = Node(root, membership, options, complain)
    write_atomic(root / PROCESS, f"{os.getpid()}\n".encode())
    loop.add_signal_handler(signal.SIGUSR1, _drain_as_asked, node, root / DRAIN)
    told = asyncio.create_task(_tell_up(node, on_up))
    try:
        await node.serve(stopping)
    finally:
        told.cancel()


def _drain_as_asked(node: Node, file: Path) -> None:
    """Drain within the seconds that a file names; without one, as long as it takes."""
    try:
        node.drain(float(file.read_text()))
    except (OSError, ValueError):
        node.drain()


async def _tell_up(node: Node, on_up: Callable[[], None]) -> None:
    await node.up.wait()
    on_up()
