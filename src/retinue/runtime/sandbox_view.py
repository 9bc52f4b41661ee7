"""Order of a child on this machine: its mounts, user and resource limits."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from retinue.child.control_protocol import Order
from retinue.child.namespaces import lacks_mount_right
from retinue.core.errors import LaunchFailed
from retinue.core.task_config import ISOLATED, Boundary
from retinue.ports import LaunchOrder

FIRST_UID, UIDS = 1_000_000_000, 500_000_000
OVERFLOW_ID = 65534  # of the kernel, for ids that it cannot map
WORK = "layers/work"  # overlayfs work folder, beside the workspace
MB = 1024 * 1024


class ChildUsers:
    """User ids of children: where the steward is the superuser, each child gets its own.

    The id depends on the `.retinue` root as well. The kernel counts processes by user, and
    subagents of the same name in two roots must not share that count.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._salt: str | None = None

    def __call__(self, name: str) -> int | None:
        """Return the user id for the workspace TASK/FOLDER; None if it is the steward's own.

        A used workspace keeps its user id, also in a root that was restored from a copy.

        Raises:
            LaunchFailed: the child would be the superuser.
        """
        # Only the superuser can run processes as another user.
        if os.geteuid() != 0:
            return None
        uid = self._find_owner(name) or self._derive_uid(name)
        # A user namespace may map only few ids: then all children share this one.
        for each in (uid, OVERFLOW_ID):
            if _is_mapped(each):
                return each
        raise LaunchFailed(
            "this user namespace maps no user but root, and a child may not run as root: map more "
            "users into it (/etc/subuid), or start the steward as an ordinary user"
        )

    def _find_owner(self, name: str) -> int:
        """Return the child user that owns the workspace; 0 if none does."""
        if self._root is None:
            return 0
        task, _, folder = name.partition("/")
        try:
            uid = os.lstat(f"{self._root}/tasks/{task}/agents/{folder}/workspace").st_uid
        except OSError:
            return 0
        return uid if FIRST_UID <= uid < FIRST_UID + UIDS else 0

    def _derive_uid(self, name: str) -> int:
        if self._salt is None:
            found = os.stat(self._root) if self._root is not None else None
            self._salt = "" if found is None else f"{found.st_dev}:{found.st_ino}/"
        return FIRST_UID + zlib.crc32((self._salt + name).encode()) % UIDS


def to_child_order(
    order: LaunchOrder, contained: bool, users: ChildUsers, *, cgroup: str = ""
) -> Order:
    """Return the order for an init on this machine, with resolved paths, user and limits.

    Args:
        contained: whether the child gets its own namespaces.
        cgroup: folder of the cgroup for its processes; empty for none.

    Raises:
        ValueError: there is nothing to execute.
        LaunchFailed: the child would be the superuser.
    """
    if not order.argv and not order.team:
        raise ValueError("the command is empty")
    given = Order(
        attempt=order.attempt,
        argv=tuple(map(os.fsencode, order.argv)),
        environment=_encode_environment({**order.environment, **order.variables}),
        workspace=os.fsencode(order.workspace),
        runtime_folder=os.fsencode(order.runtime_folder),
        timeout_ms=order.timeout_ms,
        graces_ms=order.graces_ms,
        output_limit_bytes=order.output_limit_bytes,
        limits=build_limits(order.boundary),
        contained=contained,
        listens=order.listens,
        team=order.team,
        cgroup=cgroup,
        redacted=tuple((text.encode(), instead.encode()) for text, instead in order.redacted),
        stdin=b"" if order.stdin is None else os.fsencode(order.stdin),
        lease=b"" if order.lease is None else os.fsencode(order.lease),
        views=order.views,
        hidden=tuple(map(str, order.hidden)),
        identities=tuple(order.identities.items()),
    )
    return _isolate(given, order, users) if order.boundary.mode == ISOLATED else given


def _isolate(given: Order, order: LaunchOrder, users: ChildUsers) -> Order:
    """Return the order with the boundary of an isolated child."""
    resolver = _find_resolv_conf() if order.boundary.network == "on" else []
    real = _RealPaths()
    workspace = real.resolve(order.workspace)
    writable = tuple(map(real.resolve, order.writable))
    masked = {
        each: each.relative_to(order.workspace)
        for each in order.hidden
        if each != order.workspace and each.is_relative_to(order.workspace)
    }
    kept = (workspace,) if order.read_only else ()
    writable = writable if kept else (workspace, *writable)
    uid = users(f"{order.task}/{order.workspace.parent.name}")
    # The child runs as its own user, which must own what it may write.
    if uid is not None:
        for path in (*writable, *kept):
            os.chown(path, uid, uid, follow_symlinks=False)
    # The user's home is not mounted in the sandbox; /tmp is private and writable.
    own = _encode_environment({"HOME": "/tmp", "TMPDIR": "/tmp"})
    boundary: dict[str, Any] = {
        "environment": given.environment | own | _encode_environment(order.variables),
        "isolated": True,
        "readable": (*resolver, *map(real.resolve, order.readable), *kept),
        "writable": writable,
        "lent": (*order.contexts, *map(real.resolve, order.lent)),
        "owners": tuple(order.owners.items()),
        "hidden": tuple(real.resolve(each) for each in order.hidden if each not in masked),
        # Security: these are in a folder with links of others. The child's init follows them, as
        # the child would: here they may not exist yet, or lead elsewhere.
        "masked": tuple((workspace, f"{workspace}/{path}") for path in masked.values()),
        "network": order.boundary.network,
        "uid": uid,
        "layered": workspace if order.below else "",
        "below": tuple(map(real.resolve, order.below)),
        "work": real.resolve(order.workspace.parent / WORK) if order.below else "",
    }
    return Order(**vars(given) | boundary)


def _encode_environment(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


class _RealPaths:
    """Cache of resolved paths; most lie side by side, and each folder is resolved once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def resolve(self, path: str | Path) -> str:
        path = str(path)
        real = self._known.get(path)
        if real is None:
            folder, name = os.path.split(path)
            plain = name not in ("", ".", "..")
            whole = f"{self.resolve(folder).rstrip('/')}/{name}" if plain else ""
            real = whole if plain and not os.path.islink(whole) else os.path.realpath(path)
            self._known[path] = real
        return real


def maps_owners() -> bool:
    """Return whether an isolated child can read what only the owner of a context may read."""
    return not lacks_mount_right()


def _is_mapped(uid: int) -> bool:
    return any(first <= uid < first + count for first, count in _map_owner())


@cache  # the mapping of a process never changes
def _map_owner() -> list[tuple[int, int]]:
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return [(first, count) for first, _, count in ranges]


def _find_resolv_conf() -> list[str]:
    """Return the target of /etc/resolv.conf if that lies outside of /etc, which is mounted."""
    real = os.path.realpath("/etc/resolv.conf")
    return [real] if os.path.exists(real) and not real.startswith("/etc/") else []


def build_limits(boundary: Boundary) -> dict[str, int]:
    """Return the resource limits of a child by their kernel names."""
    limits = boundary.limits
    # The kernel counts processes by user. A child that is not isolated runs as the steward's
    # user, and all other processes of that user would count.
    counted = {"RLIMIT_NPROC": limits.processes} if boundary.mode == ISOLATED else {}
    return counted | {
        "RLIMIT_DATA": limits.memory_mb * MB,
        "RLIMIT_FSIZE": limits.file_mb * MB,
        "RLIMIT_NOFILE": limits.open_files,
    }
