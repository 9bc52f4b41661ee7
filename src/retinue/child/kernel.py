"""The kernel's own calls that Python 3.11 has no name for."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_PARENT = 0x8000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 0x20, 0x1000, 0x4000, 0x40000, 0x80000
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_IDMAP = 1, 2, 4, 0x100000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOVE_EMPTY_PATH = 1, 0x80000, 4
AT_FDCWD, AT_RECURSIVE, AT_EMPTY_PATH = -100, 0x8000, 0x1000
RESOLVE_NO_SYMLINKS = 4

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
LAST_CAP = 40

# The same on every architecture, but for the first.
SYS_PIVOT_ROOT = 41 if os.uname().machine == "aarch64" else 155
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_CLONE3, SYS_MOUNT_SETATTR = 428, 429, 435, 442
SYS_OPENAT2 = 437
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# Looked up once, before anybody is cloned: a clone would have to do it again, each for itself.
_NAMES = ("syscall", "prctl", "mount", "umount2", "sethostname", "unshare", "signalfd")
_functions = {name: getattr(_libc, name) for name in _NAMES}
_before_clone = ctypes.pythonapi.PyOS_BeforeFork
_after_clone = ctypes.pythonapi.PyOS_AfterFork_Parent
_in_clone = ctypes.pythonapi.PyOS_AfterFork_Child
# Unlike those of `_libc`, it keeps the interpreter to itself for as long as the call takes.
_clone = ctypes.PyDLL(None, use_errno=True).syscall
_clone.argtypes = (ctypes.c_long, ctypes.c_char_p, ctypes.c_long)
_clone.restype = ctypes.c_long


def call(name: str, *arguments: int | bytes | None) -> int:
    """What a function of the C library answers.

    Raises:
        OSError: it said less than zero.
    """
    widened = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_functions[name](*widened))
    if result < 0:
        raise _failed(name)
    return result


def _failed(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{os.strerror(number)} ({name})")


def clone(flags: int) -> int:
    """0 in the clone, its number in the original.

    Like fork, it leaves the interpreter usable: this process has one thread.
    """
    # struct clone_args: flags first, the signal at its exit fifth; CLONE_PARENT takes over ours.
    ends_with = 0 if flags & CLONE_PARENT else signal.SIGCHLD
    arguments = struct.pack("=8Q", flags, 0, 0, 0, ends_with, 0, 0, 0)
    _before_clone()
    pid = int(_clone(SYS_CLONE3, arguments, 64))
    if pid == 0:
        _in_clone()
    else:
        _after_clone()
    if pid < 0:
        raise _failed("clone3")
    return pid


def require_own_namespaces() -> None:
    """Whatever is mounted from here on, nobody else sees it.

    Mounting without that would turn the machine itself inside out, so it is
    asked of the kernel, not of whoever called.

    Raises:
        OSError: this is not the first process of namespaces of its own.
    """
    if os.getpid() != 1 or os.getppid() != 0:
        raise OSError(errno.EPERM, "not in a mount namespace of its own")


def mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes) -> None:
    call("mount", source, target, kind, flags, data)


def clone_tree(path: str, *, plain: bool = False) -> int:
    """What is mounted at a path, with all below it, as a tree that is mounted nowhere yet.

    Args:
        plain: no link is on the way there.

    Raises:
        OSError: names the path.
    """
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    try:
        if not plain:
            return call("syscall", SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags)
        how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS)
        place = call("syscall", SYS_OPENAT2, AT_FDCWD, os.fsencode(path), how, len(how))
        try:
            return call("syscall", SYS_OPEN_TREE, place, b"", flags | AT_EMPTY_PATH)
        finally:
            os.close(place)
    except OSError as fault:
        number = fault.errno or errno.EIO
        raise OSError(number, os.strerror(number), path) from None


def change_tree(tree: int, attributes: int, *, owners: int = 0, whole: bool = True) -> None:
    """The top of a tree, or the whole, has these attributes; or a user namespace's owners.

    Raises:
        OSError: a file system in it cannot do that.
    """
    change = struct.pack("=QQQQ", attributes, 0, 0, owners)
    where = AT_EMPTY_PATH | (AT_RECURSIVE if whole else 0)
    call("syscall", SYS_MOUNT_SETATTR, tree, b"", where, change, len(change))


def attach_tree(tree: int, target: str) -> None:
    """The tree is mounted, and no longer held."""
    there = os.fsencode(target)
    try:
        call("syscall", SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, there, MOVE_EMPTY_PATH)
    finally:
        os.close(tree)


def enter_root(path: bytes) -> None:
    """This folder is `/`, and nothing of what was around it can be reached."""
    os.chdir(path)
    call("syscall", SYS_PIVOT_ROOT, b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def drop_capabilities() -> None:
    """No program started from here can gain a capability again."""
    prctl, drop, none = _functions["prctl"], ctypes.c_long(PR_CAPBSET_DROP), ctypes.c_long(0)
    for capability in map(ctypes.c_long, range(LAST_CAP + 1)):
        if prctl(drop, capability, none, none, none) < 0:
            return  # this kernel knows no more of them, or we have none to drop
