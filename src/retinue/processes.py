"""Waiting for processes and tasks on the event loop, without threads or polling."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import TypeVar

Found = TypeVar("Found")


async def wait_exit(pid: int) -> None:
    """Wait until a child of this process exits; the caller has to reap it.

    Raises:
        OSError: no pidfd can be opened.
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


async def finish_work(work: Awaitable[Found]) -> Found:
    """Await work and return its result; if this task is cancelled, the work is finished first."""
    # `shield` leaves the work running when this task is cancelled; the wait below outlasts it.
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    finally:
        await asyncio.wait([working])
