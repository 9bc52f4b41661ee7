"""Launch of a child through a configured launcher, such as one that enters a container.

The launcher gets our program as its last arguments, and must pass standard input and output
through. If our program is visible in this machine's /proc, it is watched and signalled directly.
Otherwise the launcher is, and must pass signals on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NamedTuple

from retinue.child.control_protocol import Order, encode_order
from retinue.core.errors import LaunchFailed
from retinue.ports import ProcessIdentity
from retinue.runtime import procfs
from retinue.runtime.handshake import LAUNCH_SECONDS, NoNamespaces, exchange_order

SETTING = "subagent_host_launch_prefix"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The launcher process in front of a child."""

    pid: int

    def end(self) -> None:
        """Kill and reap the launcher; its child has ended before, or ends by itself."""
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class Started(NamedTuple):
    """A child behind a launcher, which has its order and waits for GO."""

    identity: ProcessIdentity  # of the process to watch
    pidfd: int
    control: socket.socket
    early: bytes  # what it sent on that socket already
    launcher: Launcher


async def start_fresh(argv: list[str], order: Order) -> Started:
    """Start a child behind its launcher.

    Raises:
        NoNamespaces, LaunchFailed, OSError: there is no child; the launcher was ended.
    """
    ours, launcher = _spawn(argv)
    with ExitStack() as on_failure:
        on_failure.callback(launcher.end)
        on_failure.callback(ours.close)
        try:
            async with asyncio.timeout(LAUNCH_SECONDS):
                said, early = await exchange_order(ours, encode_order(order), bytearray())
        except NoNamespaces as why:
            raise NoNamespaces(f"{why.message}, behind {SETTING}") from None
        except (EOFError, TimeoutError):
            raise LaunchFailed(
                f"the launcher {argv[0]!a} started no child; see {SETTING}"
            ) from None
        identity, pidfd = procfs.hold(_find_visible_pid(said, launcher.pid))
        on_failure.pop_all()
    return Started(identity, pidfd, ours, early, launcher)


def _spawn(argv: list[str]) -> tuple[socket.socket, Launcher]:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            pid = os.posix_spawnp(
                argv[0],
                argv,
                # No other variable: the steward's environment may hold keys.
                {"PATH": os.environ.get("PATH", os.defpath)},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=signal.valid_signals(),
            )
        except OSError as fault:
            ours.close()
            raise LaunchFailed(
                f"the launcher {argv[0]!a} could not be started: {fault.strerror}; see {SETTING}"
            ) from fault
    ours.setblocking(False)
    return ours, Launcher(pid=pid)


def _find_visible_pid(said: int, launcher: int) -> int:
    """Return the pid that our program reported, if it is below the launcher; else the launcher's.

    Behind a PID namespace the reported number can be that of an unrelated process here.
    """
    below = {each.pid for each in procfs.list_process_tree(launcher)}
    return said if said in below else launcher
