"""Waiting for processes, without a thread and without asking again."""

from __future__ import annotations

import asyncio
import os


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
