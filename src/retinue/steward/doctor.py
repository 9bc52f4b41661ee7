"""Checks of `retinue doctor`: what works on this machine and in this root, each by trying it."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from typing import Any

from retinue.core.errors import BadInput, Refused
from retinue.core.task_config import TaskConfig
from retinue.formats.config_document import parse_task_config
from retinue.gateway.providers import LOCAL
from retinue.runtime.cgroups import ChildCgroups
from retinue.runtime.probes import Seen
from retinue.steward.app import App

SEEN_INSIDE = ("files", "network", "system_calls", "capabilities", "user")


async def run_checks(app: App, configured: Callable[[], TaskConfig]) -> list[dict[str, Any]]:
    """Return the checks, in the order in which they are shown.

    Args:
        configured: returns the root's configuration, or raises what is wrong with it.
    """
    prefix = read_launch_prefix(configured)
    return [
        _check("python", sys.version_info >= (3, 11), sys.version.split()[0]),
        _check("sqlite", app.database.find_damage() is None, sqlite3.sqlite_version),
        _check("root", os.access(app.settings.root, os.W_OK), str(app.settings.root)),
        await _check_processes(app),
        await _check_isolation(app, prefix),
        await _check_workspaces(app),
        await _check_models(app, configured),
    ]


def read_launch_prefix(configured: Callable[[], TaskConfig]) -> tuple[str, ...]:
    """Return the launcher of children; empty if the configuration is wrong."""
    try:
        return configured().launch_prefix
    except (BadInput, Refused):
        # The check of models reports it.
        return ()


async def list_models(app: App, config: TaskConfig) -> list[dict[str, Any]]:
    """Return every provider; those named by the root's configuration come first."""
    return await app.gateway.probe_providers(config.backends, os.environ)


async def _check_models(app: App, configured: Callable[[], TaskConfig]) -> dict[str, Any]:
    """Check the models. Having none is fine; a configured one must be reachable."""
    try:
        providers = await list_models(app, configured())
    except (BadInput, Refused) as error:
        return _check("models", False, error.message)
    except OSError as error:
        return _check("models", False, f"the gateway could not be opened: {error}")
    rows = [row for row in providers if row["configured"] or row["ok"]]
    broken = [f"{row['provider']}: {row['detail']}" for row in rows if not row["ok"]]
    found = [row["provider"] for row in rows if row["ok"]]
    parts = [*broken, *([f"reachable: {', '.join(found)}"] if found else [])]
    parts += [row["detail"] for row in providers if row["provider"] == LOCAL and row not in rows]
    check = _check("models", not broken, "; ".join(parts))
    return check | {"hint": "'retinue model list' shows details"}


async def _check_processes(app: App) -> dict[str, Any]:
    reason = app.runtime.find_unavailable_reason()
    if reason:
        return _check("processes", False, reason)
    detail = "a PID namespace ends all processes of a child together with it"
    if await app.runtime.containment() != "pid-namespace":
        detail = "no PID namespace: a child's processes are found by scanning, and can be missed"
    return _check("processes", True, detail)


async def _check_isolation(app: App, prefix: Sequence[str]) -> dict[str, Any]:
    missing = await app.runtime.isolation_missing(prefix)
    if missing:
        hint = "subagent_runtime_fallback_mode: inherited runs children without it"
        if prefix:
            hint = "install it, or change subagent_host_launch_prefix in config.yaml"
        return _check("isolation", False, missing) | {"hint": hint}
    if prefix:
        detail = f"left to the launcher {prefix[0]!a}, which is installed; it was not tried"
        return _check("isolation", True, detail)
    return _check("isolation", True, "a child was isolated and ran")


async def _check_workspaces(app: App) -> dict[str, Any]:
    """Check overlay mounts. Without them, every workspace of a repository is a full checkout."""
    missing = await app.runtime.layers_missing(app.settings.root)
    if missing:
        return _check("workspaces", True, f"full checkouts of a repository: {missing}")
    return _check("workspaces", True, "unchanged files of a repository are shared by children")


async def describe_boundary(app: App, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Return what is in force for an isolated child."""
    missing = await app.runtime.isolation_missing(prefix)
    seen = app.runtime.isolation
    return {
        "available": missing is None,
        "reason": missing,
        "processes": await app.runtime.containment(),
        **(dict.fromkeys(SEEN_INSIDE, "none") if seen is None else _describe_seen(seen)),
        "limits": _describe_limits(seen, app.runtime.cgroups),
        "network_default": parse_task_config({}, where="defaults").network,
        "launch": "fork server; a fresh interpreter behind a launch prefix",
        **({"launch_prefix": list(prefix)} if prefix else {}),
    }


def _describe_limits(seen: Seen | None, cgroups: ChildCgroups) -> str:
    """Return whether limits apply to each process or to a child as a whole."""
    if seen is not None and seen.in_own_cgroup:
        return "for each process, and by cgroup v2 for the whole child"
    reason = cgroups.missing or "a test child was not in its own cgroup"
    return f"for each process only; no cgroup: {reason}" if seen is not None else "none"


def _describe_seen(seen: Seen) -> dict[str, str]:
    """Return what a test child found in force around itself."""
    owner = "the steward's own" if seen.uid == os.geteuid() else "of its own"
    facts = (
        f"mount namespace, Landlock ABI {seen.landlock_version}",
        f"network namespace with {', '.join(seen.interfaces) or 'nothing in it'}",
        "seccomp filter, no new privileges",
        "none" if not seen.capabilities else f"{seen.capabilities:x}",
        f"uid {seen.uid}, {owner}",
    )
    return dict(zip(SEEN_INSIDE, facts, strict=True))


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}
