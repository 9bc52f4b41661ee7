"""Configurations as documents, and what they decide."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retinue.domain.policy import TaskConfig
from retinue.wire.yaml import Place

if TYPE_CHECKING:
    from retinue.wire.forms.config import Config


def parse_config(
    document: object, *, where: str, lines: Mapping[Place, int] | None = None
) -> Config:
    """A configuration file's content, every value checked.

    Raises:
        BadInput: names the full key, and the line where `lines` knows it.
    """
    from retinue.wire.forms.config import Config
    from retinue.wire.forms.refusal import fit

    return fit(Config, document, where=where, lines=lines)


def task_section(
    document: object, *, max_concurrent: int | None = None, timeout_seconds: float | None = None
) -> dict[str, object]:
    """`config` of a new task.yaml: the document, its limit moved to where a task keeps it.

    Raises:
        BadInput: names the full key.
    """
    given = parse_config(document, where="config").orchestrator.coordination
    tree: dict[str, Any] = copy.deepcopy(document) if isinstance(document, dict) else {}
    coordination = (tree.get("orchestrator") or {}).get("coordination") or {}
    coordination.pop("subagent_max_concurrent", None)
    limit = given.subagent_max_concurrent if max_concurrent is None else max_concurrent
    wait = 3600 if timeout_seconds is None else timeout_seconds
    section = {"maxConcurrentAgents": limit, "timeoutSeconds": wait, **tree}
    parse_task_config(section, where="task")
    return section


def disables_subagents(document: object) -> bool:
    """Whether a configuration that was parsed says that nobody may be spawned; one that says
    nothing of it does not.
    """
    tree: Any = document if isinstance(document, dict) else {}
    coordination = (tree.get("orchestrator") or {}).get("coordination") or {}
    return coordination.get("enable_subagents") is False


def parse_task_config(
    document: object, *, where: str, lines: Mapping[Place, int] | None = None
) -> TaskConfig:
    """What `config` in a task.yaml decides.

    Raises:
        BadInput: names the full key, and the line where `lines` knows it.
    """
    from retinue.wire.forms.config import TaskSection
    from retinue.wire.forms.refusal import fit

    return fit(TaskSection, document, where=where, under=("config",), lines=lines).policy()
