"""Team of a run whose configuration names none: which one works, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from retinue.agents.discovery import FoundProgram
from retinue.agents.profiles import CLAUDE_CODE, CODEX
from retinue.core.default_models import select_default_backends
from retinue.core.staffing import ModelServer, Spawner, Staff
from retinue.core.task_config import TaskConfig
from retinue.steward.agent_staffing import AgentStatus
from retinue.steward.default_team import TeamChoice, choose_team

DELEGATES: dict[str, Any] = {"orchestrator": {"coordination": {"enable_subagents": True}}}
OLLAMA = ModelServer(name="ollama", url="http://127.0.0.1:11434/v1", models=("small", "large"))
KEY = {"ANTHROPIC_API_KEY": "x"}


def agent(problem: str = "") -> AgentStatus:
    found = FoundProgram(words=("/a/codex",), version="0.169.0", lent=())
    return AgentStatus(
        profile=CODEX,
        name="codex",
        found=found,
        provider="openai",
        problem=problem,
        problem_code="no_key" if problem else "",
    )


def choose(
    environment: dict[str, str],
    agents: Sequence[AgentStatus] = (),
    servers: Sequence[ModelServer] = (),
    staff: Staff | None = None,
    document: dict[str, Any] = DELEGATES,
) -> TeamChoice:
    task_config = TaskConfig(staff=staff or Staff(), fallback=select_default_backends(environment))

    async def find() -> Sequence[ModelServer]:
        return servers

    return asyncio.run(choose_team(document, task_config, agents, find))


def test_a_configured_team_is_taken_before_all_others() -> None:
    named = {"agents": [{"id": "boss", "backend": {"type": "openai"}}]}
    staff = Staff(spawners=(Spawner(id="boss"),))
    choice = choose(KEY, [agent()], [OLLAMA], staff, named)
    assert (choice.kind, choice.name, choice.document) == ("configuration", "boss", named)


def test_a_coding_agent_with_a_key_is_taken_before_a_model_with_a_key() -> None:
    missing = AgentStatus(
        profile=CLAUDE_CODE,
        name="claude",
        found=None,
        provider="",
        problem="it is not installed",
        problem_code="agent_not_installed",
    )
    choice = choose(KEY, [missing, agent()], [OLLAMA])
    assert (choice.kind, choice.name) == ("coding_agent", "Codex 0.169.0")
    assert choice.document == DELEGATES | {
        "agents": [{"id": "codex", "backend": {"type": "codex"}}]
    }


def test_a_model_with_a_key_is_taken_where_no_agent_has_one() -> None:
    choice = choose(KEY, [agent("OPENAI_API_KEY is not set")], [OLLAMA])
    assert (choice.kind, choice.name) == ("model", "anthropic claude-sonnet-5-5")
    assert choice.reason.startswith("ANTHROPIC_API_KEY is set")
    assert choice.document == DELEGATES


def test_a_server_on_this_machine_is_taken_before_the_embedded_model() -> None:
    choice = choose({}, [agent("OPENAI_API_KEY is not set")], [OLLAMA])
    assert (choice.kind, choice.name) == ("local_server", "small of ollama")
    assert choice.document["agents"] == [
        {
            "id": "ollama",
            "backend": {"type": "chatcompletion", "base_url": OLLAMA.url, "model": "small"},
        }
    ]


@pytest.mark.parametrize("problem", ["", "it is not installed"])
def test_the_embedded_model_is_what_is_left(problem: str) -> None:
    choice = choose({}, [agent(problem)] if problem else [])
    assert choice.kind == "embedded_model" and "no key is set" in choice.reason
    assert choice.document == DELEGATES


def test_beside_the_embedded_model_agents_without_a_key_are_named() -> None:
    assert choose({}, [agent("OPENAI_API_KEY is not set")]).remark.startswith("codex is installed")
    assert choose({}, []).remark == ""
