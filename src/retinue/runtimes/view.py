"""What an isolated child is shown of this machine."""

from __future__ import annotations

import os
import zlib
from functools import cache
from pathlib import Path

from retinue.child.sandbox import Sandbox
from retinue.domain.boundary import ISOLATED, Boundary
from retinue.domain.errors import LaunchFailed
from retinue.ports import LaunchOrder

FIRST_UID, UIDS = 1_000_000_000, 500_000_000
NOBODY = 65534
WORK = "layers/work"  # the kernel's own folder, beside a workspace that is seen over others
MB = 1024 * 1024


def sandbox_for(order: LaunchOrder) -> Sandbox:
    resolver = _resolver() if order.boundary.network == "on" else []
    real = _RealPaths()
    workspace = real.of(order.workspace)
    hidden = tuple(map(real.of, order.hidden))
    return Sandbox(
        readable=(*resolver, *map(real.of, order.readable)),
        writable=(workspace, *map(real.of, order.writable)),
        lent=tuple(_lent(path, real.of(path), hidden) for path in order.lent),
        hidden=hidden,
        network=order.boundary.network,
        uid=child_uid(f"{order.task}/{order.workspace.parent.name}"),
        layered=workspace if order.below else "",
        below=tuple(map(real.of, order.below)),
        work=real.of(order.workspace.parent / WORK) if order.below else "",
    )


def _lent(path: Path, real: str, hidden: tuple[str, ...]) -> str:
    """Where it is. What was given of hidden folders was no link then, and others write in them.

    Raises:
        LaunchFailed: by now it is one.
    """
    given = str(path)
    if given != real and any(given.startswith(f"{folder}/") for folder in hidden):
        raise LaunchFailed(f"{given} was replaced by a link")
    return real


class _RealPaths:
    """Where paths lead, most of which lie side by side: every folder is followed once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, path: str | Path) -> str:
        path = str(path)
        real = self._known.get(path)
        if real is None:
            folder, name = os.path.split(path)
            plain = name not in ("", ".", "..")
            whole = f"{self.of(folder).rstrip('/')}/{name}" if plain else ""
            real = whole if plain and not os.path.islink(whole) else os.path.realpath(path)
            self._known[path] = real
        return real


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
    return any(first <= uid < first + count for first, count in _mapped())


@cache  # a process's own mapping is made once
def _mapped() -> list[tuple[int, int]]:
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return [(first, count) for first, _, count in ranges]


def _resolver() -> list[str]:
    """Where name servers are written down, when that is a link out of /etc."""
    real = os.path.realpath("/etc/resolv.conf")
    return [real] if os.path.exists(real) and not real.startswith("/etc/") else []


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
