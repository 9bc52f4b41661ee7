"""Watches on the folders of all attempts, by one inotify instance.

Closing an instance blocks the caller until the kernel has freed its watches: about 10 ms, in which
an event loop serves no other attempt. Removing a watch takes 10 us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from retinue.inotify import OVERFLOWN, Inotify

OnChange = Callable[[], None]


class FolderWatches:
    """Calls a function whenever something changes in a folder that it watches."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        # By watch: two users of one folder have the same, as the kernel counts folders.
        self._users: dict[int, list[OnChange]] = {}

    def watch(self, folder: str, wanted: int, on_change: OnChange) -> int:
        """Watch a folder and return the number by which to forget it.

        Raises:
            OSError: the folder does not exist, or the kernel has no watch left.
        """
        if self._inotify is None:
            self._inotify = Inotify()
            asyncio.get_running_loop().add_reader(self._inotify.fd, self._read, self._inotify)
        number = self._inotify.watch(folder, wanted)
        self._users.setdefault(number, []).append(on_change)
        return number

    def forget(self, number: int, on_change: OnChange) -> None:
        """Call this function no longer; does nothing after `close`."""
        users = self._users.get(number, [])
        if on_change in users:
            users.remove(on_change)
        if not users and self._users.pop(number, None) is not None and self._inotify is not None:
            self._inotify.forget(number)

    def close(self) -> None:
        self._users.clear()
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None

    def _read(self, kernel: Inotify) -> None:
        changed: dict[int, None] = {}
        with suppress(BlockingIOError):
            changed = dict.fromkeys(number for number, _ in kernel.read_events())
        # The kernel dropped events: anything may have changed.
        numbers = list(self._users) if OVERFLOWN in changed else list(changed)
        called = [user for number in numbers for user in self._users.get(number, ())]
        for user in dict.fromkeys(called):
            user()
