"""Check whether namespaces can be reused by the next attempt."""

from __future__ import annotations

import os
import select

PROCESSES = 256  # offset in the listing of /proc at which processes begin


class SurroundingsSnapshot:
    """Processes, mounts and priority, which a command could change for the next attempt."""

    def __init__(self) -> None:
        """Raises:
        OSError: /proc cannot be read.
        """
        self._processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._mounts = os.open("/proc/self/mounts", os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self._mounts, select.POLLPRI)
        self._pace = _read_priority()

    def is_unchanged(self) -> bool:
        """Return whether no process is left, nothing was mounted and the priority is the same."""
        try:
            return not self._changes.poll(0) and self._pace == _read_priority() and self._is_alone()
        except OSError:  # for example because no descriptor is free
            return False

    def _is_alone(self) -> bool:
        os.lseek(self._processes, PROCESSES, os.SEEK_SET)
        if [name for name in os.listdir(self._processes) if name.isdigit()] == ["1"]:
            return True
        # If /proc could not be mounted, it lists other processes. Signal 0 to all shows whether
        # there is any process to signal; it is slower, as the kernel looks at the whole machine.
        try:
            os.kill(-1, 0)
        except ProcessLookupError:
            return True
        return False


def _read_priority() -> tuple[int, int, set[int]]:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return nice, os.sched_getscheduler(0), os.sched_getaffinity(0)
