"""Whether the next attempt in the same namespaces would find everything as this one did."""

from __future__ import annotations

import os
import select

PROCESSES = 256  # where they begin in /proc, after all else


class Surroundings:
    """What a command with our own rights could leave to whoever comes after it."""

    def __init__(self) -> None:
        """Raises:
        OSError: they cannot be seen.
        """
        self._processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._mounts = os.open("/proc/self/mounts", os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self._mounts, select.POLLPRI)
        self._pace = _pace()

    def unchanged(self) -> bool:
        """Nobody else is in the namespace, nothing was mounted, and we are as urgent as before."""
        try:
            return not self._changes.poll(0) and self._pace == _pace() and self._is_alone()
        except OSError:  # no descriptor is left to look with, say
            return False

    def _is_alone(self) -> bool:
        os.lseek(self._processes, PROCESSES, os.SEEK_SET)
        if [name for name in os.listdir(self._processes) if name.isdigit()] == ["1"]:
            return True
        try:  # where /proc is not ours; this looks at everyone on the machine
            os.kill(-1, 0)
        except ProcessLookupError:
            return True
        return False


def _pace() -> tuple[int, int, set[int]]:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return nice, os.sched_getscheduler(0), os.sched_getaffinity(0)
