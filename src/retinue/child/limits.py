"""What a command may take, and whether that was what ended it."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Mapping

MB = 1024 * 1024
NEARLY = 0.9  # of its memory: what was refused is missing from the rest
NAMES = {
    "RLIMIT_FSIZE": "the file size limit of {} MB",
    "RLIMIT_NPROC": "the process limit of {}",
    "RLIMIT_NOFILE": "the limit of {} open files",
    "RLIMIT_DATA": "the memory limit of {} MB",
}
# What programs say once a limit has refused them something: often the kernel's own words.
COMPLAINTS = {
    "RLIMIT_FSIZE": (os.strerror(errno.EFBIG),),
    "RLIMIT_NPROC": ("Cannot fork", "can't start new thread", os.strerror(errno.EAGAIN)),
    "RLIMIT_NOFILE": (os.strerror(errno.EMFILE),),
    "RLIMIT_DATA": ("MemoryError", "out of memory", "bad_alloc", os.strerror(errno.ENOMEM)),
}


def bearable(limits: Mapping[str, int], output_bytes: int) -> bool:
    """Whether the first process of an attempt can do its own work within the command's limits.

    Args:
        output_bytes: how much it may have to write to one file.
    """
    enough = {
        "RLIMIT_FSIZE": output_bytes + MB,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_DATA": 512 * MB,
    }
    return all(name in enough and given >= enough[name] for name, given in limits.items())


def impose(limits: Mapping[str, int], *, others: int) -> None:
    """This process, and each that it starts, cannot take more than it was given.

    Args:
        others: how many processes of its user are there already, and not its own.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, given in limits.items():
        most = given + others if name == "RLIMIT_NPROC" else given
        kind = int(getattr(resource, name))
        hard = resource.getrlimit(kind)[1]
        bounded = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bounded, bounded))


def reached(
    limits: Mapping[str, int], code: int, *, peak_kb: int, processes: int, said: bytes
) -> str:
    """The limit that a command ran into, as far as that can be known, or nothing.

    The kernel tells the command, not us: only one of its signals is proof. The
    rest is what was seen at the end, and what the command itself complained of.

    Args:
        code: how its first process ended; below zero, by which signal.
        peak_kb: the most memory that one of its processes has held.
        processes: how many of them there were at its end.
        said: the last of what it wrote to its standard error.
    """
    if code == 0:
        return ""
    named = {name: _name(name, most) for name, most in limits.items() if name in NAMES}
    if code == -signal.SIGXFSZ and "RLIMIT_FSIZE" in named:
        return named["RLIMIT_FSIZE"]
    if 0 < limits.get("RLIMIT_NPROC", 0) <= processes:
        return f"at {named['RLIMIT_NPROC']}"
    if 0 < limits.get("RLIMIT_DATA", 0) * NEARLY <= peak_kb * 1024:
        return f"at {named['RLIMIT_DATA']}"
    words = said.decode("utf-8", "replace")
    if code == 128 + signal.SIGXFSZ:  # as a shell tells of what it ran
        words += os.strerror(errno.EFBIG)
    for name, complaints in COMPLAINTS.items():
        if name in named and any(complaint in words for complaint in complaints):
            return f"probably {named[name]}"
    return ""


def _name(name: str, most: int) -> str:
    return NAMES[name].format(most // MB if NAMES[name].endswith("MB") else most)
