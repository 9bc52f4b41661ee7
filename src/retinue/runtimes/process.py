"""A foreign command as a process of this machine, under a first process of its own.

The steward is one thread and never forks: it asks a fork server, whose clone,
alone in new namespaces, is a direct child of the steward. From then on only its
end is watched, or its word that it is free; how it went is read from the record
it leaves.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from retinue.child import landlock, seccomp
from retinue.clock import boot_id
from retinue.domain.boundary import INHERITED, ISOLATED, Boundary
from retinue.domain.ending import Ending
from retinue.domain.errors import LaunchFailed
from retinue.domain.ids import SubagentId, TaskId
from retinue.ports import LaunchOrder, ProcessIdentity
from retinue.runtimes import probe, trial
from retinue.runtimes.children import RECORD, ProcessChild, lives, lost, recorded, take_up
from retinue.runtimes.forkserver import COMMANDS, INTERPRETER, TEAMS, ForkServer
from retinue.runtimes.fresh import start_fresh
from retinue.runtimes.gate import LAUNCH_SECONDS, Gate, NoNamespaces
from retinue.runtimes.leaving import LeavingChild
from retinue.runtimes.orders import translated
from retinue.runtimes.staying import StayingChild

Containment = Literal["pid-namespace", "subreaper"]
REFUSED = ("isolation failed", trial.OTHERWISE)  # what is not to be had here, now or later
NOBODY = (errno.ESRCH, errno.EINVAL, errno.ENOENT)  # no such process, or a mere thread

_HINTS = {
    errno.EMFILE: "wait for children to end, or raise the limit of open files",
    errno.ENFILE: "wait for children to end, or raise the limit of open files",
    errno.EAGAIN: "wait for children to end, or raise the limit of processes",
    errno.ENOMEM: "wait for children to end, then try again",
}


class ProcessRuntime:
    """Commands run as children of this process; whatever they start ends with them."""

    def __init__(self, *, containment: Containment | None = None) -> None:
        self._containment = containment
        self._server = ForkServer(LAUNCH_SECONDS, COMMANDS)
        self._teams = ForkServer(LAUNCH_SECONDS, TEAMS)
        self.isolation: probe.Seen | None = None  # once a child has seen it
        self._layers: dict[Path, str | None] = {}  # why they cannot be had there
        self._trying = asyncio.Lock()

    def unavailable(self) -> str | None:
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            return "needs Linux 5.4 or newer, for pidfds"
        if not os.access(INTERPRETER, os.X_OK):
            return f"the Python interpreter {INTERPRETER} cannot be executed"
        return None

    async def warm(self) -> None:
        """The next launch finds everything ready."""
        await self._server.warm()

    def expect_team(self) -> None:
        """What teams are cloned from is started; a launch waits for it, and tells how it failed."""
        self._teams.expect()

    async def containment(self) -> Containment:
        """What keeps a command's processes together here; found out by trying, once."""
        if self._containment is None:
            with suppress(LaunchFailed):
                await self._try(Boundary(mode=INHERITED), ("/bin/true",))
        return self._containment or "subreaper"

    async def isolation_missing(self, behind: Sequence[str] = ()) -> str | None:
        """Why children cannot be isolated here, or None.

        Found out by isolating one and asking it, until that has succeeded once. What there
        is behind a launcher only the launcher knows, so all that is asked is whether there is one.
        """
        if behind:
            return None if shutil.which(behind[0]) else f"the launcher {behind[0]!a} is not there"
        if self.isolation is not None:
            return None
        if not seccomp.available():
            return "system calls of this machine are unknown"
        if not landlock.version():
            return "the kernel has no Landlock"
        try:
            seen = probe.read(await self._try(Boundary(mode=ISOLATED), probe.COMMAND))
        except LaunchFailed as error:
            return error.message
        except ValueError as fault:
            return str(fault)
        if not seen.complete:
            return "a child that was isolated on trial kept a way to gain privileges"
        self.isolation = seen
        return None

    async def layers_missing(self, folder: Path) -> str | None:
        """Why no workspace in that folder can share the files it does not change, or None.

        Found out by a child on trial that changes and removes some, once.
        """
        if missing := await self.isolation_missing():
            return missing
        async with self._trying:
            if folder not in self._layers:
                found = await self._try_layers(folder)
                if found is not None and not found.startswith(REFUSED):
                    return found  # a full disk, say; the next one may have more luck
                self._layers[folder] = found
        return self._layers[folder]

    async def _try_layers(self, folder: Path) -> str | None:
        try:
            with tempfile.TemporaryDirectory(prefix=trial.PREFIX, dir=folder) as place:
                order = _order_of_nobody(Path(place))
                await self._run(replace(order, **trial.lay(Path(place))))
                return trial.judge(Path(place))
        except (LaunchFailed, OSError) as error:
            return str(error)

    def close(self) -> None:
        """The fork servers are gone; children are not touched."""
        self._server.close()
        self._teams.close()

    async def launch(self, order: LaunchOrder) -> ProcessChild:
        """A process waits at its gate for this attempt.

        Raises:
            LaunchFailed: no process exists, and nothing is left of the attempt to make one.
        """
        _forget_record(order.runtime_folder)
        try:
            if order.boundary.launch_prefix:
                return await self._launch_behind_prefix(order)
            return await self._launch_here(order)
        except (OSError, ValueError) as fault:
            raise launch_failed(fault) from fault

    async def _launch_here(self, order: LaunchOrder) -> ProcessChild:
        try:
            return await self._launch(order, self._containment != "subreaper")
        except NoNamespaces:
            if self._containment is not None or order.boundary.mode == ISOLATED:
                raise
            self._containment = "subreaper"
            return await self._launch(order, False)

    async def _launch(self, order: LaunchOrder, contained: bool) -> ProcessChild:
        isolated = order.boundary.mode == ISOLATED
        if isolated and not contained:
            raise NoNamespaces("isolation needs namespaces, and there are none")
        server, folder = self._teams if order.team else self._server, order.runtime_folder
        # Who has built a boundary, or a loopback, cannot take it down again.
        stays = order.lets_go and contained and not (isolated or order.listens or order.team)
        init, early = await server.start(translated(order, contained, stays=stays))
        if contained:
            self._containment = "pid-namespace"
        if stays:
            return StayingChild(init, folder, server.inits, early)
        gate = Gate(init.control, early)
        ahead = partial(server.make_ahead, init.namespaces) if isolated else lambda: None
        if order.lets_go and not order.below:  # layers can be mounted again only once they are free
            return LeavingChild(init, folder, server.inits, gate, then=ahead)
        return ProcessChild(init.identity, init.pidfd, folder, gate, then=ahead)

    async def _launch_behind_prefix(self, order: LaunchOrder) -> ProcessChild:
        """What there is behind a launcher only the launcher knows: it is asked each time."""
        program, server = (TEAMS, self._teams) if order.team else (COMMANDS, self._server)
        server.require_same()
        argv = [*order.boundary.launch_prefix, *program.argv("alone")]
        try:
            met = await start_fresh(argv, translated(order, contained=True))
        except NoNamespaces:
            if order.boundary.mode == ISOLATED:
                raise
            met = await start_fresh(argv, translated(order, contained=False))
        pid, gate, launcher = met
        return take_up(pid, gate, order.runtime_folder, launcher)

    async def _try(self, boundary: Boundary, argv: tuple[str, ...]) -> str:
        """What a command behind this boundary printed.

        Raises:
            LaunchFailed: it could not be run, or did not end well.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="retinue-") as folder:
                order = _order_of_nobody(Path(folder))
                await self._run(replace(order, boundary=boundary, argv=argv))
                return (order.runtime_folder / "stdout.log").read_text()
        except OSError as fault:  # a full disk, say, or no descriptor
            raise LaunchFailed(f"no child can be tried: {fault}") from fault

    async def _run(self, order: LaunchOrder) -> None:
        """Raises:
        LaunchFailed: it could not be run, or did not end well.
        """
        child = await self.launch(order)
        try:
            await child.release()
        finally:
            ending = await child.ended()
        if not ending.clean:
            raise LaunchFailed(ending.describe())

    def adopt(self, identity: ProcessIdentity, runtime_folder: Path) -> ProcessChild | None:
        """The living process of an earlier steward, by boot, number and start; else None."""
        if identity.boot_id != boot_id():
            return None
        try:
            pidfd = os.pidfd_open(identity.pid)
        except OSError as fault:
            if fault.errno in NOBODY:
                return None
            raise
        if not lives(identity):  # it lived before we held it: who still does is whom we hold
            os.close(pidfd)
            return None
        return ProcessChild(identity, pidfd, runtime_folder)

    def ending(self, runtime_folder: Path, attempt: int) -> Ending:
        """How an attempt ended that nobody watched to its end, by the record it left."""
        return recorded(runtime_folder, attempt) or lost("disappeared without a record")


def _order_of_nobody(folder: Path) -> LaunchOrder:
    """An order of nobody's, in a folder that will be gone; its runtime folder is one within."""
    workspace, runtime = folder / "workspace", folder / "runtime"
    workspace.mkdir()
    runtime.mkdir()
    return LaunchOrder(
        task=TaskId("probe"),
        subagent=SubagentId("probe"),
        attempt=1,
        argv=(),
        environment={},
        workspace=workspace,
        runtime_folder=runtime,
        timeout_ms=int(LAUNCH_SECONDS * 1000),
        graces_ms=(0, 0),
        output_limit_bytes=100_000,
    )


def launch_failed(fault: OSError | ValueError) -> LaunchFailed:
    """The error that names an errno and what to do about it."""
    if not isinstance(fault, OSError):
        return LaunchFailed(f"EINVAL: {fault}")
    if fault.errno is None:
        return LaunchFailed("its init did not start in time and was killed")
    said = os.strerror(fault.errno)
    text = f"{errno.errorcode.get(fault.errno, fault.errno)}: {said[:1].lower()}{said[1:]}"
    named = f": {os.fsdecode(fault.filename)!r}" if fault.filename else ""
    return LaunchFailed(text + named, hint=_HINTS.get(fault.errno, ""))


def _forget_record(folder: Path) -> None:
    """No earlier attempt's record can be taken for that of the next.

    Raises:
        LaunchFailed: there is no such folder, or it cannot be written.
    """
    try:
        try:
            os.unlink(f"{folder}/{RECORD}")
        except FileNotFoundError:
            os.stat(folder)  # a missing folder is an error, a missing record is not
    except OSError as fault:
        raise launch_failed(fault) from fault
