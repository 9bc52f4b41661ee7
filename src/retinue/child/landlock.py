"""Landlock rules: a second restriction of file access, beside the mount namespace."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from retinue.child.syscalls import (
    PR_SET_NO_NEW_PRIVS,
    SYS_LANDLOCK_ADD,
    SYS_LANDLOCK_CREATE,
    SYS_LANDLOCK_RESTRICT,
    call,
)

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
CHANGE = sum(1 << bit for bit in range(4, 13))  # remove files and folders, make any kind
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15
LOOK = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
VERSION_FLAG, PATH_BENEATH = 1, 1


def read_abi_version() -> int:
    """Return the version of this kernel's Landlock; 0 if it has none."""
    try:
        return call("syscall", SYS_LANDLOCK_CREATE, None, 0, VERSION_FLAG)
    except OSError:
        return 0


def apply_landlock(readable: Sequence[str], writable: Sequence[str], *, network: bool) -> None:
    """Restrict this process and its descendants to these files, and to no TCP without `network`.

    Raises:
        OSError: the rules could not be applied.
    """
    # The kernel refuses rights that its version does not know.
    known = read_abi_version()
    rights = LOOK | WRITE_FILE | CHANGE
    rights |= (REFER if known >= 2 else 0) | (TRUNCATE if known >= 3 else 0)
    rights |= IOCTL_DEV if known >= 5 else 0
    tcp = BIND_TCP | CONNECT_TCP if known >= 4 and not network else 0
    scoped = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if known >= 6 else 0
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    attributes = struct.pack("=QQQ", rights, tcp, scoped)[:size]
    rules = call("syscall", SYS_LANDLOCK_CREATE, attributes, size, 0)
    try:
        for path in readable:
            _allow(rules, path, LOOK)
        for path in writable:
            _allow(rules, path, rights)
        # Without capabilities the kernel requires no_new_privs before a restriction.
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        call("syscall", SYS_LANDLOCK_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{place}"):
            rights &= OF_FILES
        rule = struct.pack("=Qi", rights, place)
        call("syscall", SYS_LANDLOCK_ADD, rules, PATH_BENEATH, rule, 0)
    finally:
        os.close(place)
