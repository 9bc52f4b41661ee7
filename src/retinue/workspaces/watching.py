"""A file of each task that people save: whoever needs its words is told of it by the kernel."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

from retinue.domain.ids import TaskId

CHANGED_MODE, CLOSED_AFTER_WRITING, MOVED_HERE = 0x4, 0x8, 0x80
ONLY_FOLDERS, NO_LINKS = 0x0100_0000, 0x0200_0000
OVERFLOWN = -1  # instead of a watch: the kernel has forgotten some
_ABOUT = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Watched:
    """Asks `look` about each task that is watched, when its file is saved and when it is touched.

    Where the kernel has no watch left to give, the touches alone remain.
    """

    def __init__(self, tasks: Path, place: str, complain: Callable[[str], None]) -> None:
        """Args: place: the file, from the folder of a task."""
        self._tasks = tasks
        self._place = Path(place)
        self._complain = complain
        self._descriptor = -1
        self._watches: dict[TaskId, int] = {}
        self._due: set[TaskId] = set()
        self.look: Callable[[TaskId], bool] = lambda task: False  # whether to go on watching

    def watch(self, task: TaskId) -> bool:
        """The task is watched; whether only from now on, so that it may have been saved before."""
        if task in self._watches:
            return False
        self._watches[task] = self._watch(task)
        return True

    def touch(self, task: TaskId) -> None:
        """If the task is watched, it is looked at soon."""
        if task in self._watches and task not in self._due:
            self._due.add(task)
            asyncio.get_running_loop().call_soon(self._look, task)

    def close(self) -> None:
        self._watches.clear()
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _look(self, task: TaskId) -> None:
        self._due.discard(task)
        if task in self._watches and not self.look(task):
            number = self._watches.pop(task)
            if number >= 0:
                _LIBC.inotify_rm_watch(self._descriptor, number)

    def _watch(self, task: TaskId) -> int:
        if self._descriptor < 0:
            self._descriptor = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._descriptor >= 0:
                asyncio.get_running_loop().add_reader(self._descriptor, self._saved)
        wanted = CHANGED_MODE | CLOSED_AFTER_WRITING | MOVED_HERE | ONLY_FOLDERS | NO_LINKS
        folder = os.fsencode(self._tasks / task / self._place.parent)
        number = int(_LIBC.inotify_add_watch(self._descriptor, folder, wanted))
        if number < 0:
            why = os.strerror(ctypes.get_errno())
            self._complain(f"{task}: {self._place} is not watched: {why}")
        return number

    def _saved(self) -> None:
        """Somebody has saved something in a folder that is watched."""
        data = os.read(self._descriptor, 65536)
        tasks = {number: task for task, number in self._watches.items()}
        name = os.fsencode(self._place.name)
        at = 0
        while at < len(data):
            number, _, _, length = _ABOUT.unpack_from(data, at)
            at += _ABOUT.size + length
            if number == OVERFLOWN:
                for task in list(self._watches):
                    self.touch(task)
            elif data[at - length : at].rstrip(b"\0") == name and number in tasks:
                self.touch(tasks[number])
