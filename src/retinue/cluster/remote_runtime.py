"""Runtime whose children run on nodes.

Before `wait_ended` returns, the files of the child are copied to the steward's own folder. So
recovery, joining, publishing, the page and `continue` work as for a local child.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from retinue.cluster import archive, messages
from retinue.cluster.archive import ArchiveRefused
from retinue.cluster.base_packs import StewardPacks
from retinue.cluster.blob_store import BlobGone, BlobMissing, BlobRef
from retinue.cluster.checkpoint import fetch_checkpoint
from retinue.cluster.folder_watches import FolderWatches
from retinue.cluster.hub_connection import HubUnreachable
from retinue.cluster.invitation import make_identity
from retinue.cluster.live_copy import LiveReceiver
from retinue.cluster.messages import AttemptKey, NodeRecord
from retinue.cluster.node_attempt import OF_THE_END
from retinue.cluster.sealing import NotSealed, derive_key, seal_for, unseal
from retinue.cluster.steward_link import EndClaim, RemoteAttempt, StewardLink
from retinue.cluster.tunnel import StewardTunnel
from retinue.core.errors import LaunchFailed, NodeUnavailable, StorageFailed
from retinue.core.placement import PROTOCOL
from retinue.core.result import Ending, EndKind
from retinue.files import make_folder
from retinue.inotify import CHANGED
from retinue.ports import LaunchOrder, ProcessIdentity
from retinue.runtime.child_process import read_exit_record
from retinue.settings import PASSED_ON
from retinue.workspaces.agent_folder import AGENT_HOME
from retinue.workspaces.git.git_command import Git
from retinue.workspaces.git.task_repository import GIT, REPOSITORY, chown_tree
from retinue.workspaces.owned_files import remove_tree

ORDER_S = 5.0
LARGEST_MESSAGE = 700_000
MOST_NAMED = 5  # files in a warning
LONGEST_WHY = 200  # of a node's reason to refuse an order
MOST_NEVER_RAN = 10  # attempts of one subagent that cost nothing; a node could go on for ever
# In an agent's folder while files of a node are laid out, and in it the workspace they replace.
UNPACKED, OLD = ".from-node", "old"


class RemoteChild:
    """The steward's handle of a child on a node."""

    def __init__(
        self,
        link: StewardLink,
        attempt: RemoteAttempt,
        runtime_folder: Path,
        workspace: Path,
        place: str = "",
        packed: frozenset[str] = frozenset(),
        may_start_anew: Callable[[], bool] = lambda: True,
    ) -> None:
        """Args:
        place: as it was recorded, for an adopted child.
        packed: names of the messages that went along with the order.
        may_start_anew: asked when its node says that it never ran.
        """
        self._place = place
        self._packed = packed
        self._may_start_anew = may_start_anew
        self._link = link
        self._attempt = attempt
        self._folder = runtime_folder
        self._workspace = workspace
        self._ending: asyncio.Task[Ending] | None = None
        self._live = LiveReceiver(
            link.connection,
            attempt.key,
            attempt.secret,
            runtime_folder.parent,
            self._ask_for_missing,
        )
        self._asking = False
        self._tunnel: StewardTunnel | None = None
        self._inbox: InboxWatch | None = None
        self._released = False
        self._over = False

    @property
    def identity(self) -> ProcessIdentity:
        name = self._link.get_name(self._attempt.key.node)
        place = self._place or f"{name}/{self._attempt.key}"
        return ProcessIdentity(boot_id="", pid=0, start_ticks=0, place=place)

    async def start(self, *, deliver_all: bool = False) -> None:
        """Begin to copy what the child writes and to deliver messages.

        Args:
            deliver_all: deliver the messages again that an earlier steward may have delivered.
        """
        await self._link.wait_ready()
        await self._live.start()
        if self._over:
            await self._live.close()
            return
        self._attempt.on_reconnect = self._ask_for_missing
        if self._place:
            self._live.take_up()
            self._ask_for_missing()
        inbox = self._folder.parent / "inbox"
        if inbox.is_dir():
            packed = frozenset() if deliver_all else self._packed
            self._inbox = InboxWatch(inbox, packed, self._deliver, self._link.watches)
            self._inbox.start()

    def _deliver(self, name: str, data: bytes) -> None:
        self._link.tell_soon(self._attempt, {"word": "deliver", "name": name}, data)

    def _ask_for_missing(self) -> None:
        """Let the node send again what the copy of the child's files lacks."""
        if not self._asking:
            self._asking = True
            self._link.run_soon(self._send_sizes())

    async def _send_sizes(self) -> None:
        try:
            have = self._live.list_sizes()
            await self._link.tell(self._attempt, {"word": "live", "have": have})
        finally:
            self._asking = False

    async def take_listener(self) -> socket.socket | None:
        self._tunnel = StewardTunnel(self._link.connection, self._attempt.key, self._attempt.secret)
        listener = await self._tunnel.open()
        self._attempt.reaches_models = True
        if self._place:
            # Connections to an earlier steward are dead, and the child cannot notice it.
            self._link.tell_soon(self._attempt, {"word": "reconnect"})
        return listener

    async def release(self) -> None:
        self._link.failpoint("before_go")
        answer = await self._link.tell(self._attempt, {"word": "go"})
        # Without an answer its node is lost, and its end says so. One that never ran starts anew.
        if not answer or answer.get("never_ran"):
            return
        self._released = True
        if answer.get("failed"):
            raise LaunchFailed(str(answer["failed"])[:1000])

    def resume_adopted(self) -> None:
        """Send `go` for an adopted child: an earlier steward may have ended before it did.

        The child may run already, or its node may have ended it before; then it never ran.
        """
        self._link.tell_soon(self._attempt, {"word": "go"})
        self._link.run_soon(self.start(deliver_all=True))

    def stop(self) -> None:
        self._link.tell_soon(self._attempt, {"word": "stop"})

    def kill(self) -> None:
        self._link.tell_soon(self._attempt, {"word": "kill"})

    async def wait_ended(self) -> Ending:
        if self._ending is None:
            self._ending = asyncio.create_task(self._wait())
        return await asyncio.shield(self._ending)

    def retire(self) -> None:
        self._link.forget(self._attempt)

    async def _wait(self) -> Ending:
        claim = await self._attempt.wait()
        self._over = True
        await self._live.close()
        if self._inbox is not None:
            self._inbox.close()
        if self._tunnel is not None:
            await self._tunnel.close()
        if claim is None:
            name = self._link.get_name(self._attempt.key.node)
            note = await self._lay_out_checkpoint()
            error = f"the node {name} was lost"
            return Ending(kind=EndKind.NODE_LOST, error=error, notes=(note,) if note else ())
        self._link.failpoint("remote_ended")
        ending = await self._take_in(claim)
        self._link.failpoint("laid_out")
        return ending

    async def _take_in(self, claim: EndClaim) -> Ending:
        """Put the child's files in place, and return how it ended."""
        kind = str(claim.head.get("kind"))
        error = str(claim.head.get("error", ""))[:1000]
        if kind == EndKind.NEVER_RAN and not self._released:
            if self._may_start_anew():
                return Ending(kind=EndKind.NEVER_RAN)
            error = f"nodes accepted it {MOST_NEVER_RAN} times and never ran it"
            return Ending(kind=EndKind.LOST, error=error)
        try:
            files = claim.files
            if claim.head.get("blob"):
                files = await self._fetch(claim.head["blob"])
            if files:
                await asyncio.to_thread(self._lay_out, files)
        except (BlobMissing, ValueError, KeyError, TypeError) as problem:
            said = getattr(problem, "message", "") or str(problem)
            return Ending(
                kind=EndKind.LOST, error=f"what its node returned was refused: {said}"[:1000]
            )
        except (OSError, StorageFailed) as problem:
            return Ending(kind=EndKind.LOST, error=f"its files could not be stored: {problem}")
        if kind == EndKind.NODE_LOST:
            name = self._link.get_name(self._attempt.key.node)
            return Ending(kind=EndKind.NODE_LOST, error=f"the node {name} lost its lease")
        found = read_exit_record(self._folder)
        if kind == EndKind.LAUNCH_FAILED:
            return found or Ending(kind=EndKind.LAUNCH_FAILED, error=error)
        if found is None:
            return Ending(kind=EndKind.LOST, error=error or "disappeared without a record")
        note = _describe_left(claim.head.get("left"), claim.head.get("left_in_all"))
        return replace(found, notes=(note,)) if note else found

    async def _lay_out_checkpoint(self) -> str:
        """Restore the last checkpoint of the workspace; return a warning for the result."""
        try:
            files, at = await fetch_checkpoint(
                self._link.connection,
                self._attempt.key,
                self._attempt.secret,
                lambda: asyncio.sleep(0.5),
            )
            if not files:
                return ""
            await asyncio.to_thread(self._lay_out, files)
        except (BlobMissing, ValueError, KeyError, TypeError, OSError, StorageFailed) as problem:
            said = getattr(problem, "message", "") or str(problem)
            return f"the last checkpoint of its workspace could not be used: {said}"[:500]
        return f"its workspace is the checkpoint of {at}"

    async def _fetch(self, document: dict[str, Any]) -> bytes:
        """Return the files of an end; try until the hub answers.

        Raises:
            BlobMissing: the hub does not have them, and the node does not bring them again.
        """
        ref = BlobRef.from_json(document)
        if not ref.name.startswith(f"{self._attempt.key.node}."):
            raise BlobMissing("a file of another member")
        brought = False
        while True:
            try:
                return await self._link.blobs.get(ref, self._attempt.secret, archive.LARGEST_PACKED)
            except HubUnreachable:
                await asyncio.sleep(0.5)
            except BlobGone:
                # The hub keeps files for a week, and less where newer ones need the room.
                if brought or not await self._link.ask_for_files(self._attempt):
                    raise
                brought = True

    def _lay_out(self, files: bytes) -> None:
        """Replace the steward's own copies by the files from the node.

        It can be repeated: after a crash the next steward does it again.
        """
        agent = self._folder.parent
        owner = self._workspace.parent
        making = agent / UNPACKED
        _put_back(making, self._workspace)
        make_folder(making)
        try:
            allowed = [f"{agent.name}/{name}" for name in ("full_logs", *OF_THE_END)]
            allowed += [f"{owner.name}/workspace", f"{owner.name}/{AGENT_HOME}"]
            archive.unpack(files, making, allowed)
            status = os.lstat(self._workspace)
            new = making / owner.name / "workspace"
            if new.is_dir() and not new.is_symlink():
                if (self._workspace / GIT).exists() and not (new / GIT).exists():
                    os.rename(self._workspace / GIT, new / GIT)
                _give_to_owner(new, status.st_uid)
                os.chmod(new, status.st_mode & 0o777)
                os.rename(self._workspace, making / OLD)
                self._link.failpoint("workspace_moved")
                os.rename(new, self._workspace)
            _replace_folder(agent / "full_logs", making / agent.name / "full_logs")
            _replace_folder(owner / AGENT_HOME, making / owner.name / AGENT_HOME)
            for name in OF_THE_END:
                # What a link of a hostile node leads to must not become an answer.
                if is_own_file(making / agent.name / name):
                    os.replace(making / agent.name / name, agent / name)
        finally:
            remove_tree(making)


