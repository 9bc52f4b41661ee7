"""Work that may take for ever, done in a copy of this process: nothing else could be stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import NoReturn

from retinue.files import write_all
from retinue.processes import exited

DONE, FAILED = b"+", b"-"


async def aside(work: Callable[[], str], seconds: float) -> str:
    """What the work gives; everybody else goes on meanwhile, and no process of it is left.

    Raises:
        TimeoutError: it took longer; it is stopped.
        ValueError: why the work failed: what it raised of this kind, or of what the disk refuses.
    """
    said = os.memfd_create("aside")
    try:
        pid = os.fork()
        if pid == 0:
            _do(work, said)
        try:
            async with asyncio.timeout(seconds):
                await exited(pid)
        finally:
            _end(pid)
        data = os.pread(said, os.fstat(said).st_size, 0)
    finally:
        os.close(said)
    if data.startswith(DONE):
        return data[1:].decode()
    raise ValueError(data[1:].decode() or "it ended without a word")


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _do(work: Callable[[], str], said: int) -> NoReturn:
    """In the copy, which ends here whatever happens: none of what we hold open is its own."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        try:
            told = DONE + work().encode("utf-8", "replace")
        except (ValueError, OSError) as why:
            told = FAILED + str(why).encode("utf-8", "replace")
        write_all(said, told)
    finally:
        os._exit(0)
