"""Namespaces: everything a child starts is born into them, and dies with their first process."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import cache

from retinue.child import kernel

NO_NAMESPACES = (
    *(errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOENT),
    *(errno.ENOSYS, errno.ENOSPC, errno.EUSERS),
)
PROCESSES = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS


class NoNamespaces(Exception):
    """The kernel does not give us any; the message says why."""


def clone_into(namespaces: int) -> int:
    """0 in the first process of fresh namespaces, its number in the original.

    An ordinary user gets a user namespace around the others, in which he is who
    he was.

    Raises:
        NoNamespaces: not here, not for this user.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid == 0:
            with suppress(PermissionError):  # root without capabilities is like any other user
                return kernel.clone(namespaces)
        if (refused := _user_namespace_refused()) != 0:
            raise OSError(refused, os.strerror(refused))
        pid = kernel.clone(namespaces | kernel.CLONE_NEWUSER)
    except OSError as fault:
        if fault.errno in NO_NAMESPACES:
            raise NoNamespaces(f"clone: {fault.strerror}") from fault
        raise
    if pid == 0:
        try:
            _map_ids(uid, gid)
        except OSError:
            os._exit(errno.EPERM)  # not to be the server's double
    return pid


@cache
def _user_namespace_refused() -> int:
    """0 where a user may have a user namespace of his own and be himself in it, else the errno.

    Tried once by a process that is there for nothing else: a clone that finds out too late has
    nobody left to tell.
    """
    uid, gid = os.geteuid(), os.getegid()
    pid = os.fork()
    if pid == 0:
        code = errno.EPERM
        try:
            kernel.call("unshare", kernel.CLONE_NEWUSER)
            _map_ids(uid, gid)
            code = 0
        except OSError as fault:
            code = fault.errno or errno.EPERM
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _map_ids(uid: int, gid: int) -> None:
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def show_own_processes() -> None:
    """/proc lists this child's processes alone, where it can be mounted."""
    with suppress(OSError):  # containment holds without it: only `ps` would show other numbers
        kernel.require_own_namespaces()
        kernel.mount(None, b"/", None, kernel.MS_REC | kernel.MS_SLAVE, b"")
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount(b"proc", b"/proc", b"proc", flags, b"")


def descendants() -> list[int]:
    """Everyone below this process, by the parents that /proc names."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
            below.setdefault(parent, []).append(int(name))
    found: list[int] = []
    unseen = [os.getpid()]
    while unseen:
        children = below.get(unseen.pop(), [])
        found += children
        unseen += children
    return found


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
