"""Folders that children write in, watched by the kernel: nobody polls."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress

IN_MODIFY, IN_MOVED_TO, IN_CREATE = 0x2, 0x80, 0x100
CHUNK = 65536


class Folders:
    """Tells when something in one of the folders was written, made or moved."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._folders = folders
        self._event = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._drain)
        self._watch()

    async def changed(self, seconds: float) -> bool:
        """Whether anything was written since this was last asked, or is within that time."""
        self._watch()  # a folder that a new attempt put in the place of another
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        happened = self._event.is_set()
        self._event.clear()
        return happened

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _watch(self) -> None:
        mask = IN_MODIFY | IN_MOVED_TO | IN_CREATE
        for folder in self._folders:
            self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._fd, CHUNK):
                self._event.set()
