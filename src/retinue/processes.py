"""Waiting for processes and for work, without a thread and without asking again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import TypeVar

Found = TypeVar("Found")


async def exited(pid: int) -> None:
    """A child of ours has come to its end; somebody has to reap it.

    Raises:
        OSError: it cannot be watched.
    """
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(pid)
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def finished(work: Awaitable[Found]) -> Found:
    """What came of it; it is over, even where whoever asked for it has gone meanwhile."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    finally:
        await asyncio.wait([working])
