"""Folders that children write in, as an event to wait for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from retinue.inotify import CHANGED, CHUNK, Inotify


class Folders:
    """Tells when something in one of the folders was written, made or moved."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._inotify = Inotify()
        self._folders = folders
        self._event = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._inotify.fd, self._drain)
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
        asyncio.get_running_loop().remove_reader(self._inotify.fd)
        self._inotify.close()

    def _watch(self) -> None:
        for folder in self._folders:
            with suppress(OSError):  # it may not be there yet
                self._inotify.watch(folder, CHANGED)

    def _drain(self) -> None:
        os.read(self._inotify.fd, CHUNK)
        self._event.set()
