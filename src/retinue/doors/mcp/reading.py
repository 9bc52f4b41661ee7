"""The terms in force: those of the task that takes the next subagent, or is made for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.delegating.desk import Choice, Desk
from retinue.delegating.own import OwnDesk
from retinue.delegating.terms import Terms, terms_of
from retinue.domain.errors import BadInput, RetinueError
from retinue.domain.policy import TaskConfig
from retinue.doors.mcp.link import Link
from retinue.subagent_types.loading import discover
from retinue.wire.config import disables_subagents, parse_config, parse_task_config, task_section
from retinue.wire.yaml import Place, load_yaml


@dataclass(frozen=True, kw_only=True)
class _Section:
    """What a configuration decides. Whoever starts this server wants subagents, so only one that
    says otherwise disables them.
    """

    config: TaskConfig
    enabled: bool
    where: str  # nothing where nobody wrote it


class InForce:
    """What the tools may promise. A task keeps the configuration it was created with, so one that
    is given later, or changed, counts for the next task only; that is told.
    """

    def __init__(self, root: Path, choice: Choice, desk: Desk | OwnDesk) -> None:
        self._root = root
        self._choice = choice
        self._desk = desk
        self.terms = Terms()
        self._overruled = ""  # what to tell of a configuration that is given and does not count
        self.warnings: tuple[str, ...] = ()  # that, and all else that who configured should hear

    async def read(self) -> Terms:
        """The terms as they are by now.

        Raises:
            BadInput: the given configuration is wrong; it names the key and the line.
        """
        given, standing = _given(self._root, self._choice), None
        trouble: tuple[str, ...] = ()
        try:
            standing = await self._standing()
        except RetinueError as error:  # whatever it is, the calls will meet it, too
            trouble = (f"which terms are in force cannot be told: {error.message}",)
        catalogue, section, self._overruled = discover(self._root.parent), given, ""
        if standing is not None:
            section = _stored(standing)
            differ = (given.config, given.enabled) != (section.config, section.enabled)
            if given.where and differ:
                self._overruled = self._told(given.where, standing["task_id"], section.where)
        unmet = catalogue.active(section.config.subagent_types)[1]
        self.warnings = (*filter(None, [self._overruled]), *unmet, *trouble)
        self.terms = terms_of(section.config, catalogue, enabled=section.enabled)
        return self.terms

    async def remark(self) -> str:
        """What the next spawn is to be told of a configuration that does not count for it."""
        if self._overruled:
            with suppress(RetinueError):
                await self.read()  # somebody may have followed the advice
        return self._overruled

    async def _standing(self) -> dict[str, Any] | None:
        """The task that takes the next subagent. Where there is none, no steward is started."""
        first = self._root / "tasks" / next(self._choice.names)
        return await self._desk.standing() if first.is_dir() else None

    def _told(self, given: str, task: str, file: str) -> str:
        says = f"task {task} keeps its own configuration, and {given} differs from it: edit {file}"
        if self._choice.task:
            return f"{says}, or start the server with another --task"
        return f"{says}, or 'retinue task close {task}': the next spawn opens a task with {given}"


def terms_now(root: Path, choice: Choice) -> Terms:
    """The terms that a server started now would have.

    Raises:
        BadInput: the configuration is wrong; it names the key and the line.
    """

    async def read() -> Terms:
        link = Link(root)
        try:
            return await InForce(root, choice, Desk(link.call, choice)).read()
        finally:
            link.close()

    return asyncio.run(read())


def _given(root: Path, choice: Choice) -> _Section:
    """What was chosen when the server was started, else the root's own, else the defaults."""
    text, where, default = choice.config_text, choice.config_name, root / "config.yaml"
    if not text and default.is_file():
        try:
            text, where = default.read_text(encoding="utf-8"), str(default)
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{default}: {error}", code="bad_file") from None
    lines: dict[Place, int] = {}
    document: Any = (load_yaml(text, where=where, lines=lines) if text else None) or {}
    parse_config(document, where=where, lines=lines)
    return _section(task_section(document), where)


def _stored(shown: Mapping[str, Any]) -> _Section:
    return _section(shown.get("config"), f"{shown['path']}/task.yaml")


def _section(document: object, where: str) -> _Section:
    config = parse_task_config(document, where=where)
    return _Section(config=config, enabled=not disables_subagents(document), where=where)
