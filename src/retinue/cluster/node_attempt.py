"""One attempt on a node, from its acceptance until the steward has taken its end.

accepted  the hub and the node's database have it; nothing is executed
prepared  its files are in place and its process waits for GO
released  the steward sent `go`, after it had recorded the start
ended     no process is left; its files are in the hub, and its end in the database until `forget`
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from retinue.child.attempt_runner import LEASE_OVER
from retinue.cluster import archive, messages
from retinue.cluster.base_packs import NodeBases
from retinue.cluster.blob_store import BlobMissing, BlobRef, BlobStore
from retinue.cluster.checkpoint import CheckpointSender
from retinue.cluster.folder_watches import FolderWatches
from retinue.cluster.hub_connection import HubConnection, HubUnreachable, Stored, SwapRefused
from retinue.cluster.hub_users import ATTEMPTS
from retinue.cluster.ignored_files import MOST_IGNORED
from retinue.cluster.live_copy import LiveSender
from retinue.cluster.messages import AttemptKey, InvalidMessage
from retinue.cluster.node_database import AcceptedOrder, NodeDatabase
from retinue.cluster.sealing import seal
from retinue.cluster.tunnel import NodeTunnel
from retinue.core.errors import LaunchFailed, StorageFailed
from retinue.core.ids import SubagentId, TaskId
from retinue.core.result import EndKind
from retinue.core.task_config import ISOLATED
from retinue.files import make_folder
from retinue.ports import Child, LaunchOrder, ProcessIdentity
from retinue.runtime.process_runtime import ProcessRuntime
from retinue.settings import PASSED_ON
from retinue.workspaces.agent_folder import AGENT_HOME
from retinue.workspaces.git.git_command import GitFailed
from retinue.workspaces.git.task_repository import chown_tree
from retinue.workspaces.owned_files import remove_tree

REPORT_AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0)
INPUTS = ("contract.json", "runtime", "context", "inbox", "workspace", "layers", AGENT_HOME)
OF_THE_END = ("runtime/stdout.log", "runtime/stderr.log", "runtime/exit.json", "runtime/init.log")


class NodePorts(Protocol):
    """The parts of a node that its attempts use."""

    connection: HubConnection
    blobs: BlobStore
    watches: FolderWatches
    database: NodeDatabase
    runtime: ProcessRuntime
    bases: NodeBases
    root: Path
    lease_file: Path
    lease_s: float
    failpoint: Callable[[str], None]
    complain: Callable[[str], None]

    def on_attempt_over(self, key: str) -> None: ...


class NodeAttempt:
    """Driver of one accepted order."""

    def __init__(self, node: NodePorts, entry: AcceptedOrder, files: bytes = b"") -> None:
        self._node = node
        self.key = AttemptKey.parse(entry.key)
        self._revision = entry.revision
        self.secret = entry.secret
        self.epoch = entry.epoch
        self.order: dict[str, Any] = json.loads(entry.head)
        self._files = files
        self._go = asyncio.Event()
        self._up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._child: Child | None = None
        self._asked = ""
        self.never_ran = False  # it is over, and its command was not executed
        self.fenced = False  # its lease was lost: what ended it is the loss of the node
        self.over = asyncio.Event()  # no process of it is left
        self.task: asyncio.Task[None] | None = None
        self.folder = node.root / "tasks" / self.key.nonce
        self.agents = self.folder / "agents"
        self._live: LiveSender | None = None
        self._tunnel: NodeTunnel | None = None
        self._checkpoints: CheckpointSender | None = None

    @property
    def memory_mb(self) -> int:
        return int(self.order["boundary"]["limits"].get("memory_mb", 0))

    def _find(self, path: str) -> Path:
        """Return the place on this node of a path below the steward's folder of agents."""
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidMessage(f"not a path below the agents: {path[:80]!a}")
        return self.agents / path

    # What the steward asks for.

    def stop(self, *, kill: bool) -> None:
        self._asked = "kill" if kill else self._asked or "stop"
        if self._child is None:
            self._go.set()  # it is not released any more
        elif kill:
            self._child.kill()
        else:
            self._child.stop()

    async def release(self) -> str:
        """Let the command execute; return an empty string once it does, else why it does not."""
        self._go.set()
        return await asyncio.shield(self._up)

    async def drop_connections(self) -> None:
        """Close the child's connections to models, which it opens again.

        Requests and answers on them may be lost.
        """
        if self._tunnel is not None:
            await self._tunnel.drop()

    def send_again(self, have: Mapping[str, int] | None = None) -> None:
        """Send what the steward lacks of the child's logs; see `LiveSender.send_again`."""
        if self._live is not None:
            self._live.send_again(have)

    def deliver(self, name: str, data: bytes) -> None:
        """Put a message into the child's inbox."""
        if not messages.INBOX_NAME.fullmatch(name):
            raise InvalidMessage("not the name of a message")
        inbox = self._find(f"{self.order['folder']}/inbox")
        temporary = inbox / f".{name}.new"
        temporary.write_bytes(data)
        temporary.chmod(0o444)
        temporary.rename(inbox / name)

    # Its course.

    async def run(self) -> None:
        """Carry out a new order to its end, and report that."""
        failure = ""
        ran = False
        try:
            launch = await self._prepare()
            self._node.failpoint("node_prepared")
            child = self._child = await self._node.runtime.launch(launch)
            identity = json.dumps(asdict(child.identity))
            self._node.database.note_process(str(self.key), identity)
            if launch.listens:
                await self._serve_models(child)
            ran = await self._wait_go()
            if ran:
                self._node.database.note_released(str(self.key))
                self._node.failpoint("node_released")
                ran = await self._execute(child)
            else:
                child.kill()
        except Exception as error:
            # Whatever goes wrong here is the end of this attempt, and the steward is told.
            failure = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            if self._child is not None and not ran:
                self._child.kill()  # it waits for GO, which will not come
        self.never_ran = not ran and not failure
        self._up.set_result(failure)
        if ran and not failure:
            self._watch_live()
        if self._asked:
            self.stop(kill=self._asked == "kill")
        await self._finish(failure, ran)

    async def _execute(self, child: Child) -> bool:
        """Let the command execute; return False if its init ended while it waited for GO.

        An init that waits ends when the lease expires. The command may then run elsewhere.

        Raises:
            LaunchFailed: the command cannot be executed.
        """
        try:
            await child.release()
        except LaunchFailed:
            if (await child.wait_ended()).kind is not EndKind.NEVER_RAN:
                raise
            return False
        return True

    async def resume(self, child: Child | None, *, released: bool) -> None:
        """Continue an attempt that an earlier program of this node accepted."""
        self._child = child
        ran = released
        failure = ""
        if child is not None and not released:
            # Its gate is gone with the earlier program, so it can never be released.
            child.kill()
        if child is not None and released:
            if self.order["listens"]:
                await self._serve_models(child)
            self._watch_live()
        self.never_ran = not released
        self._up.set_result("")
        await self._finish(failure, ran)

    async def _finish(self, failure: str, ran: bool) -> None:
        child = self._child
        kind = EndKind.LAUNCH_FAILED if failure else EndKind.NEVER_RAN
        error = failure
        if child is not None:
            ending = await child.wait_ended()
            kind = ending.kind if ran else kind
            error = failure or ending.error
            self.fenced = self.fenced or ending.error == LEASE_OVER
            child.retire()
        elif ran:
            ending = self._node.runtime.read_ending(
                self._find(f"{self.order['folder']}/runtime"), int(self.order["attempt"])
            )
            kind, error = ending.kind, ending.error
            self.fenced = self.fenced or ending.error == LEASE_OVER
        # A child that ended by itself before has its own end.
        if self.fenced and kind in (EndKind.LOST, EndKind.STOPPED):
            kind = EndKind.NODE_LOST
        self.over.set()
        if self._checkpoints is not None:
            await self._checkpoints.close()
        if self._tunnel is not None:
            await self._tunnel.close()
        if self._live is not None:
            await self._live.close()
        self._node.failpoint("node_exited")
        sealed = await self._pack_end(kind, error)
        await self._store_end(sealed)
        self._node.failpoint("node_booked_end")
        await self.report(sealed)

    async def _store_end(self, sealed: bytes) -> None:
        """Write the end to the node's database; retry until the disk accepts it."""
        told = False
        while True:
            try:
                self._node.database.note_ended(str(self.key), sealed)
                return
            except StorageFailed as error:
                if not told:
                    self._node.complain(f"{self.key}: {error.message}")
                told = True
                await asyncio.sleep(REPORT_AGAIN_S[-1])

    async def _pack_end(self, kind: EndKind, error: str) -> bytes:
        """Return the encrypted end of the attempt, with its files."""
        left: list[str] = []
        head: dict[str, Any] = {"v": 1, "kind": kind.value, "error": error[:1000], "left": left}
        try:
            files = await self._pack_all(left)
        except (archive.ArchiveRefused, OSError) as problem:
            head["error"] = f"what it left could not be packed: {problem}"
            files = b""
        head["left"] = left[:100]
        head["left_in_all"] = len(left)
        if len(files) <= messages.INLINE:
            return seal(self.secret, messages.encode(head, files))
        head["blob"] = asdict(await self._put_blob(files))
        return seal(self.secret, messages.encode(head))

    async def put_files_again(self) -> bool:
        """Store the files of a stored end again, which the hub has dropped; return whether it has.

        The same files are packed to the same bytes, so the end refers to them as before.
        """
        try:
            files = await self._pack_all([])
        except (archive.ArchiveRefused, OSError) as error:
            self._node.complain(f"{self.key}: what it left cannot be sent again: {error}")
            return False
        await self._put_blob(files)
        return True

    async def _put_blob(self, files: bytes) -> BlobRef:
        """Store the files in the hub; retry until it accepts them."""
        tries = 0
        while True:
            try:
                return await self._node.blobs.put(f"out{self.key.nonce}", self.secret, files)
            except HubUnreachable as error:
                if tries == 0:
                    self._node.complain(
                        f"{self.key}: its files cannot be sent now: {error.message}"
                    )
                await asyncio.sleep(REPORT_AGAIN_S[min(tries, len(REPORT_AGAIN_S) - 1)])
                tries += 1

    async def _pack_all(self, left: list[str]) -> bytes:
        """Return the files that the attempt left; of those that git ignores, the smallest.

        Args: left: receives what is not sent.

        Raises:
            ArchiveRefused, OSError: it cannot be packed.
        """
        base = self.order.get("base")
        if not base:
            return await asyncio.to_thread(self._pack_outputs, left)
        # An archive of this size is sent whole, without asking git.
        with suppress(archive.TooLarge):
            return await asyncio.to_thread(self._pack_outputs, left, most=MOST_IGNORED)
        left.clear()
        workspace = f"{self.order['owner']}/workspace"
        try:
            unsent = await self._node.bases.list_unsent(
                base, self._find(workspace), layered=bool(self.order["layered"])
            )
        except (GitFailed, OSError) as error:
            self._node.complain(f"{self.key}: its ignored files are all sent: {error}")
            unsent = []
        left += [f"{workspace}/{path}" for path in unsent]
        return await asyncio.to_thread(self._pack_outputs, left, frozenset(left))

    def _pack_outputs(
        self,
        left: list[str],
        unsent: frozenset[str] = frozenset(),
        most: int = archive.LARGEST_PACKED,
    ) -> bytes:
        order = self.order
        names = [f"{order['folder']}/{name}" for name in ("full_logs", *OF_THE_END)]
        names += [f"{order['owner']}/workspace", f"{order['owner']}/{AGENT_HOME}"]

        def is_skipped(path: str) -> bool:
            return path in unsent or self._is_own_git(path)

        return archive.pack(self.agents, names, skip=is_skipped, left=left, most=most)

    def _pack_workspace(self) -> bytes:
        """Return the workspace alone, as it is now, while its child runs."""
        name = f"{self.order['owner']}/workspace"
        return archive.pack(self.agents, [name], skip=self._is_own_git, unlocking=False)

    def _is_own_git(self, path: str) -> bool:
        """Return whether this is the workspace's git folder, which names paths of this node."""
        return bool(self.order.get("base")) and path == f"{self.order['owner']}/workspace/.git"

    async def report(self, sealed: bytes) -> None:
        """Report the end until the hub has accepted or refused it."""
        subject = self.key.subject
        value = messages.encode({"state": messages.ENDED, "epoch": self.epoch}, sealed)
        tries = 0
        while True:
            try:
                await self._node.connection.swap(subject, value, self._revision)
                break
            except SwapRefused:
                with suppress(HubUnreachable):
                    stored = await self._node.connection.read(ATTEMPTS, subject)
                    if not await self._is_to_be_told_again(stored):
                        break
            except HubUnreachable:
                pass
            await asyncio.sleep(REPORT_AGAIN_S[min(tries, len(REPORT_AGAIN_S) - 1)])
            tries += 1
        self._node.on_attempt_over(str(self.key))

    async def _is_to_be_told_again(self, stored: Stored | None) -> bool:
        """Find out why the hub refused the end; return whether to report it with a new revision.

        The end stays in the database unless the steward has recorded it or revoked the attempt.
        """
        said: dict[str, Any] = {}
        if stored is not None and stored.data is not None:
            with suppress(InvalidMessage):
                said, _ = messages.decode(stored.data)
        match said.get("state"):
            case messages.ACCEPTED if said.get("epoch") == self.epoch and stored is not None:
                # The hub had lost the key and the steward made it again.
                await self.set_revision(stored.revision)
                return True
            case messages.REVOKED:
                # Another attempt may be under way, and this one no longer counts.
                self._node.complain(f"{self.key}: its end came too late and was refused")
                self.forget()
            case None if stored is not None and stored.deleted:
                self.forget()  # the steward has recorded it, and let go
        # Otherwise it is taken, or the hub lost it, and the steward asks for it.
        return False

    def forget(self) -> None:
        """Remove the entry and the files: the steward has recorded the end."""
        self._node.database.forget(str(self.key))
        if self.folder.exists():
            remove_tree(self.folder)

    async def set_revision(self, revision: int) -> None:
        """Use another revision: the hub lost the key, and the steward wrote it again."""
        self._revision = revision
        # A full disk is no reason to keep an end back: the hub has the revision as well.
        with suppress(StorageFailed):
            self._node.database.note_revision(str(self.key), revision)

    async def _wait_go(self) -> bool:
        """Wait for `go`; return False if it did not come in time, or a stop came first."""
        try:
            async with asyncio.timeout(self._node.lease_s):
                await self._go.wait()
        except TimeoutError:
            return False
        return not self._asked

    async def _serve_models(self, child: Child) -> None:
        listener = await child.take_listener()
        if listener is not None:
            self._tunnel = NodeTunnel(self._node.connection, self.key, self.secret, listener)
            self._tunnel.start()

    def _watch_live(self) -> None:
        """Send logs and status to the steward as they are written, and make checkpoints."""
        folder = self._find(str(self.order["folder"]))
        self._live = LiveSender(
            self._node.connection, self.key, self.secret, folder, self._node.watches
        )
        self._live.start()
        if every_ms := int(self.order.get("checkpoint_ms", 0)):
            self._checkpoints = CheckpointSender(
                self._node.connection,
                self.key,
                self.secret,
                self._pack_workspace,
                self._node.complain,
            )
            self._checkpoints.start(every_ms / 1000)

    # Its files.

    async def _prepare(self) -> LaunchOrder:
        """Put the files in place and return the order for the runtime of this machine.

        Raises:
            LaunchFailed, StorageFailed, ArchiveRefused, InvalidMessage, OSError: it failed.
        """
        order = self.order
        if self.folder.exists():
            remove_tree(self.folder)
        make_folder(self.folder.parent, mode=0o711)
        make_folder(self.folder, mode=0o711)
        make_folder(self.agents, mode=0o711)
        names = {str(order["folder"]), str(order["owner"])}
        for name in names:
            if "/" in name or name in ("", ".", ".."):
                raise InvalidMessage("not the name of a folder")
        allowed = [f"{name}/{part}" for name in names for part in INPUTS]
        await asyncio.to_thread(archive.unpack, self._files, self.agents, allowed)
        self._files = b""
        folder = self._find(str(order["folder"]))
        writable = tuple(map(self._find, order.get("writable", [f"{order['folder']}/full_logs"])))
        _make_missing((folder / "runtime", folder / "workspace", *writable))
        contexts = await self._fetch_contexts()
        boundary = messages.boundary_from_json(order["boundary"])
        workspace = self._find(f"{order['owner']}/workspace")
        uid = None
        if boundary.mode == ISOLATED:
            uid = self._node.runtime.users(f"{self.key.nonce}/{workspace.parent.name}")
        below: tuple[Path, ...] = ()
        lent: tuple[Path, ...] = ()
        if order.get("base"):
            below, lent = await self._node.bases.lay_out(
                order["base"], self._fetch, workspace, uid, layered=bool(order["layered"])
            )
        if uid is not None:
            for each in (workspace, *writable):
                await asyncio.to_thread(chown_tree, each, uid)
        here = str(self.agents)
        there = str(order["from"])

        def translate(text: str) -> str:
            return text.replace(there, here)

        own = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        given = {name: translate(value) for name, value in order["environment"].items()}
        views = [
            (translate(place), contexts.get(path) or translate(path))
            for place, path in order["views"]
        ]
        if boundary.mode == ISOLATED:
            # A context is also seen at the path that it has at the steward.
            views += [(path, place) for path, place in contexts.items()]
        return LaunchOrder(
            task=TaskId(self.key.nonce),
            subagent=SubagentId(str(order["subagent"])),
            attempt=int(order["attempt"]),
            argv=tuple(map(translate, order["argv"])),
            environment=given | own,
            workspace=workspace,
            runtime_folder=folder / "runtime",
            timeout_ms=int(order["timeout_ms"]),
            graces_ms=(int(order["graces_ms"][0]), int(order["graces_ms"][1])),
            output_limit_bytes=int(order["output_limit_bytes"]),
            boundary=boundary,
            writable=writable,
            readable=tuple(self._find(name) for name in order["readable"]),
            lent=(*lent, *map(Path, contexts.values())) if boundary.mode == ISOLATED else lent,
            hidden=(self._node.root, *map(self._find, order.get("hidden", ()))),
            listens=bool(order["listens"]),
            views=tuple(views),
            team=bool(order["team"]),
            read_only=bool(order.get("read_only", False)),
            below=below,
            lease=self._node.lease_file,
            variables={name: str(value) for name, value in order.get("variables", {}).items()},
            redacted=tuple((text, instead) for text, instead in order.get("redacted", ())),
            stdin=folder / "runtime" / os.path.basename(order["stdin"])
            if order.get("stdin")
            else None,
        )

    async def _fetch(self, ref: Mapping[str, Any]) -> bytes:
        """Return a file of the steward from the hub.

        Raises:
            LaunchFailed: it is not in the hub.
        """
        key = bytes.fromhex(str(ref["key"]))
        try:
            blob = BlobRef.from_json(ref)
            return await self._node.blobs.get(blob, key, archive.LARGEST_PACKED)
        except (BlobMissing, HubUnreachable) as error:
            raise LaunchFailed(f"its files could not be fetched: {error.message}") from error

    async def _fetch_contexts(self) -> dict[str, str]:
        """Return the place of each context path on this node."""
        places: dict[str, str] = {}
        for number, each in enumerate(self.order["contexts"]):
            folder = self._node.root / "contexts" / BlobRef.from_json(each["blob"]).sha256
            if not folder.exists():
                data = await self._fetch(each["blob"])
                making = self.folder / f"context{number}"
                make_folder(making, mode=0o755)
                await asyncio.to_thread(archive.unpack, data, making, ["it"])
                make_folder(folder.parent, mode=0o711)
                try:
                    making.rename(folder)
                except OSError:
                    if not folder.exists():  # else another attempt fetched the same
                        raise
            places[str(each["path"])] = str(folder / "it")
        return places


def _make_missing(folders: Sequence[Path]) -> None:
    for folder in folders:
        if not os.path.lexists(folder):
            make_folder(folder)


def read_process(entry: AcceptedOrder, runtime: ProcessRuntime, root: Path) -> Child | None:
    """Return the living process of an accepted order, or None."""
    if not entry.identity:
        return None
    order = json.loads(entry.head)
    nonce = AttemptKey.parse(entry.key).nonce
    folder = root / "tasks" / nonce / "agents" / str(order["folder"]) / "runtime"
    return runtime.adopt(ProcessIdentity(**json.loads(entry.identity)), folder)
