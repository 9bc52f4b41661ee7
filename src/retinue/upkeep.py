"""Looking after a root: what is in force, what is broken, what can go."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from retinue.app import App
from retinue.domain.errors import BadInput, NotFound
from retinue.domain.ids import TaskId
from retinue.domain.staffing import ModelBackend
from retinue.domain.subagent import Task
from retinue.gateway.local.weights import models_folder
from retinue.gateway.providers import LOCAL
from retinue.processes import finished
from retinue.runtimes import trial
from retinue.runtimes.probe import Seen
from retinue.store.lock import RootLock, prepare_root
from retinue.store.verify import Problem, Verifier, problem
from retinue.wire.config import parse_task_config
from retinue.wire.yaml import load_yaml
from retinue.workspaces.bases import set_aside
from retinue.workspaces.removal import is_stale, remove_tree
from retinue.workspaces.sweep import Swept, sweep, sweep_repository
from retinue.workspaces.trusted import REPOSITORY

SEEN_INSIDE = ("files", "network", "system_calls", "capabilities", "user")


async def examine(app: App) -> list[dict[str, Any]]:
    """What a subagent can rely on here, each point tried rather than guessed."""
    return [
        _check("python", sys.version_info >= (3, 11), sys.version.split()[0]),
        _check("sqlite", app.database.damage() is None, sqlite3.sqlite_version),
        _check("root", os.access(app.settings.root, os.W_OK), str(app.settings.root)),
        await _processes(app),
        await _isolation(app),
        await _workspaces(app),
        await _models(app),
    ]


async def models(app: App) -> list[dict[str, Any]]:
    """Every provider, those first that the root's own configuration names."""
    return await app.gateway.survey(_configured(app), os.environ)


def install_model(
    tell: Callable[[str], None], *, source: Path | None, loud: bool
) -> dict[str, Any]:
    """The local model is there, and has answered; a second call finds it so.

    Raises:
        RetinueError: what is missing, and why.
    """
    from retinue.gateway.local.install import install
    from retinue.gateway.local.trial import try_out

    folder = models_folder(os.environ)
    done = install(folder, tell, source=source, loud=loud)
    tell("asking it something")
    return done | {"answer": try_out(folder)}


async def _models(app: App) -> dict[str, Any]:
    """Nobody must have a model; but one that is configured must be there."""
    try:
        everyone = await models(app)
    except BadInput as error:
        return _check("models", False, error.message)
    except OSError as error:
        return _check("models", False, f"the gateway could not be opened: {error}")
    rows = [row for row in everyone if row["configured"] or row["ok"]]
    broken = [f"{row['provider']}: {row['detail']}" for row in rows if not row["ok"]]
    found = [row["provider"] for row in rows if row["ok"]]
    parts = [*broken, *([f"reachable: {', '.join(found)}"] if found else [])]
    parts += [row["detail"] for row in everyone if row["provider"] == LOCAL and row not in rows]
    check = _check("models", not broken, "; ".join(parts))
    return check | {"hint": "'retinue model list' says more"}


def _configured(app: App) -> tuple[ModelBackend, ...]:
    path = app.settings.root / "config.yaml"
    if not path.is_file():
        return ()
    document = load_yaml(path.read_text(), where=str(path))
    return parse_task_config(document, where=str(path)).backends


def verify(app: App, task: TaskId | None) -> list[Problem]:
    """Every disagreement between database, logs and folders."""
    verifier = Verifier(app.settings.root, app.records)
    tasks = [app.records.task(task)] if task else app.records.tasks(-1)
    damage = app.database.damage()
    if damage:
        return [problem("database", str(app.database.path), damage)]
    for each in tasks:
        app.folders.catch_up(each.id)
    return [found for each in tasks for found in verifier.task(each)]


def rebuild_root(root: Path) -> dict[str, Any]:
    """The root has a new database, made from its logs and folders; what came of it.

    Raises:
        NotFound: there is no such root.
        StewardUnavailable: a steward, or another program, holds it.
    """
    from retinue.store.rebuild import rebuild

    if not root.is_dir():
        raise NotFound(f"no root here: {root}", code="unknown_root", hint="name it with --root")
    prepare_root(root)
    lock = RootLock(root)
    try:
        report = rebuild(root)
    finally:
        lock.release()
    return {"ok": not report.problems, **asdict(report)}


