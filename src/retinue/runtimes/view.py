"""What an isolated child is shown of this machine."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from retinue.child.sandbox import Sandbox
from retinue.domain.boundary import ISOLATED, Boundary
from retinue.domain.errors import LaunchFailed
from retinue.ports import LaunchOrder

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
FIRST_UID, UIDS = 1_000_000_000, 500_000_000
NOBODY = 65534
WORK = "layers/work"  # the kernel's own folder, beside a workspace that is seen over others
MB = 1024 * 1024


def sandbox_for(order: LaunchOrder) -> Sandbox:
    readable, links = _system()
    writable = [order.workspace, *order.writable]
    if order.boundary.network == "on":
        readable += _resolver()
    return Sandbox(
        readable=tuple(readable + [_real(path) for path in order.readable]),
        writable=tuple(_real(path) for path in writable),
        lent=tuple(_real(path) for path in order.lent),
        hidden=tuple(_real(path) for path in order.hidden),
        links=links,
        network=order.boundary.network,
        uid=child_uid(f"{order.task}/{order.workspace.parent.name}"),
        layered=_real(order.workspace) if order.below else "",
        below=tuple(_real(path) for path in order.below),
        work=_real(order.workspace.parent / WORK),
    )


def child_uid(name: str) -> int | None:
    """Who a child is on this machine: nobody else, where we are root; else who we are.

    Raises:
        LaunchFailed: it would be root.
    """
    if os.geteuid() != 0:
        return None
    uid = FIRST_UID + zlib.crc32(name.encode()) % UIDS
    for each in (uid, NOBODY):
        if _is_mapped(each):
            return each
    raise LaunchFailed("this user namespace has no user but root, which a child may not be")


def _is_mapped(uid: int) -> bool:
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(first <= uid < first + count for first, _, count in ranges)


def _system() -> tuple[list[str], dict[str, str]]:
    """The system base: folders to bind, and the links between them as they are."""
    folders = [path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    links = {path: os.readlink(path) for path in SYSTEM if os.path.islink(path)}
    return folders, links


def _resolver() -> list[str]:
    """Where name servers are written down, when that is a link out of /etc."""
    real = os.path.realpath("/etc/resolv.conf")
    return [real] if os.path.exists(real) and not real.startswith("/etc/") else []


def _real(path: Path) -> str:
    return os.path.realpath(path)


def limits_for(boundary: Boundary) -> dict[str, int]:
    """What a child may take. The kernel counts processes by user: within our own boundary the
    child is the user we are, and everything that user runs would count.
    """
    limits = boundary.limits
    counted = {"RLIMIT_NPROC": limits.processes} if boundary.mode == ISOLATED else {}
    return counted | {
        "RLIMIT_DATA": limits.memory_mb * MB,
        "RLIMIT_FSIZE": limits.file_mb * MB,
        "RLIMIT_NOFILE": limits.open_files,
    }
