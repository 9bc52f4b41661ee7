"""Namespaces of children: all processes of a child are in them, and die with their init."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from functools import cache

from retinue.child import syscalls

# Why this machine refuses namespaces or mounts, and which setting allows them.
#
# The kernel answers only with an errno. The code below reads the settings behind it, in the process
# that was refused: behind a launcher or in a container they differ from the steward's.

KINDS = ("user", "pid", "mnt", "net", "ipc", "uts")  # of namespaces that a child is put into
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
# What root without CAP_SYS_ADMIN needs to be another user inside a user namespace.
FOR_ANOTHER_USER = {
    "CAP_CHOWN": syscalls.CAP_CHOWN,
    "CAP_SETUID": syscalls.CAP_SETUID,
    "CAP_SETGID": syscalls.CAP_SETGID,
    "CAP_SETFCAP": syscalls.CAP_SETFCAP,
}


def explain_refused_namespaces(code: int, proc: str = "/proc") -> str:
    """Return one sentence: what was refused, by which setting, and how to change that."""
    refused = f"the kernel refuses new namespaces ({_name(code)})"
    causes = [*_spent_limits(code, proc), *_switches(code, proc)]
    if code in (errno.ENOSYS, errno.EINVAL):
        causes.append("it may be built without them (CONFIG_USER_NS, CONFIG_PID_NS)")
    if code in (errno.EPERM, errno.EACCES):
        causes += _container_filters(proc)
    return f"{refused}: {'; '.join(causes)}" if causes else f"{refused}, for no reason known here"


def explain_refused_mount(code: int, proc: str = "/proc") -> str:
    """Return what keeps a child from mounting its own file systems; empty if unknown."""
    if code not in (errno.EPERM, errno.EACCES):
        return ""
    causes = []
    if masked := _masked_proc(proc):
        causes.append(
            f"the container covers parts of /proc ({masked}), and then the kernel mounts no other: "
            "'--security-opt systempaths=unconfined' (podman: '--security-opt unmask=ALL') shows it"
        )
    causes += _switches(code, proc)
    if profile := _apparmor_profile(proc):
        causes.append(
            f"the AppArmor profile {profile!a} may refuse mounts: "
            "'--security-opt apparmor=unconfined' starts the container without it"
        )
    return "; ".join(causes)


def explain_missing_capabilities() -> str:
    """Return which capabilities the superuser lacks to run a child as another user.

    Empty if none is missing, or if this is an ordinary user.
    """
    if os.geteuid() != 0:
        return ""
    held = syscalls.read_effective_capabilities()
    needed = dict(FOR_ANOTHER_USER)
    if held & 1 << syscalls.CAP_SYS_ADMIN:
        del needed["CAP_SETFCAP"]  # no user namespace is needed
    missing = [name for name, number in needed.items() if not held & 1 << number]
    if not missing:
        return ""
    flags = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in missing)
    return (
        f"root without {', '.join(missing)} cannot make a child another user: "
        f"'{flags}' gives the container what is missing, or start the steward as an ordinary user"
    )


def lacks_mount_right() -> bool:
    """Return whether this is the superuser without the right to mount outside user namespaces."""
    if os.geteuid() != 0:
        return False
    return not syscalls.read_effective_capabilities() & 1 << syscalls.CAP_SYS_ADMIN


def _spent_limits(code: int, proc: str) -> list[str]:
    causes = []
    for kind in KINDS:
        name = f"user.max_{kind}_namespaces"
        if _setting(proc, name) == "0":
            causes.append(f"{name} is 0, and 'sysctl -w {name}=15000' as root allows them")
    if code in (errno.ENOSPC, errno.EUSERS) and not causes:
        causes.append(
            "as many exist as user.max_user_namespaces and its like allow ('sysctl user' shows "
            "them), or they are nested 32 deep"
        )
    return causes


def _switches(code: int, proc: str) -> list[str]:
    """Return settings of distributions that refuse user namespaces to ordinary users."""
    causes = []
    if code in (errno.EPERM, errno.EACCES):
        name = "kernel.unprivileged_userns_clone"
        if _setting(proc, name) == "0":
            causes.append(f"{name} is 0, and 'sysctl -w {name}=1' as root allows them")
        name = "kernel.apparmor_restrict_unprivileged_userns"
        if _setting(proc, name) == "1":
            causes.append(
                f"{name} is 1, and 'sysctl -w {name}=0' as root, or an AppArmor profile with the "
                f"rule 'userns,' for {os.path.realpath(sys.executable)}, allows them"
            )
    return causes


def _container_filters(proc: str) -> list[str]:
    """Return advice for a container, whose filter answers EPERM like a missing capability."""
    if not _is_filtered(proc) and not any(map(os.path.exists, CONTAINER_MARKS)):
        return []
    return [
        "the container's seccomp filter may refuse them, and '--security-opt seccomp=unconfined', "
        "'--security-opt apparmor=unconfined' and '--security-opt systempaths=unconfined' "
        "together, or '--cap-add SYS_ADMIN --security-opt apparmor=unconfined', let it make them"
    ]


def _is_filtered(proc: str) -> bool:
    lines = _lines(f"{proc}/self/status")
    return any(line.startswith("Seccomp:") and "2" in line for line in lines)


def _masked_proc(proc: str) -> str:
    """Return the first path below /proc that something else is mounted on."""
    points = (line.split()[4] for line in _lines(f"{proc}/self/mountinfo"))
    return next((point for point in points if point.startswith("/proc/")), "")


def _apparmor_profile(proc: str) -> str:
    name = next(iter(_lines(f"{proc}/self/attr/apparmor/current")), "").strip()
    return "" if name in ("", "unconfined") else name


def _setting(proc: str, name: str) -> str:
    return next(iter(_lines(f"{proc}/sys/{name.replace('.', '/')}")), "").strip()


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:
        return []


def _name(code: int) -> str:
    return errno.errorcode.get(code, str(code))


NO_NAMESPACES = (
    *(errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOENT),
    *(errno.ENOSYS, errno.ENOSPC, errno.EUSERS),
)
PROCESSES = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS
OF_ISOLATED = syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS  # only isolated children have these


_own = {"user namespace": False}  # whether this process has one; set in the clone


class NoNamespaces(Exception):
    """The kernel refuses namespaces; the message says why."""


def clone_into(namespaces: int) -> int:
    """Clone an init into new namespaces; return 0 in it, and its pid in this process.

    Without CAP_SYS_ADMIN, which the superuser may lack, too, a user namespace is made around the
    others. An ordinary user keeps its id there. The superuser maps all users of its own
    namespace if it may, else only itself.

    Raises:
        NoNamespaces: the kernel refuses them to this user.
    """
    try:
        if os.geteuid() == 0:
            with suppress(PermissionError):  # without CAP_SYS_ADMIN
                return syscalls.clone(namespaces)
        if (refused := _test_user_namespace()) != 0:
            raise OSError(refused, os.strerror(refused))
        pid, mapped = _clone_into_user_namespace(namespaces)
    except OSError as fault:
        if fault.errno in NO_NAMESPACES:
            raise NoNamespaces(explain_refused_namespaces(fault.errno)) from fault
        raise
    if pid == 0:
        if mapped:
            os._exit(mapped)  # without its users the clone is of no use
        _own["user namespace"] = True
    return pid


def has_own_user_namespace() -> bool:
    """Return whether this process was cloned into its own user namespace."""
    return _own["user namespace"]


@cache
def _test_user_namespace() -> int:
    """Return 0 if this user may make a user namespace and map users in it, else the errno.

    A separate process tries it once, because a real clone that failed could not report it.
    """
    try:
        pid, mapped = _clone_into_user_namespace(0)
    except OSError as fault:
        return fault.errno or errno.EPERM
    if pid == 0:
        os._exit(mapped)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _clone_into_user_namespace(namespaces: int) -> tuple[int, int]:
    """Return what `clone` does, and in the clone the errno if its users could not be mapped.

    Raises:
        OSError: there is no clone.
    """
    uid = os.geteuid()
    gid = os.getegid()
    flags = namespaces | syscalls.CLONE_NEWUSER
    if not _can_map_all_users():
        pid = syscalls.clone(flags)
        return pid, 0 if pid else _map_itself(uid, gid)
    # Only this process may map other users, and the clone must wait for that.
    source, sink = os.pipe2(os.O_CLOEXEC)
    try:
        pid = syscalls.clone(flags)
        if pid == 0:
            os.close(sink)
            answer = os.read(source, 1)  # empty if the parent is gone
            return 0, answer[0] if answer else errno.EPIPE
        os.write(sink, bytes([_map_all(pid)]))
        return pid, 0
    finally:
        os.close(source)
        with suppress(OSError):  # the clone has closed it already
            os.close(sink)


@cache
def _can_map_all_users() -> bool:
    """Return whether this is a superuser that may map all users, so a child can be another."""
    held = syscalls.read_effective_capabilities()
    needed = (syscalls.CAP_SETUID, syscalls.CAP_SETGID, syscalls.CAP_SETFCAP)
    return os.geteuid() == 0 and all(held & 1 << number for number in needed)


def _map_itself(uid: int, gid: int) -> int:
    try:
        # The kernel allows an ordinary user to map its group only after this.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    except OSError as fault:
        return fault.errno or errno.EPERM
    return 0


def _map_all(pid: int) -> int:
    """Give each user of this namespace the same id in that process's namespace."""
    try:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/self/{name}") as file:
                ranges = [line.split() for line in file]
            lines = [f"{first} {first} {count}\n" for first, _, count in ranges]
            _write(f"/proc/{pid}/{name}", "".join(lines))
    except OSError as fault:
        return fault.errno or errno.EPERM
    return 0


def show_own_processes() -> None:
    """Mount a /proc that lists only this child's processes, if possible."""
    with suppress(OSError):  # containment does not depend on it: only `ps` would differ
        syscalls.require_own_namespaces()
        syscalls.mount(None, b"/", None, syscalls.MS_REC | syscalls.MS_SLAVE, b"")
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        syscalls.mount(b"proc", b"/proc", b"proc", flags, b"")


def list_descendants() -> list[int]:
    """Return the pids of all descendants of this process."""
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
