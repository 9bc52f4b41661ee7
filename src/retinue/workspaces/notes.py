"""The notes of tasks on disk: read as what anybody may have written, and watched for changes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from retinue.domain import event as events
from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId
from retinue.workspaces.reader import Unreadable, read_child_file

FOLDER, FILE = "shared", "human-notes.md"
LIMIT_BYTES = 1024 * 1024
CLOSED_AFTER_WRITING, MOVED_HERE = 0x8, 0x80
ONLY_FOLDERS, NO_LINKS = 0x0100_0000, 0x0200_0000
_ABOUT = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


class NotesFolder:
    """Asks `look` about each task with an open gate: when its notes are saved, and at each event.

    Where the kernel has no watch left to give, the events alone remain.
    """

    def __init__(self, tasks: Path, complain: Callable[[str], None]) -> None:
        self._tasks = tasks
        self._complain = complain
        self._descriptor = -1
        self._watches: dict[TaskId, int] = {}
        self._due: set[TaskId] = set()
        self.look: Callable[[TaskId], bool] = lambda task: False  # whether to go on watching

    def read(self, task: TaskId) -> str:
        """What stands in the notes; nothing where they are missing, or no plain file."""
        try:
            found = read_child_file(self._tasks / task / FOLDER, FILE, LIMIT_BYTES, cut=True)
        except Unreadable:
            return ""
        return found.data.decode("utf-8", "replace")

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """Implements a subscriber of the journal."""
        if any(each.event.type == events.GATE_BLOCKED for each in recorded):
            self.watch(task)
        self.touch(task)

    def watch(self, task: TaskId) -> None:
        """The task's notes are looked at soon, and whenever they are saved."""
        if task not in self._watches:
            self._watches[task] = self._watch(task)
        self.touch(task)

    def touch(self, task: TaskId) -> None:
        """If somebody waits for an answer in the task, its notes are looked at soon."""
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
        wanted = CLOSED_AFTER_WRITING | MOVED_HERE | ONLY_FOLDERS | NO_LINKS
        folder = os.fsencode(self._tasks / task / FOLDER)
        number = int(_LIBC.inotify_add_watch(self._descriptor, folder, wanted))
        if number < 0:
            why = os.strerror(ctypes.get_errno())
            self._complain(f"{task}: its notes are not watched: {why}")
        return number

    def _saved(self) -> None:
        """Somebody has saved something in a folder that is watched."""
        data = os.read(self._descriptor, 65536)
        tasks = {number: task for task, number in self._watches.items()}
        at = 0
        while at < len(data):
            number, _, _, length = _ABOUT.unpack_from(data, at)
            at += _ABOUT.size + length
            name = data[at - length : at].rstrip(b"\0")
            if name == FILE.encode() and number in tasks:
                self.touch(tasks[number])
