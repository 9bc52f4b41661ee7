"""Runtime that launches commands and teams as local processes.

The steward has one thread and never forks. A fork server clones each child into new
namespaces, as a direct child of the steward. The steward then watches for the exit of that
process, or for its RECORDED message, and reads the result from the exit record.
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
from retinue.child.namespaces import explain_missing_capabilities, lacks_mount_right
from retinue.clock import read_boot_id
from retinue.core.errors import LaunchFailed
from retinue.core.ids import SubagentId, TaskId
from retinue.core.result import Ending
from retinue.core.task_config import INHERITED, ISOLATED, Boundary
from retinue.ports import LaunchOrder, ProcessIdentity
from retinue.runtime import probes
from retinue.runtime.cgroups import ChildCgroups
from retinue.runtime.child_process import (
    RECORD,
    ChildProcess,
    is_same_process_alive,
    make_lost_ending,
    read_exit_record,
)
from retinue.runtime.fork_server_client import COMMANDS, INTERPRETER, TEAMS, ForkServer
from retinue.runtime.launch_handshake import LAUNCH_SECONDS, NamespacesRefused, start_fresh
from retinue.runtime.sandbox_view import ChildUsers, to_child_order

Containment = Literal["pid-namespace", "subreaper"]
# Prefixes of failures that are permanent on this machine, so that the answer can be cached.
REFUSED = ("isolation failed", probes.OVERLAY_FAULT)
# Errors of pidfd_open where the pid names no process, or only a thread.
NO_SUCH_PROCESS = (errno.ESRCH, errno.EINVAL, errno.ENOENT)

_HINTS = {
    errno.EMFILE: "wait for children to end, or raise the limit of open files",
    errno.ENFILE: "wait for children to end, or raise the limit of open files",
    errno.EAGAIN: "wait for children to end, or raise the limit of processes",
    errno.ENOMEM: "wait for children to end, then try again",
}


class ProcessRuntime:
    """Launcher of commands as children of this process; their descendants end with them."""

    def __init__(
        self,
        *,
        containment: Containment | None = None,
        users: ChildUsers | None = None,
        cgroups: ChildCgroups | None = None,
    ) -> None:
        self._containment = containment
        self.users = users or ChildUsers()
        self.cgroups = cgroups or ChildCgroups()
        self._no_namespaces = "isolation needs namespaces, which this machine does not provide"
        self._server = ForkServer(LAUNCH_SECONDS, COMMANDS)
        self._teams = ForkServer(LAUNCH_SECONDS, TEAMS)
        self.isolation: probes.Seen | None = None  # set by the first successful probe
        self._layers: dict[Path, str | None] = {}  # by folder: why overlays fail there, or None
        self._probing = asyncio.Lock()

    def find_unavailable_reason(self) -> str | None:
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            return "needs Linux 5.4 or newer, for pidfds"
        if not os.access(INTERPRETER, os.X_OK):
            return f"the Python interpreter {INTERPRETER} cannot be executed"
        return None

    async def warm(self) -> None:
        """Start the fork server for commands, so that the next launch does not wait for it."""
        await self._server.warm()

    def expect_team(self) -> None:
        """Start the fork server for teams in the background; a launch reports its failure."""
        self._teams.expect()

    async def containment(self) -> Containment:
        """Return how a command's processes are kept together here, found by one trial launch."""
        if self._containment is None:
            with suppress(LaunchFailed):
                await self._run_probe(Boundary(mode=INHERITED), ("/bin/true",))
        return self._containment or "subreaper"

    async def isolation_missing(self, behind: Sequence[str] = ()) -> str | None:
        """Return why children cannot be isolated here, or None.

        A probe child reports its own boundary; a success is cached. Behind a launcher nothing
        can be probed, so only the launcher's presence is checked.
        """
        if behind:
            return None if shutil.which(behind[0]) else f"the launcher {behind[0]!a} was not found"
        if self.isolation is not None:
            return None
        if not seccomp.is_available():
            return f"no system call filter for this machine ({os.uname().machine})"
        if not landlock.read_abi_version():
            return "the kernel has no Landlock"
        if missing := explain_missing_capabilities():
            return missing
        try:
            seen = probes.parse_isolation(
                await self._run_probe(Boundary(mode=ISOLATED), probes.ISOLATION_COMMAND)
            )
        except LaunchFailed as error:
            # Missing namespaces are the root cause, whichever step failed first.
            await self.containment()
            return self._no_namespaces if self._containment == "subreaper" else error.message
        except ValueError as fault:
            return str(fault)
        if not seen.complete:
            return "an isolated probe child could still gain privileges"
        self.isolation = seen
        return None

    async def layers_missing(self, folder: Path) -> str | None:
        """Return why workspaces in that folder cannot be overlays, or None.

        A probe child changes and removes files there, once per folder.
        """
        if missing := await self.isolation_missing():
            return missing
        # One probe at a time: concurrent callers would all launch the same one.
        async with self._probing:
            if folder not in self._layers:
                found = await self._probe_layers(folder)
                # Temporary failures, such as a full disk, are not cached.
                if found is not None and not found.startswith(REFUSED):
                    return found
                self._layers[folder] = found
        return self._layers[folder]

    async def _probe_layers(self, folder: Path) -> str | None:
        try:
            with tempfile.TemporaryDirectory(prefix=probes.FOLDER_PREFIX, dir=folder) as place:
                order = _make_probe_order(Path(place))
                await self._run_to_end(replace(order, **probes.write_overlay_tree(Path(place))))
                return probes.judge_overlay(Path(place))
        except (LaunchFailed, OSError) as error:
            if str(error).startswith(REFUSED) and lacks_mount_right():
                return (
                    f"{probes.OVERLAY_FAULT} root without CAP_SYS_ADMIN cannot mount files of a "
                    "repository for another user"
                )
            return str(error)

    def close(self) -> None:
        """End the fork servers; children go on."""
        self._server.close()
        self._teams.close()
        self.cgroups.close()

    async def launch(self, order: LaunchOrder) -> ChildProcess:
        """Start a process for this attempt, which waits for `release` before it runs anything.

        Raises:
            LaunchFailed: no process exists, and the failed launch was cleaned up.
        """
        # Before the launch: a record found later must be of this attempt.
        _forget_record(order.runtime_folder)
        try:
            if order.boundary.launch_prefix:
                return await self._launch_behind_prefix(order)
            return await self._launch_here(order)
        except (OSError, ValueError) as fault:
            raise launch_failed(fault) from fault

    async def _launch_here(self, order: LaunchOrder) -> ChildProcess:
        try:
            return await self._launch(order, self._containment != "subreaper")
        except NamespacesRefused as why:
            # An isolated child never runs without namespaces. An inherited one falls back to a
            # subreaper, and all later launches do as well.
            if self._containment is not None or order.boundary.mode == ISOLATED:
                raise
            self._containment = "subreaper"
            self._no_namespaces = why.message
            return await self._launch(order, False)

    async def _launch(self, order: LaunchOrder, contained: bool) -> ChildProcess:
        isolated = order.boundary.mode == ISOLATED
        if isolated and not contained:
            raise NamespacesRefused(self._no_namespaces)
        server = self._teams if order.team else self._server
        cgroup = self.cgroups.make(order.boundary.limits) if isolated else ""
        remove_cgroup = partial(self.cgroups.remove, cgroup)
        try:
            given = to_child_order(order, contained, self.users, cgroup=cgroup)
            init, early = await server.start(given)
        except BaseException:  # cancellation included: the cgroup would be left behind
            remove_cgroup()
            raise
        if contained:
            self._containment = "pid-namespace"
        return ChildProcess(
            init.identity,
            init.pidfd,
            order.runtime_folder,
            control=init.control,
            early=early,
            # An overlay can be mounted again only once the old init is gone, so a child with one
            # counts as ended when its init exits, and not at its RECORDED message.
            reaper=None if order.below else server.reaper,
            when_executing=partial(server.make_ahead, init.namespaces),
            at_end=remove_cgroup,
        )

    async def _launch_behind_prefix(self, order: LaunchOrder) -> ChildProcess:
        """Launch behind the configured launcher, with namespaces if it allows them.

        The launcher may lead to another machine each time, so nothing is cached.
        """
        program, server = (TEAMS, self._teams) if order.team else (COMMANDS, self._server)
        server.require_same()
        argv = [*order.boundary.launch_prefix, *program.build_argv("serve_one")]
        try:
            child = await start_fresh(argv, to_child_order(order, True, self.users))
        except NamespacesRefused:
            if order.boundary.mode == ISOLATED:
                raise
            child = await start_fresh(argv, to_child_order(order, False, self.users))
        return ChildProcess(
            child.identity,
            child.pidfd,
            order.runtime_folder,
            control=child.control,
            early=child.early,
            launcher=child.launcher,
        )

    async def _run_probe(self, boundary: Boundary, argv: tuple[str, ...]) -> str:
        """Run a probe command behind this boundary and return its output.

        Raises:
            LaunchFailed: the command could not be run, or failed.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="retinue-") as folder:
                order = _make_probe_order(Path(folder))
                await self._run_to_end(replace(order, boundary=boundary, argv=argv))
                return (order.runtime_folder / "stdout.log").read_text()
        except OSError as fault:  # for example a full disk, or no free descriptor
            raise LaunchFailed(f"the probe child could not be started: {fault}") from fault

    async def _run_to_end(self, order: LaunchOrder) -> None:
        """Raises:
        LaunchFailed: the command could not be run, or failed.
        """
        child = await self.launch(order)
        try:
            await child.release()
        finally:
            ending = await child.wait_ended()
        if not ending.clean:
            raise LaunchFailed(ending.describe())

    def adopt(self, identity: ProcessIdentity, runtime_folder: Path) -> ChildProcess | None:
        """Take over a child of an earlier steward; None if that process is gone.

        A process is identified by boot id, pid and start time.
        """
        # After a reboot the same pid and start time can be those of another process.
        if identity.boot_id != read_boot_id():
            return None
        try:
            pidfd = os.pidfd_open(identity.pid)
        except OSError as fault:
            if fault.errno in NO_SUCH_PROCESS:
                return None
            raise
        # Checked after the pidfd is open: if the process is alive now, the pid was not reused
        # before, and the pidfd refers to it.
        if not is_same_process_alive(identity):
            os.close(pidfd)
            return None
        # An earlier steward made its cgroup, so only a sweep finds the folder.
        return ChildProcess(identity, pidfd, runtime_folder, at_end=self.cgroups.sweep)

    def read_ending(self, runtime_folder: Path, attempt: int) -> Ending:
        """Return how an unwatched attempt ended, from its exit record."""
        return read_exit_record(runtime_folder, attempt) or make_lost_ending(
            "disappeared without a record"
        )


def _make_probe_order(folder: Path) -> LaunchOrder:
    """Return the order of a probe child, with a workspace and a runtime folder in `folder`."""
    workspace = folder / "workspace"
    runtime = folder / "runtime"
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
    """Return an error that names the errno, with a hint where one is known."""
    if not isinstance(fault, OSError):
        return LaunchFailed(f"EINVAL: {fault}")
    # A TimeoutError of asyncio is an OSError without an errno.
    if fault.errno is None:
        return LaunchFailed("its init did not start in time and was killed")
    said = os.strerror(fault.errno)
    text = f"{errno.errorcode.get(fault.errno, fault.errno)}: {said[:1].lower()}{said[1:]}"
    named = f": {os.fsdecode(fault.filename)!r}" if fault.filename else ""
    return LaunchFailed(text + named, hint=_HINTS.get(fault.errno, ""))


def _forget_record(folder: Path) -> None:
    """Remove the exit record of an earlier attempt.

    Raises:
        LaunchFailed: the folder does not exist, or cannot be written.
    """
    try:
        try:
            os.unlink(f"{folder}/{RECORD}")
        except FileNotFoundError:
            os.stat(folder)  # a missing folder is an error, a missing record is not
    except OSError as fault:
        raise launch_failed(fault) from fault