async def collect(app: App, *, force: bool) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Closed tasks without what nobody needs any more; what went, and what stayed and why.

    A closed task takes no more work: whatever else happens meanwhile, nobody needs that again.
    """
    removed: list[dict[str, str]] = []
    kept: list[dict[str, str]] = []
    async with app.collecting:
        closed = [task for task in app.records.tasks(-1) if task.state == "closed"]
        for task in closed:
            for name, sweeping in _sweeps(app, task, force):
                went, stayed = await finished(asyncio.to_thread(sweeping))
                about = {"task": task.id, "subagent": name}
                removed += [about | {"path": str(path)} for path in went]
                kept += [about | {"path": str(path), "reason": why} for path, why in stayed]
        while unneeded := _nobodys(app.settings.root):
            for place, now in unneeded:
                await finished(asyncio.to_thread(remove_tree, now))
                removed.append({"task": "", "subagent": "", "path": str(place)})
    return removed, kept


def _sweeps(app: App, task: Task, force: bool) -> Iterator[tuple[str, Callable[[], Swept]]]:
    """What there is to do in a closed task, by whose it is."""
    for subagent in app.records.newest(task.id, task.next_step):
        joined = subagent.standing.close_reason in ("merged", "copied")
        folder = app.workspaces.folder_of(task.id, subagent.id)
        yield subagent.id, partial(sweep, folder, force=force or joined)
    yield "", partial(sweep_repository, app.folders.folder(task.id) / REPOSITORY)


def _nobodys(root: Path) -> list[tuple[Path, Path]]:
    """What can go and belongs to no task: where it was, and where it is now."""
    trials = [each for each in root.glob(f"{trial.PREFIX}*") if is_stale(each)]
    return [*set_aside(root), *((each, each) for each in trials)]


async def _processes(app: App) -> dict[str, Any]:
    reason = app.runtime.unavailable()
    if reason:
        return _check("processes", False, reason)
    detail = "whatever a child starts ends with it, by the kernel's word"
    if await app.runtime.containment() != "pid-namespace":
        detail = "no PID namespace: a child's processes are found by scanning, and can be missed"
    return _check("processes", True, detail)


async def _isolation(app: App) -> dict[str, Any]:
    missing = await app.runtime.isolation_missing()
    if missing:
        hint = "subagent_runtime_fallback_mode: inherited runs children without it"
        return _check("isolation", False, missing) | {"hint": hint}
    return _check("isolation", True, "a child was isolated and ran")


async def _workspaces(app: App) -> dict[str, Any]:
    """Nobody must have them; without, every workspace of a repository is a whole checkout."""
    missing = await app.runtime.layers_missing(app.settings.root)
    if missing:
        return _check("workspaces", True, f"whole checkouts of a repository: {missing}")
    return _check("workspaces", True, "what a child does not change of a repository is shared")


async def boundary(app: App) -> dict[str, Any]:
    """What is in force for a child that is to be isolated."""
    missing = await app.runtime.isolation_missing()
    seen = app.runtime.isolation
    return {
        "available": missing is None,
        "reason": missing,
        "processes": await app.runtime.containment(),
        **(dict.fromkeys(SEEN_INSIDE, "none") if seen is None else _seen_inside(seen)),
        "network_default": parse_task_config({}, where="defaults").network,
        "launch": "fork server; a fresh interpreter behind a launch prefix",
    }


def _seen_inside(seen: Seen) -> dict[str, str]:
    """What a child on trial found in force around itself."""
    whose = "the steward's own" if seen.uid == os.geteuid() else "of its own"
    facts = (
        f"mount namespace, Landlock ABI {seen.landlock_version}",
        f"network namespace with {', '.join(seen.interfaces) or 'nothing in it'}",
        "seccomp filter, no new privileges",
        "none" if not seen.capabilities else f"{seen.capabilities:x}",
        f"uid {seen.uid}, {whose}",
    )
    return dict(zip(SEEN_INSIDE, facts, strict=True))


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}
