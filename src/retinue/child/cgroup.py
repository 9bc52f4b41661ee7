"""The cgroup of a child's processes; its init stays outside."""

from __future__ import annotations

import os


class Cgroup:
    """A cgroup that the steward made; its counters are read when the child has ended."""

    def __init__(self, folder: str) -> None:
        """Raises:
        OSError: the folder cannot be opened.
        """
        self.descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def processes_killed(self) -> int:
        """Return how many processes the kernel killed at the memory limit."""
        return self._count("memory.events", "oom_kill")

    def forks_refused(self) -> int:
        """Return how often a fork failed at the process limit."""
        return self._count("pids.events", "max")

    def _count(self, name: str, key: str) -> int:
        try:
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.descriptor)
            try:
                lines = os.read(file, 4096).decode().splitlines()
            finally:
                os.close(file)
            return next(int(line.split()[1]) for line in lines if line.split()[0] == key)
        except (OSError, ValueError, IndexError, StopIteration):
            return 0
