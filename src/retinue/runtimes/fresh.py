"""A child in an interpreter of its own, behind a launcher that crosses a boundary.

The launcher is whatever the configuration names: it gets our program as its
last arguments, and must pass standard input and output through. Our program is
watched and signalled itself where this machine shows it; where the launcher hid
it, the launcher stands for it and must pass signals on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from retinue.child.order import Order, encode
from retinue.domain.errors import LaunchFailed
from retinue.runtimes import procfs
from retinue.runtimes.gate import LAUNCH_SECONDS, Gate, NoNamespaces, introduced

SETTING = "subagent_host_launch_prefix"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A process of ours that stands before a child."""

    pid: int

    def end(self) -> None:
        """It is gone and reaped; whatever it led to has ended before, or ends by itself."""
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


async def start_fresh(argv: list[str], order: Order) -> tuple[int, Gate, Launcher]:
    """The pid to watch; behind it a child has its order and waits at its gate.

    Raises:
        NoNamespaces, LaunchFailed: there is none, and no launcher either.
    """
    ours, launcher = _spawn(argv)
    with ExitStack() as unless_it_leads_somewhere:
        unless_it_leads_somewhere.callback(launcher.end)
        unless_it_leads_somewhere.callback(ours.close)
        try:
            async with asyncio.timeout(LAUNCH_SECONDS):
                said, early = await introduced(ours, encode(order))
        except NoNamespaces as why:
            raise NoNamespaces(f"{why.message}, behind {SETTING}") from None
        except (EOFError, TimeoutError):
            raise LaunchFailed(
                f"the launcher {argv[0]!a} did not lead to a child; see {SETTING}"
            ) from None
        unless_it_leads_somewhere.pop_all()
    return _visible(said, launcher.pid), Gate(ours, early), launcher


def _spawn(argv: list[str]) -> tuple[socket.socket, Launcher]:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            pid = os.posix_spawnp(
                argv[0],
                argv,
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


def _visible(said: int, launcher: int) -> int:
    """The number our program gave for itself, where it is one of this machine's and below us."""
    below = {each.pid for each in procfs.descendants(launcher)}
    return said if said in below else launcher
