"""System calls that Python 3.11 does not provide."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_PARENT = 0x8000
CLONE_INTO_CGROUP = 0x200000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 0x20, 0x1000, 0x4000, 0x40000, 0x80000
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_IDMAP = 1, 2, 4, 0x100000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOVE_EMPTY_PATH = 1, 0x80000, 4
MOVE_TO_EMPTY_PATH = 0x40
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
RESOLVE_NO_SYMLINKS = 4

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
LAST_CAP = 40
CAPABILITY_VERSION = 0x20080522
CAP_CHOWN, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, CAP_SETFCAP = 0, 6, 7, 21, 31

# Numbers of system calls; only the first three differ between architectures.
SYS_CAPSET = 91 if os.uname().machine == "aarch64" else 126
SYS_PIVOT_ROOT = 41 if os.uname().machine == "aarch64" else 155
SYS_SECCOMP = 277 if os.uname().machine == "aarch64" else 317
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_CLONE3, SYS_MOUNT_SETATTR = 428, 429, 435, 442
SYS_OPENAT2 = 437
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# Looked up once, in the fork server; else each clone would look them up again.
_NAMES = ("syscall", "prctl", "mount", "umount2", "sethostname", "unshare", "signalfd")
_functions = {name: getattr(_libc, name) for name in _NAMES}
_before_clone = ctypes.pythonapi.PyOS_BeforeFork
_after_clone = ctypes.pythonapi.PyOS_AfterFork_Parent
_in_clone = ctypes.pythonapi.PyOS_AfterFork_Child
# PyDLL keeps the interpreter lock during the call, as a fork requires.
_clone = ctypes.PyDLL(None, use_errno=True).syscall
_clone.argtypes = (ctypes.c_long, ctypes.c_char_p, ctypes.c_long)
_clone.restype = ctypes.c_long


def call(name: str, *arguments: int | bytes | None) -> int:
    """Call a function of the C library and return its result.

    Raises:
        OSError: the result is negative.
    """
    widened = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_functions[name](*widened))
    if result < 0:
        raise _raise_errno(name)
    return result


def _raise_errno(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{os.strerror(number)} ({name})")


def clone(flags: int, cgroup: int | None = None) -> int:
    """Clone this process; return 0 in the clone and its pid in this process.

    The interpreter stays usable in both, as after fork: this process has one thread.

    Args:
        cgroup: descriptor of the clone's cgroup, if it is another one.
    """
    # struct clone_args: flags first, the exit signal fifth; CLONE_PARENT requires signal 0.
    ends_with = 0 if flags & CLONE_PARENT else signal.SIGCHLD
    arguments = struct.pack("=8Q", flags, 0, 0, 0, ends_with, 0, 0, 0)
    if cgroup is not None:
        flags |= CLONE_INTO_CGROUP
        arguments = struct.pack("=11Q", flags, 0, 0, 0, ends_with, 0, 0, 0, 0, 0, cgroup)
    _before_clone()
    pid = int(_clone(SYS_CLONE3, arguments, len(arguments)))
    if pid == 0:
        _in_clone()
    else:
        _after_clone()
    if pid < 0:
        raise _raise_errno("clone3")
    return pid


def require_own_namespaces() -> None:
    """Check that this process is the init of its own namespaces, before it mounts anything.

    Mounts outside of them would change the machine itself, so the caller is not trusted.

    Raises:
        OSError: it is not.
    """
    # An init has pid 1, and its parent is outside of the namespace.
    if os.getpid() != 1 or os.getppid() != 0:
        raise OSError(errno.EPERM, "not in a mount namespace of its own")


def mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes) -> None:
    call("mount", source, target, kind, flags, data)


def clone_tree(path: str, *, plain: bool = False, identity: tuple[int, int] | None = None) -> int:
    """Return a detached copy of the mounts at a path and below it, as a descriptor.

    Args:
        plain: refuse links on the way.
        identity: required device and inode; implies `plain`.

    Raises:
        OSError: the path cannot be opened, or was replaced; the error names it.
    """
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    try:
        if not plain and identity is None:
            return call("syscall", SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags)
        # Opened first and checked by descriptor: the path could be replaced in between.
        how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS)
        place = call("syscall", SYS_OPENAT2, AT_FDCWD, os.fsencode(path), how, len(how))
        try:
            found = os.fstat(place)
            if identity is not None and (found.st_dev, found.st_ino) != tuple(identity):
                raise OSError(errno.ESTALE, "was replaced")
            return call("syscall", SYS_OPEN_TREE, place, b"", flags | AT_EMPTY_PATH)
        finally:
            os.close(place)
    except OSError as fault:
        number = fault.errno or errno.EIO
        said = "was replaced since it was given" if number == errno.ESTALE else os.strerror(number)
        raise OSError(number, said, path) from None


def change_tree(tree: int, attributes: int, *, owners: int = 0, whole: bool = True) -> None:
    """Set attributes of a detached tree, or the owners that a user namespace maps.

    Args:
        whole: change all mounts of the tree, not only its top.

    Raises:
        OSError: a file system in the tree does not support that.
    """
    change = struct.pack("=QQQQ", attributes, 0, 0, owners)
    where = AT_EMPTY_PATH | (AT_RECURSIVE if whole else 0)
    call("syscall", SYS_MOUNT_SETATTR, tree, b"", where, change, len(change))


def attach_tree(tree: int, target: str | int) -> None:
    """Mount a detached tree at a path or at an open descriptor, and close the tree."""
    try:
        if isinstance(target, int):
            flags = MOVE_EMPTY_PATH | MOVE_TO_EMPTY_PATH
            call("syscall", SYS_MOVE_MOUNT, tree, b"", target, b"", flags)
        else:
            there = os.fsencode(target)
            call("syscall", SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, there, MOVE_EMPTY_PATH)
    finally:
        os.close(tree)


def enter_root(path: bytes) -> None:
    """Make this folder the root of the file system, and detach the old one."""
    # With "." twice, the old root is mounted over the new one, and then removed: pivot_root(2).
    os.chdir(path)
    call("syscall", SYS_PIVOT_ROOT, b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def read_effective_capabilities() -> int:
    """Return the effective capabilities as a bit mask; 0 if /proc cannot be read."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return 0


def clear_capabilities() -> None:
    """Give up the capabilities that this process holds.

    A change of the user or an exec clears them, too, but a team of an ordinary user has neither.

    Raises:
        OSError: they could not be given up.
    """
    header = CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4)  # of this process
    call("syscall", SYS_CAPSET, header, bytes(24))


def drop_capabilities() -> None:
    """Empty the bounding set, so that no program started from here can gain a capability."""
    prctl = _functions["prctl"]
    drop = ctypes.c_long(PR_CAPBSET_DROP)
    none = ctypes.c_long(0)
    for capability in map(ctypes.c_long, range(LAST_CAP + 1)):
        if prctl(drop, capability, none, none, none) < 0:
            return  # the kernel has no more of them, or this process may not drop any
