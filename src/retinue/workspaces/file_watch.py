"""Watch for one file of each task that people edit, by inotify."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from retinue import inotify
from retinue.core import events
from retinue.core.events import Recorded
from retinue.core.ids import TaskId
from retinue.workspaces.child_files import UnreadableFile, read_child_file

SAVED = inotify.CHANGED_MODE | inotify.CLOSED_AFTER_WRITING | inotify.MOVED_HERE
SAVED |= inotify.ONLY_FOLDERS | inotify.NO_LINKS


class FileWatch:
    """Watch that calls `look` when a task's file is saved, and when the task is touched.

    If the kernel has no watch left, only touches count.
    """

    def __init__(self, tasks: Path, place: str, complain: Callable[[str], None]) -> None:
        """Create a watch for `place`, the path of a file relative to the folder of a task."""
        self._tasks = tasks
        self._place = Path(place)
        self._complain = complain
        self._inotify: inotify.Inotify | None = None
        self._watches: dict[TaskId, int] = {}
        self._due: set[TaskId] = set()
        # Set by the owner; returns whether to go on watching.
        self.look: Callable[[TaskId], bool] = lambda task: False

    def watch(self, task: TaskId) -> bool:
        """Watch a task; return whether the watch is new, so that a save may have been missed."""
        if task in self._watches:
            return False
        number = self._watch(task)
        if number is None:
            return False
        self._watches[task] = number
        return True

    def touch(self, task: TaskId) -> None:
        """Have `look` called soon if the task is watched."""
        if task in self._watches and task not in self._due:
            # Several touches before the next loop iteration cause one look.
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

    def _watch(self, task: TaskId) -> int | None:
        """Return the number of the watch; -1 if the kernel refused it, None without a folder."""
        folder = str(self._tasks / task / self._place.parent)
        try:
            if self._inotify is None:
                new = self._inotify = inotify.Inotify()
                asyncio.get_running_loop().add_reader(new.fd, self._handle_saved, new)
            return self._inotify.watch(folder, SAVED)
        except FileNotFoundError:
            return None  # there is nothing to save yet: the next call watches
        except OSError as error:
            self._complain(f"{task}: {self._place} is not watched: {error.strerror}")
            return -1

    def _handle_saved(self, kernel: inotify.Inotify) -> None:
        """Handle inotify events of the watched folders."""
        tasks = {number: task for task, number in self._watches.items()}
        place = os.fsencode(self._place.name)
        for number, name in kernel.read_events():
            if number == inotify.OVERFLOWN:
                # The kernel dropped events: any file may have been saved.
                for task in self._watches:
                    self.touch(task)
            elif name == place and number in tasks:
                self.touch(tasks[number])


FOLDER, FILE = "shared", "human-notes.md"
LIMIT_BYTES = 1024 * 1024


class NotesFolder(FileWatch):
    """Watch for the notes of each task with an open gate, touched at each event."""

    def __init__(self, tasks: Path, complain: Callable[[str], None]) -> None:
        super().__init__(tasks, f"{FOLDER}/{FILE}", complain)

    def read(self, task: TaskId) -> str:
        """Return the notes; empty if they are missing or not a plain file."""
        try:
            found = read_child_file(self._tasks / task / FOLDER, FILE, LIMIT_BYTES, cut=True)
        except UnreadableFile:
            return ""
        return found.data.decode("utf-8", "replace")

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """Follow the journal as a subscriber."""
        if any(each.event.type == events.GATE_BLOCKED for each in recorded):
            self.watch(task)
        self.touch(task)