def _replace_folder(place: Path, new: Path) -> None:
    """Replace our folder by the one from the node, if that exists and is not a link."""
    if new.is_dir() and not new.is_symlink():
        if os.path.lexists(place):
            _give_to_owner(new, os.lstat(place).st_uid)
            os.rename(place, new.with_name(f"old-{new.name}"))
        os.rename(new, place)


def _give_to_owner(folder: Path, uid: int) -> None:
    """Make the child's user the owner of an unpacked folder, if the child has its own user."""
    # An ordinary user may not change owners, and has files with a group of another number.
    if uid != os.geteuid():
        chown_tree(folder, uid)


def is_own_file(path: Path) -> bool:
    """Return whether there is a file of its own, and not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _describe_left(names: object, in_all: object) -> str:
    """Return a warning about files that a node did not send, such as sockets; else empty.

    Args: in_all: how many there are; the names may be the first of them.
    """
    if not isinstance(names, list) or not names:
        return ""
    count = max(len(names), in_all) if isinstance(in_all, int) else len(names)
    shown = ", ".join(f"{str(name)[:100]!a}" for name in names[:MOST_NAMED])
    more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
    return f"not sent by its node: {shown}{more}"


def _put_back(making: Path, workspace: Path) -> None:
    """Undo an unfinished replacement of files by a steward that was killed."""
    if not os.path.lexists(workspace) and os.path.lexists(making / OLD):
        os.rename(making / OLD, workspace)
    history = making / workspace.parent.name / "workspace" / GIT
    if os.path.lexists(history) and not os.path.lexists(workspace / GIT):
        os.rename(history, workspace / GIT)
    if os.path.lexists(making):
        remove_tree(making)


def _list_below(agents: Path, paths: Sequence[Path]) -> list[str]:
    """Return those of the paths that are below the folder of agents, relative to it."""
    return [str(path.relative_to(agents)) for path in paths if path.is_relative_to(agents)]


def _list_names(folder: Path) -> frozenset[str]:
    """Return the names in a folder; none if there is no such folder."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


