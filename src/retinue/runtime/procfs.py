"""Processes and their relations, read from /proc."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from retinue.clock import read_boot_id
from retinue.ports import ProcessIdentity
from retinue.sockets import SO_PEERPIDFD, open_peer_pidfd, read_peer


class Stat(NamedTuple):
    """The fields of /proc/<pid>/stat that identify a process."""

    pid: int
    state: str
    parent: int
    start_ticks: int  # since boot; with the pid, unique within a boot


def stat(pid: int) -> Stat | None:
    """Return the current state of a process, or None if the pid is not in use.

    Raises:
        OSError: /proc cannot be read, for example because no descriptor is free.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            data = file.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may hold spaces and parentheses itself.
    fields = data.rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[19]))


def hold(pid: int) -> tuple[ProcessIdentity, int]:
    """Return the identity of a process, and a pidfd of it.

    Raises:
        OSError: /proc cannot be read, or no pidfd can be opened.
    """
    found = stat(pid)
    ticks = found.start_ticks if found else 0
    return ProcessIdentity(boot_id=read_boot_id(), pid=pid, start_ticks=ticks), os.pidfd_open(pid)


def list_processes() -> list[Stat]:
    """Return the processes of this PID namespace; not a snapshot, as they come and go."""
    found = (stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [each for each in found if each is not None]


def list_process_tree(pid: int) -> list[Stat]:
    """Return all descendants of a process, parents before their children."""
    below: dict[int, list[Stat]] = {}
    for each in list_processes():
        below.setdefault(each.parent, []).append(each)
    found: list[Stat] = []
    unseen = [pid]
    while unseen:
        children = below.get(unseen.pop(), [])
        found += children
        unseen += [each.pid for each in children]
    return found


def is_namespace_init(pid: int) -> bool:
    """Return whether a process is init of a PID namespace below ours, which dies with it."""
    numbers = _read_namespace_pids(pid)
    return len(numbers) > 1 and numbers[-1] == "1"


def count_namespaces(pid: int) -> int:
    """Return how many PID namespaces a process is in, from this /proc's down; 0 if it is gone."""
    return len(_read_namespace_pids(pid))


def _read_namespace_pids(pid: int) -> list[str]:
    """Return the pid of a process in each PID namespace that it is in, ours first."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])


UNKNOWN = 0  # the process has ended, or is in a PID namespace that is not ours
WALKS = 8  # retries while ancestors of a process end during the walk


def find_calling_child(
    connection: socket.socket, children: Iterable[int], option: int = SO_PEERPIDFD
) -> int | None:
    """Return the child that opened this connection.

    None: a process of our own PID namespace that descends from no child. UNKNOWN: all others.

    SO_PEERCRED gives the pid of the process that called connect(2). Once that process has ended,
    the pid may be reused. SO_PEERPIDFD (Linux 6.5) gives a descriptor of the process itself: if
    it is alive after /proc was read, the pid was its own all the time. On older kernels only an
    exit during the reading is noticed.
    """
    pid, _ = read_peer(connection)
    try:
        try:
            pidfd = open_peer_pidfd(connection, option)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                return UNKNOWN
            pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):  # it has ended, or has no pid here, which reads as 0
        return UNKNOWN
    try:
        found = find_child_above(pid, children)
        return UNKNOWN if _has_ended(pidfd) else found
    finally:
        os.close(pidfd)


def find_child_above(pid: int, children: Iterable[int]) -> int | None:
    """Return the child that a process is or descends from; else None, or UNKNOWN, as above.

    Orphans are adopted by the init of their PID namespace, or by the nearest subreaper. Both are
    within the child, so a process cannot leave the tree of its child.
    """
    known = set(children)
    for _ in range(WALKS):
        line = _list_ancestors(pid, known)
        if line is not None:
            break
    else:
        return UNKNOWN
    if line[-1] in known:
        return line[-1]
    same = count_namespaces(pid) == count_namespaces(os.getpid())
    return None if line[-1] <= 1 and same else UNKNOWN


def _list_ancestors(pid: int, known: Collection[int]) -> list[int] | None:
    """Return a process and its ancestors up to a known one; None if one ended meanwhile.

    The children of a process that ends get another parent. So if a process still has the same
    parent after that parent was read, the pid of the parent was not reused.
    """
    line = [pid]
    below = None
    while line[-1] > 1 and line[-1] not in known:
        found = _stat(line[-1])
        if found is None:
            return line if below is None else None
        if below is not None:
            again = _stat(below.pid)
            if again is None or again.parent != below.parent:
                return None
        below = found
        line.append(found.parent)
    return line


def _stat(pid: int) -> Stat | None:
    try:
        return stat(pid)
    except OSError:
        return None


def _has_ended(pidfd: int) -> bool:
    """Return whether the process is gone or a zombie: its pidfd is readable from then on."""
    state = select.poll()
    state.register(pidfd, select.POLLIN)
    return bool(state.poll(0))
