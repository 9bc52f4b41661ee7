"""Configuration documents: parsing, the task section, and what they refer to.

Schemas are imported inside the functions: pydantic is slow to load.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.core.task_config import TaskConfig
from retinue.core.tool_servers import find_references
from retinue.formats.yaml_document import Place

if TYPE_CHECKING:
    from retinue.formats.schemas.config_schema import Config


def parse_config(
    document: object, *, where: str, lines: Mapping[Place, int] | None = None
) -> Config:
    """Validate the content of a configuration file.

    Raises:
        BadInput: names the full key, and the line if `lines` has it.
    """
    from retinue.formats.schemas.config_schema import Config
    from retinue.formats.schemas.validation_errors import validate_document

    return validate_document(Config, document, where=where, lines=lines)


def build_task_section(
    document: object, *, max_concurrent: int | None = None, timeout_seconds: float | None = None
) -> dict[str, object]:
    """Return `config` of a new task.yaml: the document and the two limits of a task.

    Raises:
        BadInput: names the full key.
    """
    given = parse_config(document, where="config").orchestrator.coordination
    tree: dict[str, Any] = copy.deepcopy(document) if isinstance(document, dict) else {}
    coordination = (tree.get("orchestrator") or {}).get("coordination") or {}
    # task.yaml has this limit as maxConcurrentAgents. Two places could contradict each other.
    coordination.pop("subagent_max_concurrent", None)
    limit = given.subagent_max_concurrent if max_concurrent is None else max_concurrent
    wait = 3600 if timeout_seconds is None else timeout_seconds
    section = {"maxConcurrentAgents": limit, "timeoutSeconds": wait, **tree}
    parse_task_config(section, where="task")
    return section


def disables_subagents(document: object) -> bool:
    """Return whether a parsed configuration sets enable_subagents to false explicitly."""
    tree: Any = document if isinstance(document, dict) else {}
    coordination = (tree.get("orchestrator") or {}).get("coordination") or {}
    return coordination.get("enable_subagents") is False


def parse_task_config(
    document: object, *, where: str, lines: Mapping[Place, int] | None = None
) -> TaskConfig:
    """Parse `config` of a task.yaml.

    Raises:
        BadInput: names the full key, and the line if `lines` has it.
    """
    from retinue.formats.schemas.config_schema import TaskSection
    from retinue.formats.schemas.validation_errors import validate_document

    return validate_document(
        TaskSection, document, where=where, under=("config",), lines=lines
    ).to_task_config()


@dataclass(frozen=True, kw_only=True)
class NamedResources:
    """External things that a configuration refers to."""

    variables: frozenset[str] = frozenset()  # environment variables whose values are sent out
    addresses: frozenset[str] = frozenset()
    commands: frozenset[tuple[str, ...]] = frozenset()

    def __or__(self, other: NamedResources) -> NamedResources:
        return NamedResources(
            variables=self.variables | other.variables,
            addresses=self.addresses | other.addresses,
            commands=self.commands | other.commands,
        )

    @staticmethod
    def of(document: Mapping[str, Any]) -> NamedResources:
        return NamedResources(
            variables=frozenset(document["variables"]),
            addresses=frozenset(document["addresses"]),
            commands=frozenset(tuple(words) for words in document["commands"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "variables": sorted(self.variables),
            "addresses": sorted(self.addresses),
            "commands": [list(words) for words in sorted(self.commands)],
        }


def find_named_resources(document: object) -> NamedResources:
    """Return what a configuration refers to, even if it is otherwise invalid."""
    variables = set[str]()
    addresses = set[str]()
    commands = set[tuple[str, ...]]()
    for section in _iter_mappings(document):
        for key, value in section.items():
            if isinstance(value, str):
                variables |= {value} if key == "api_key_env" else find_references(value)
                addresses |= {value} if key in ("base_url", "url") else set()
                commands |= {(value,)} if key == "program" else set()
            elif isinstance(value, list) and key in ("argv", "subagent_host_launch_prefix"):
                commands |= {tuple(map(str, value))} if value else set()
        # An MCP server has its program and arguments in two keys.
        if isinstance(section.get("command"), str):
            words = section.get("args")
            rest = map(str, words) if isinstance(words, list) else ()
            commands.add((section["command"], *rest))
    return NamedResources(
        variables=frozenset(variables),
        addresses=frozenset(addresses),
        commands=frozenset(commands),
    )


def _iter_mappings(document: object) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a document, at any depth."""
    # A list of pending values instead of recursion: the document may be nested deeply.
    left = [document]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            yield found
            left += found.values()
        elif isinstance(found, list):
            left += found
