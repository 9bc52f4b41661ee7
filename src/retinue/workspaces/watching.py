"""A file of each task that people save: whoever needs its words is told of it by the kernel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from retinue import inotify
from retinue.domain.ids import TaskId

SAVED = inotify.CHANGED_MODE | inotify.CLOSED_AFTER_WRITING | inotify.MOVED_HERE
SAVED |= inotify.ONLY_FOLDERS | inotify.NO_LINKS


class Watched:
    """Asks `look` about each task that is watched, when its file is saved and when it is touched.

    Where the kernel has no watch left to give, the touches alone remain.
    """

    def __init__(self, tasks: Path, place: str, complain: Callable[[str], None]) -> None:
        """Args: place: the file, from the folder of a task."""
        self._tasks = tasks
        self._place = Path(place)
        self._complain = complain
        self._inotify: inotify.Inotify | None = None
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
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None

    def _look(self, task: TaskId) -> None:
        self._due.discard(task)
        if task in self._watches and not self.look(task):
            number = self._watches.pop(task)
            if self._inotify is not None:
                self._inotify.forget(number)

    def _watch(self, task: TaskId) -> int:
        folder = str(self._tasks / task / self._place.parent)
        try:
            if self._inotify is None:
                new = self._inotify = inotify.Inotify()
                asyncio.get_running_loop().add_reader(new.fd, self._saved, new)
            return self._inotify.watch(folder, SAVED)
        except OSError as error:
            self._complain(f"{task}: {self._place} is not watched: {error.strerror}")
            return -1

    def _saved(self, kernel: inotify.Inotify) -> None:
        """Somebody has saved something in a folder that is watched."""
        tasks = {number: task for task, number in self._watches.items()}
        place = os.fsencode(self._place.name)
        for number, name in kernel.happened():
            if number == inotify.OVERFLOWN:
                for task in self._watches:
                    self.touch(task)
            elif name == place and number in tasks:
                self.touch(tasks[number])
