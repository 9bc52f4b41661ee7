"""What the kernel says of processes, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from retinue.clock import boot_id
from retinue.ports import ProcessIdentity


class Stat(NamedTuple):
    """The few fields of /proc/<pid>/stat that tell processes apart."""

    pid: int
    state: str
    parent: int
    start_ticks: int  # since boot; with the pid it names one process only


def stat(pid: int) -> Stat | None:
    """A process as it is now, or None when there is none of that number.

    Raises:
        OSError: it cannot be told, as when no descriptor is free.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            data = file.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name, in parentheses, may itself hold spaces and parentheses.
    fields = data.rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[19]))


def hold(pid: int) -> tuple[ProcessIdentity, int]:
    """Which process that is, and a pidfd that is no other's.

    Raises:
        OSError: it cannot be told, or held.
    """
    found = stat(pid)
    ticks = found.start_ticks if found else 0
    return ProcessIdentity(boot_id=boot_id(), pid=pid, start_ticks=ticks), os.pidfd_open(pid)


def all_processes() -> list[Stat]:
    """Every process of this PID namespace that lived through the reading."""
    found = (stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [each for each in found if each is not None]


def descendants(pid: int) -> list[Stat]:
    """Everyone below a process, itself left out, parents before their children."""
    below: dict[int, list[Stat]] = {}
    for each in all_processes():
        below.setdefault(each.parent, []).append(each)
    found: list[Stat] = []
    unseen = [pid]
    while unseen:
        children = below.get(unseen.pop(), [])
        found += children
        unseen += [each.pid for each in children]
    return found


def leads_namespace(pid: int) -> bool:
    """Whether a process is init of a PID namespace below ours, which dies with it."""
    numbers = _numbers(pid)
    return len(numbers) > 1 and numbers[-1] == "1"


def depth(pid: int) -> int:
    """How many PID namespaces a process is in, from that of this /proc down; 0 when it is gone."""
    return len(_numbers(pid))


def _numbers(pid: int) -> list[str]:
    """A process's number in each PID namespace that knows it, ours first."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
