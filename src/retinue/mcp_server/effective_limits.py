"""Limits in force: those of the open task, or of the task that the next spawn creates."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retinue.client import reconnect
from retinue.client.async_client import Remote, connect_steward
from retinue.client.blocking_client import connect_or_start, is_inside_subagent, require_root
from retinue.core.errors import BadInput, RetinueError
from retinue.core.task_config import TaskConfig
from retinue.delegation.task_session import ChildSession, Choice, TaskSession
from retinue.delegation.tool_schemas import ToolLimits, read_tool_limits
from retinue.formats.config_document import (
    build_task_section,
    disables_subagents,
    parse_config,
    parse_task_config,
)
from retinue.formats.yaml_document import Place, load_yaml
from retinue.mcp_server.install.subagent_choices import find_setup_problem, list_usable_agents
from retinue.settings import HUB_CREDENTIALS, has_tasks
from retinue.subagent_types.type_files import load_catalogue
from retinue.trust import can_be_used, find_config_file, make_untrusted_error


class ParentLink(reconnect.RetryingLink):
    """Connection to the root's steward, opened on first use and again after it is lost."""

    def __init__(self, root: Path) -> None:
        super().__init__(self._open_connection)
        self._root = root

    async def call(self, verb: str, **params: Any) -> Any:
        creates = params.get("create") is not None
        require_root(self._root, verb, creates=creates)
        try:
            return await super().call(verb, **params)
        except RetinueError:
            # A refused spawn must not leave a new root behind.
            if creates and not has_tasks(self._root):
                await self.leave_if_idle()
            raise

    async def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]:
        """Yield the items of a verb; the steward's end is an error, and nothing is repeated."""
        remote = await self.get_remote(self._open_connection)
        async with aclosing(remote.stream(verb, **params)) as items:
            async for item in items:
                yield item

    async def _open_connection(self) -> Remote:
        return await connect_steward(sock=await asyncio.to_thread(connect_or_start, self._root))


@dataclass(frozen=True, kw_only=True)
class _ConfigSection:
    """Parsed configuration. Subagents are enabled unless it disables them explicitly."""

    config: TaskConfig
    enabled: bool
    where: str  # file name; empty for the defaults


class EffectiveLimits:
    """Limits that the tools state.

    A task keeps the configuration it was created with. A configuration that is given later, or
    changed, applies to the next task only; a warning says so.
    """

    def __init__(self, root: Path, choice: Choice, session: TaskSession | ChildSession) -> None:
        self._root = root
        self._choice = choice
        self._session = session
        self.terms = ToolLimits()
        self._overruled = ""  # warning that the given configuration does not apply
        self._read_version: tuple[int, int] | None = None
        self.warnings: tuple[str, ...] = ()  # all warnings for the user who configured this

    async def read(self) -> ToolLimits:
        """Read the current limits.

        Raises:
            BadInput: the given configuration is invalid; names the key and the line.
        """
        # Before the file is read, so that a change during the read is noticed next time.
        self._read_version = self._stat_config()
        given = _read_given(self._root, self._choice)
        standing = None
        trouble: tuple[str, ...] = ()
        if not is_inside_subagent(self._root) and not can_be_used(self._root, os.environ):
            refused = make_untrusted_error(self._root)
            trouble = (f"{refused.message} ({refused.hint})",)
        try:
            standing = await self._find_open_task()
        except RetinueError as error:
            # Do not fail here: the tool calls meet the same error and report it to the agent.
            trouble = (f"cannot read the limits in force: {error.message}",)
        catalogue = load_catalogue(self._root.parent)
        section = given
        self._overruled = ""
        if standing is not None:
            section = _read_stored(standing)
            differ = (given.config, given.enabled) != (section.config, section.enabled)
            if given.where and differ:
                self._overruled = self._format_warning(
                    given.where, standing["task_id"], section.where
                )
        unmet = catalogue.list_active(section.config.subagent_types)[1]
        self.warnings = (*filter(None, [self._overruled]), *unmet, *trouble)
        limits = read_tool_limits(section.config, catalogue, enabled=section.enabled)
        # A subagent sees neither the keys nor the local models of its steward.
        knows = section.enabled and not is_inside_subagent(self._root)
        project = self._root.parent
        problem, remedy, agents = "", "", limits.agents
        if knows:
            problem, remedy = find_setup_problem(section.config, os.environ, project)
            agents = list_usable_agents(section.config, os.environ)
        self.terms = replace(
            limits,
            plain_names=self._choice.plain_names,
            nodes=(self._root / HUB_CREDENTIALS).exists(),
            agents=agents,
            problem=problem,
            remedy=remedy,
        )
        return self.terms

    async def refresh(self) -> None:
        """Read the limits again if the configuration file changed, or if it was unusable."""
        if self.terms.problem or self._stat_config() != self._read_version:
            with suppress(RetinueError):
                await self.read()

    async def take_warning(self) -> str:
        """Return the warning for the next spawn if the given configuration does not apply."""
        # Read again: the user may have followed the advice, or changed the file.
        if self._overruled or self._stat_config() != self._read_version:
            with suppress(RetinueError):
                await self.read()
        return self._overruled

    async def can_spawn(self) -> bool:
        """Return whether subagents are enabled; if they were not, read the limits again."""
        if not self.terms.enabled:
            with suppress(RetinueError):
                await self.read()
        return self.terms.enabled

    def _stat_config(self) -> tuple[int, int] | None:
        """Return modification time and size of the root's configuration file."""
        try:
            found = (self._root / "config.yaml").stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    async def _find_open_task(self) -> dict[str, Any] | None:
        """Return the open task. Without any task, no steward is started to ask for it."""
        first = self._root / "tasks" / next(self._choice.names)
        return await self._session.find_open_task() if first.is_dir() else None

    def _format_warning(self, given: str, task: str, file: str) -> str:
        says = f"task {task} keeps its own configuration, and {given} differs from it: edit {file}"
        if self._choice.task:
            return f"{says}, or start the server with another --task"
        return f"{says}, or 'retinue task close {task}': the next spawn opens a task with {given}"


def read_current_limits(root: Path, choice: Choice) -> ToolLimits:
    """Return the limits that a server started now would have.

    Raises:
        BadInput: the configuration is invalid; names the key and the line.
    """

    async def read() -> ToolLimits:
        link = ParentLink(root)
        try:
            return await EffectiveLimits(root, choice, TaskSession(link.call, choice)).read()
        finally:
            link.close()

    return asyncio.run(read())


def _read_given(root: Path, choice: Choice) -> _ConfigSection:
    """Read the configuration chosen at the start, else the root's own, else the defaults."""
    text = choice.config_text
    where = choice.config_name
    default = None if text else find_config_file(root, os.environ)
    if default is not None:
        try:
            text = default.read_text(encoding="utf-8")
            where = str(default)
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{default}: {error}", code="bad_file") from None
    lines: dict[Place, int] = {}
    document: Any = (load_yaml(text, where=where, lines=lines) if text else None) or {}
    parse_config(document, where=where, lines=lines)
    return _parse_section(build_task_section(document), where)


def _read_stored(shown: Mapping[str, Any]) -> _ConfigSection:
    return _parse_section(shown.get("config"), f"{shown['path']}/task.yaml")


def _parse_section(document: object, where: str) -> _ConfigSection:
    config = parse_task_config(document, where=where)
    return _ConfigSection(config=config, enabled=not disables_subagents(document), where=where)
