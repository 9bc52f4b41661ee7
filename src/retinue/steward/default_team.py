"""Team of a run whose configuration names none.

In this order: a coding agent whose provider has a key, a model with a key, a model server on this
machine, the embedded model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retinue.core.default_models import LOCAL, LOCAL_MODEL
from retinue.core.staffing import ModelServer
from retinue.core.task_config import TaskConfig
from retinue.steward.agent_staffing import AgentStatus, name_members

Kind = Literal["configuration", "coding_agent", "model", "local_server", "embedded_model"]


@dataclass(frozen=True, kw_only=True)
class TeamChoice:
    """Which team a run has, and why."""

    kind: Kind
    name: str
    reason: str
    document: Mapping[str, Any]  # the configuration with this team
    remark: str = ""  # what would give a better team

    def to_json(self) -> dict[str, str]:
        return {"kind": self.kind, "name": self.name, "reason": self.reason}


async def choose_team(
    document: dict[str, Any],
    task_config: TaskConfig,
    agents: Sequence[AgentStatus],
    find_servers: Callable[[], Awaitable[Sequence[ModelServer]]],
) -> TeamChoice:
    """Choose the team of a run.

    Args:
        task_config: parsed from `document`.
        agents: the coding agents of this machine.
        find_servers: returns the model servers that answer on this machine.
    """
    if named := [each.id for each in task_config.crew.spawners if task_config.staff.everyone]:
        reason = "the configuration names them under agents"
        return TeamChoice(
            kind="configuration", name=", ".join(named), reason=reason, document=document
        )
    (fallback,) = task_config.fallback
    if task_config.traffic.mode == "replay":
        return TeamChoice(
            kind="model", name=fallback.model, reason="a replay needs no key", document=document
        )
    ready = next((each for each in agents if not each.problem), None)
    if ready is not None:
        version = ready.found.version if ready.found is not None else ""
        return TeamChoice(
            kind="coding_agent",
            name=f"{ready.profile.title} {version}".strip(),
            reason=f"it is installed, and its provider {ready.provider} has a key",
            document=name_members(document, [ready.name]),
        )
    if fallback.type != LOCAL:
        return TeamChoice(
            kind="model",
            name=f"{fallback.type} {fallback.model}",
            reason=f"{fallback.api_key_env} is set, and no installed coding agent can use a key",
            document=document,
        )
    for server in await find_servers():
        backend = {"type": "chatcompletion", "base_url": server.url, "model": server.models[0]}
        return TeamChoice(
            kind="local_server",
            name=f"{server.models[0]} of {server.name}",
            reason=f"no key is set, and {server.url} answers",
            document={**document, "agents": [{"id": server.name, "backend": backend}]},
        )
    return TeamChoice(
        kind="embedded_model",
        name=LOCAL_MODEL,
        reason="no key is set, and no model server answers on this machine",
        document=document,
        remark=_suggest_agents(agents),
    )


def _suggest_agents(agents: Sequence[AgentStatus]) -> str:
    """Return what installed coding agents lack; empty if none is installed."""
    names = [each.name for each in agents if each.problem_code == "no_key"]
    if not names:
        return ""
    said = f"{names[0]} is" if len(names) == 1 else f"{', '.join(names)} are"
    return f"{said} installed: 'retinue agent list' says what a coding agent lacks"
