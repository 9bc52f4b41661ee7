"""A child in an interpreter of its own, behind a launcher that crosses a boundary.

The launcher is whatever the configuration names: it gets our program as its
last arguments, and must pass standard input and output through. What it starts
is reached by the launcher's own process: signals to that, control through pipes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence

from retinue.domain.errors import LaunchFailed
from retinue.runtimes.forkserver import INTERPRETER, PACKAGE, PROGRAM
from retinue.runtimes.gate import Gate, introduced


async def start_fresh(prefix: Sequence[str], order: bytes, timeout_s: float) -> tuple[int, Gate]:
    """The launcher's pid; behind it a child has its order and waits at its gate.

    Raises:
        LaunchFailed: there is none.
    """
    ours, theirs = socket.socketpair()
    program = PROGRAM + "forkserver.alone()"
    argv = [*prefix, INTERPRETER, "-I", "-c", program, str(PACKAGE.parent)]
    with theirs:
        try:
            pid = os.posix_spawnp(  # noqa: ASYNC221  returns at once
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
                f"the launcher {argv[0]!a} could not be started: {fault.strerror}",
                hint="see subagent_host_launch_prefix",
            ) from fault
    ours.setblocking(False)
    try:
        async with asyncio.timeout(timeout_s):
            _, early = await introduced(ours, order)
    except (EOFError, TimeoutError):
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # noqa: ASYNC222  it was killed
        raise LaunchFailed(
            f"the launcher {argv[0]!a} did not lead to a child",
            hint="see subagent_host_launch_prefix",
        ) from None
    return pid, Gate(ours, early, timeout_s)
