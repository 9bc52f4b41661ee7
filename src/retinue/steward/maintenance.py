"""Maintenance of a root: its configuration, verify, rebuild, and the install of the local model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retinue.core.errors import NotFound
from retinue.core.ids import TaskId
from retinue.core.task_config import TaskConfig
from retinue.formats.config_document import find_named_resources, parse_task_config
from retinue.formats.yaml_document import Place, load_yaml
from retinue.gateway.local_model.weights import find_models_folder
from retinue.steward.app import App
from retinue.store.root_lock import RootLock, prepare_root
from retinue.store.verify import Problem, Verifier, make_problem
from retinue.trust import find_config_file, require_approved
from retinue.workspaces.owned_files import put


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
        require_approved(find_named_resources(document).variables, root, os.environ)
    return document, where, lines


def read_root_config(app: App, text: str = "", where: str = "") -> TaskConfig:
    """Return the parsed configuration of the root, or of `text` if given.

    Raises:
        BadInput: the configuration is wrong; the message names the key and the line.
        Refused: the configuration names an environment variable that was not approved.
    """
    document, where, lines = load_config_document(app, text, where)
    return parse_task_config(document or {}, where=where, lines=lines)


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


def verify(app: App, task: TaskId | None) -> tuple[list[Problem], list[Problem]]:
    """Check that database, logs and folders agree; return every problem, and every repair."""
    # An untrusted root is only read.
    verifier = Verifier(app.settings.root, app.records, None if app.lock is None else put)
    tasks = [app.records.get_task(task)] if task else app.records.list_tasks(-1)
    damage = app.database.find_damage()
    if damage:
        return [make_problem("database", str(app.database.path), damage)], []
    # A log that merely lags behind the database is no problem: complete it first.
    for each in tasks:
        app.folders.repair_log(each.id)
    problems = [found for each in tasks for found in verifier.check_task(each)]
    # Includes repairs made when this steward opened the root, maybe for this very request.
    return problems, [*app.folders.list_repairs(task), *verifier.restored]


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