class InboxWatch:
    """Watch of an attempt's inbox: each new message goes to the node."""

    def __init__(
        self,
        folder: Path,
        known: Collection[str],
        deliver: Callable[[str, bytes], None],
        watches: FolderWatches,
    ) -> None:
        """Args: known: names of the messages that the node has."""
        self._folder = folder
        self._deliver = deliver
        self._known = set(known)
        self._watches = watches
        self._watch: int | None = None

    def start(self) -> None:
        with suppress(OSError):
            self._watch = self._watches.watch(str(self._folder), CHANGED, self._deliver_new)
        self._deliver_new()  # one may have come before the watch

    def close(self) -> None:
        if self._watch is not None:
            self._watches.forget(self._watch, self._deliver_new)
            self._watch = None

    def _deliver_new(self) -> None:
        for name in sorted(_list_names(self._folder) - self._known):
            # One that cannot be read now is read at the next change. An error would keep other
            # attempts, whose changes were read with these, from being told.
            if messages.INBOX_NAME.fullmatch(name):
                with suppress(OSError):
                    data = (self._folder / name).read_bytes()
                    self._known.add(name)
                    self._deliver(name, data)


class RemoteRuntime:
    """Launches attempts on nodes."""

    def __init__(self, link: StewardLink) -> None:
        self._link = link
        self._packs = StewardPacks(Git(), link.blobs, link.secret)
        self._never_ran: Counter[tuple[str, str]] = Counter()  # by task and subagent

    async def launch(self, order: LaunchOrder) -> RemoteChild:
        """Have the reserved node accept the order; nothing is executed before `release`.

        Raises:
            NodeUnavailable: it did not accept, or the hub cannot be used now.
            LaunchFailed: the order cannot be given to that node at all.
        """
        accepted = False
        try:
            child = await self._launch_on_node(order, order.node)
            accepted = True
        except HubUnreachable as error:
            why = f"the hub cannot be used: {error.message}"
            self._link.note_refused(order.node, why)
            raise NodeUnavailable(why) from error
        except NodeUnavailable as error:
            self._link.note_refused(order.node, error.message)
            raise
        finally:
            # The slot of an accepted one is given back with `retire`.
            if not accepted:
                self._link.release(order.node)
        return child

    def adopt(
        self, identity: ProcessIdentity, runtime_folder: Path, workspace: Path
    ) -> RemoteChild:
        """Take over an attempt of an earlier steward, ended or not."""
        attempt = self._link.follow(AttemptKey.parse(identity.place.rpartition("/")[2]))
        place = identity.place
        child = RemoteChild(self._link, attempt, runtime_folder, workspace, place)
        child.resume_adopted()
        return child

    async def _launch_on_node(self, order: LaunchOrder, node: str) -> RemoteChild:
        """Return the child that this node has accepted.

        Raises:
            NodeUnavailable: it did not accept it.
            HubUnreachable: the hub cannot be used now.
            LaunchFailed: the order cannot be given to that node at all.
        """
        record = self._link.get_record(node)
        if record is None or not record.box:
            raise NodeUnavailable(f"{self._link.get_name(node)} is not known well enough")
        if order.below and not record.layers:
            raise LaunchFailed(
                f"{record.name} cannot lay a workspace over a shared checkout",
                hint="name nodes that can: --on layers",
            )
        key = AttemptKey(
            node=node, steward=self._link.steward, nonce=make_identity() + make_identity()
        )
        # The offer is a round trip to the hub, so the files are packed meanwhile.
        offering = asyncio.create_task(self._link.offer(key))
        try:
            packed = _list_names(order.runtime_folder.parent / "inbox")
            head, payload = await self._make_message(order, key, record)
        except BaseException:
            self._link.run_soon(self._take_back(offering))
            raise
        attempt = await offering
        secret = attempt.secret
        self._link.failpoint("offered")
        message = messages.encode(head | {"revision": attempt.revision}, payload)
        why = "it did not answer"
        try:
            sealed = seal_for(bytes.fromhex(record.box), message)
            answer = await self._link.connection.request(f"node.{node}.order", sealed, ORDER_S)
            said, _ = messages.decode(unseal(secret, answer))
            if said.get("yes"):
                attempt.revision = int(said["revision"])
                attempt.accepted = True
            else:
                why = f"{str(said.get('no'))[:LONGEST_WHY]!a}"
        except (HubUnreachable, NotSealed, ValueError, KeyError, TypeError):
            pass  # whether it accepted is found out next
        if not attempt.accepted and await self._link.withdraw(attempt):
            raise NodeUnavailable(f"{record.name} did not accept it: {why}")
        self._link.failpoint("accepted")
        child = RemoteChild(
            self._link,
            attempt,
            order.runtime_folder,
            order.workspace,
            packed=packed,
            may_start_anew=partial(self._count_never_ran, order),
        )
        # The node has accepted it: a hub that is away now only delays the live copy.
        with suppress(HubUnreachable):
            await child.start()
        return child

    async def _make_message(
        self, order: LaunchOrder, key: AttemptKey, record: NodeRecord
    ) -> tuple[dict[str, Any], bytes]:
        """Return the order for a node as head and payload; a large payload is put into the hub.

        Raises:
            LaunchFailed: the files cannot be packed.
            HubUnreachable: the hub did not take them.
        """
        secret = self._link.derive_secret(key)
        payload = await self._pack(order, record.bases)
        head: dict[str, Any] = {
            "v": PROTOCOL,
            "key": str(key),
            "secret": secret.hex(),
            "epoch": record.epoch,
            "memory_mb": order.boundary.limits.memory_mb if record.memory_mb > 0 else 0,
        }
        if len(payload) > LARGEST_MESSAGE:
            head["blob"] = asdict(await self._link.blobs.put(f"in{key.nonce}", secret, payload))
            payload = b""
        return head, payload

    async def _take_back(self, offering: asyncio.Task[RemoteAttempt]) -> None:
        """Revoke an offer whose files could not be sent."""
        with suppress(HubUnreachable):
            await self._link.withdraw(await offering)

    def _count_never_ran(self, order: LaunchOrder) -> bool:
        """Return whether an attempt that never ran may be started again elsewhere."""
        self._never_ran[order.task, order.subagent] += 1
        return self._never_ran[order.task, order.subagent] < MOST_NEVER_RAN

    async def _pack(self, order: LaunchOrder, has: Sequence[str]) -> bytes:
        """Return the order with the files of the attempt.

        Raises:
            LaunchFailed: the files cannot be packed.
            HubUnreachable: the hub did not take them.
        """
        agents = order.runtime_folder.parents[1]
        folder = order.runtime_folder.parent.name
        owner = order.workspace.parent.name
        commit = order.below[0].parent.name if order.below else order.base
        base = None
        if commit:
            repository = agents.parent / REPOSITORY
            base = await self._packs.offer(repository, order.repository, commit, has)
        document: dict[str, Any] = {
            "task": order.task,
            "subagent": order.subagent,
            "attempt": order.attempt,
            "argv": list(order.argv),
            # What depends on the machine is the node's own.
            "environment": {n: v for n, v in order.environment.items() if n not in PASSED_ON},
            "from": str(agents),
            "folder": folder,
            "owner": owner,
            "timeout_ms": order.timeout_ms,
            "graces_ms": list(order.graces_ms),
            "output_limit_bytes": order.output_limit_bytes,
            "boundary": messages.boundary_to_json(order.boundary),
            "readable": _list_below(agents, order.readable),
            "writable": _list_below(agents, order.writable),
            "hidden": _list_below(agents, order.hidden),
            "views": [list(view) for view in order.views],
            "contexts": await self._pack_contexts(order),
            "listens": order.listens,
            "team": order.team,
            "read_only": order.read_only,
            "variables": dict(order.variables),
            "redacted": [list(pair) for pair in order.redacted],
            "stdin": order.stdin.name if order.stdin is not None else "",
            "base": base,
            "layered": bool(order.below),
            "checkpoint_ms": order.checkpoint_ms,
        }
        git = f"{owner}/workspace/{GIT}"
        names = [f"{folder}/{name}" for name in ("contract.json", "runtime/brief.txt")]
        names += [f"{folder}/{name}" for name in ("runtime/session.jsonl", "context", "inbox")]
        names += [f"{folder}/runtime/{order.stdin.name}"] if order.stdin is not None else []
        names += [f"{owner}/workspace", f"{owner}/{AGENT_HOME}"]
        names += [f"{folder}/workspace"] if folder != owner else []
        try:
            files = await asyncio.to_thread(
                archive.pack, agents, names, skip=lambda path: bool(commit) and path == git
            )
        except (ArchiveRefused, OSError) as error:
            raise LaunchFailed(f"its files cannot be sent: {error}") from error
        return messages.encode(document, files)

    async def _pack_contexts(self, order: LaunchOrder) -> list[dict[str, Any]]:
        """Store the context paths in the hub, named by their content; return the references."""
        hidden = {str(path) for path in order.hidden}
        found: list[dict[str, Any]] = []
        for path in order.contexts:
            name = os.path.basename(path.rstrip("/"))
            above = os.path.dirname(path.rstrip("/"))

            def is_hidden(inside: str, above: str = above) -> bool:
                return f"{above}/{inside}" in hidden

            try:
                data = await asyncio.to_thread(
                    archive.pack_as,
                    Path(above),
                    name,
                    "it",
                    skip=is_hidden,
                    identity=order.identities.get(path),
                )
            except (ArchiveRefused, OSError) as error:
                raise LaunchFailed(f"{path} cannot be sent to a node: {error}") from error
            key = derive_key(self._link.secret, f"context {path}")
            digest = await asyncio.to_thread(archive.digest, data, key)
            ref = await self._link.blobs.refer(f"context{digest}", data)
            if not await self._link.blobs.has(ref):
                await self._link.blobs.put(f"context{digest}", key, data)
            found.append({"path": path, "blob": asdict(ref) | {"key": key.hex()}})
        return found
