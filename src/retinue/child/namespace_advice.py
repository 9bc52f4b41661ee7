"""Why this machine refuses namespaces or mounts, and which setting allows them.

The kernel answers only with an errno. This module reads the settings behind it, in the process
that was refused: behind a launcher or in a container they differ from the steward's.
"""

from __future__ import annotations

import errno
import os
import sys

from retinue.child import syscalls

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
