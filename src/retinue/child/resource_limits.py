"""Resource limits of a command and of its cgroup, and which of them it reached."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Mapping

MB = 1024 * 1024
MEMORY_IS_FULL_AT = 0.9  # of the memory limit: the allocation that was refused is not in the peak
NAMES = {
    "RLIMIT_FSIZE": "the file size limit of {} MB",
    "RLIMIT_NPROC": "the process limit of {}",
    "RLIMIT_NOFILE": "the limit of {} open files",
    "RLIMIT_DATA": "the memory limit of {} MB",
}
# The kernel counts these by user: a child could use up what the user's other programs need.
LIMITS_OF_USER = {
    "RLIMIT_SIGPENDING": 2048,
    "RLIMIT_MSGQUEUE": 256 * 1024,  # about three queues of the usual size
    "RLIMIT_MEMLOCK": MB,
}
# What programs print when they reach a limit; often the text of the errno.
COMPLAINTS = {
    "RLIMIT_FSIZE": (os.strerror(errno.EFBIG),),
    "RLIMIT_NPROC": ("Cannot fork", "can't start new thread", os.strerror(errno.EAGAIN)),
    "RLIMIT_NOFILE": (os.strerror(errno.EMFILE),),
    "RLIMIT_DATA": ("MemoryError", "out of memory", "bad_alloc", os.strerror(errno.ENOMEM)),
}


def can_hold_limits(limits: Mapping[str, int], output_bytes: int) -> bool:
    """Return whether the init can do its own work within the command's limits.

    Args:
        output_bytes: the most that the init may write to one file.
    """
    enough = {
        "RLIMIT_FSIZE": output_bytes + MB,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_DATA": 512 * MB,
    }
    return all(name in enough and given >= enough[name] for name, given in limits.items())


def forbid_core_files() -> None:
    """Prevent core files and the machine's crash handler for this process and its descendants.

    A limit of 0 prevents only files. A handler that core_pattern names after `|` still runs, as
    root and outside of every boundary. A limit of 1 byte prevents both: core(5).
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    most = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def apply_limits(limits: Mapping[str, int], *, others: int, isolated: bool = False) -> None:
    """Set resource limits for this process and its descendants.

    Args:
        others: processes of the same user that do not belong to the command.
        isolated: also limit what the kernel counts by user.
    """
    for name, given in {**(LIMITS_OF_USER if isolated else {}), **limits}.items():
        most = given + others if name == "RLIMIT_NPROC" else given
        kind = int(getattr(resource, name))
        # A hard limit that is lower already cannot be raised, and need not be.
        hard = resource.getrlimit(kind)[1]
        bounded = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bounded, bounded))


def find_reached_limit(
    limits: Mapping[str, int], code: int, *, peak_kb: int, processes: int, said: bytes
) -> str:
    """Return the limit that a failed command probably reached, or an empty string.

    Only SIGXFSZ proves it. The rest is judged by the number of processes and the memory at the
    end, and by what the command printed.

    Args:
        code: exit code of the command; a negative one is a signal.
        peak_kb: the most memory that one process held.
        processes: the number of processes at the end.
        said: the last part of standard error.
    """
    if code == 0:
        return ""
    named = {name: _name(name, most) for name, most in limits.items() if name in NAMES}
    if code == -signal.SIGXFSZ and "RLIMIT_FSIZE" in named:
        return named["RLIMIT_FSIZE"]
    if 0 < limits.get("RLIMIT_NPROC", 0) <= processes:
        return f"at {named['RLIMIT_NPROC']}"
    if 0 < limits.get("RLIMIT_DATA", 0) * MEMORY_IS_FULL_AT <= peak_kb * 1024:
        return f"at {named['RLIMIT_DATA']}"
    words = said.decode("utf-8", "replace")
    if code == 128 + signal.SIGXFSZ:  # how a shell reports the signal of its command
        words += os.strerror(errno.EFBIG)
    for name, complaints in COMPLAINTS.items():
        if name in named and any(complaint in words for complaint in complaints):
            return f"probably {named[name]}"
    return ""


def find_reached_cgroup_limit(limits: Mapping[str, int], *, killed: int, forks_refused: int) -> str:
    """Return the limit that all processes of a command reached together, by its cgroup.

    Args:
        killed: processes that the kernel killed at the memory limit.
        forks_refused: forks that failed at the process limit.
    """
    if killed and "RLIMIT_DATA" in limits:
        most = limits["RLIMIT_DATA"] // MB
        what = "a process" if killed == 1 else f"{killed} processes"
        return f"the kernel ended {what} of it at the memory limit of {most} MB for all of them"
    if forks_refused and "RLIMIT_NPROC" in limits:
        return f"at {_name('RLIMIT_NPROC', limits['RLIMIT_NPROC'])}"
    return ""


def _name(name: str, most: int) -> str:
    return NAMES[name].format(most // MB if NAMES[name].endswith("MB") else most)


# The cgroup of a child's processes; its init stays outside.


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
