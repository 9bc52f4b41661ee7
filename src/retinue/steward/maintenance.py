"""Maintenance of a root: doctor checks, verify, rebuild, garbage collection, model install."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retinue.core.errors import BadInput, NotFound, Refused
from retinue.core.ids import TaskId
from retinue.core.task_config import TaskConfig
from retinue.formats.config_document import named_in, parse_task_config
from retinue.formats.yaml_document import Place, load_yaml
from retinue.gateway.local_model.weights import find_models_folder
from retinue.gateway.providers import LOCAL
from retinue.runtime.cgroups import ChildCgroups
from retinue.runtime.probes import Seen
from retinue.steward.app import App
from retinue.store.root_lock import RootLock, prepare_root
from retinue.store.verify import Problem, Verifier, make_problem
from retinue.trust import find_config_file, require_approved

SEEN_INSIDE = ("files", "network", "system_calls", "capabilities", "user")


def load_config_document(app: App, text: str, where: str) -> tuple[Any, str, dict[Place, int]]:
    """Return the document of the root's configuration, or of `text` if given.

    Returns:
        The document ({} without any), its name, and its lines by their place in it.

    Raises:
        BadInput: it is not YAML.
        Refused: the configuration names an environment variable that was not approved.
    """
    root = app.settings.root
    path = None if text else find_config_file(root, os.environ)
    if path is not None:
        text = path.read_text()
        where = str(path)
    lines: dict[Place, int] = {}
    document = load_yaml(text, where=where, lines=lines) if text else {}
    # Security: the file came with the root; it may read only variables that the user approved.
    if path is not None:
        require_approved(named_in(document).variables, root, os.environ)
    return document, where, lines


def read_root_config(app: App, text: str = "", where: str = "") -> TaskConfig:
    """Return the parsed configuration of the root, or of `text` if given.

    Raises:
        BadInput: the configuration is wrong; the message names the key and the line.
        Refused: the configuration names an environment variable that was not approved.
    """
    document, where, lines = load_config_document(app, text, where)
    return parse_task_config(document or {}, where=where, lines=lines)


async def run_checks(app: App, configured: Callable[[], TaskConfig]) -> list[dict[str, Any]]:
    """Return the doctor's checks. Each is tried, not guessed.

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


def install_model(
    tell: Callable[[str], None], *, source: Path | None, loud: bool
) -> dict[str, Any]:
    """Install the local model, unless it is installed, and ask it a question.

    Raises:
        RetinueError: a part of it could not be installed or does not work.
    """
    # Imported late: the installer is large and rarely needed.
    from retinue.gateway.local_model.model_install import install, try_out

    folder = find_models_folder(os.environ)
    done = install(folder, tell, source=source, loud=loud)
    tell("asking it a question")
    return done | {"answer": try_out(folder)}


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


def verify(app: App, task: TaskId | None) -> list[Problem]:
    """Return every disagreement between database, logs and folders."""
    verifier = Verifier(app.settings.root, app.records)
    tasks = [app.records.get_task(task)] if task else app.records.list_tasks(-1)
    damage = app.database.find_damage()
    if damage:
        return [make_problem("database", str(app.database.path), damage)]
    # A log that merely lags behind the database is no problem: complete it first.
    for each in tasks:
        app.folders.repair_log(each.id)
    return [found for each in tasks for found in verifier.check_task(each)]


def rebuild_root(root: Path) -> dict[str, Any]:
    """Make a new database from the root's logs and folders; return a report.

    Raises:
        NotFound: there is no such root.
        StewardUnavailable: a steward or another program holds the root.
    """
    from retinue.store.rebuild import rebuild

    if not root.is_dir():
        raise NotFound(f"no root here: {root}", code="unknown_root", hint="name it with --root")
    prepare_root(root)
    # Hold the lock: no steward may open the database while it is replaced.
    lock = RootLock(root)
    try:
        report = rebuild(root)
    finally:
        lock.release()
    return {"ok": not report.problems, **asdict(report)}


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
