"""Real coding agents have three subagents change their git repository, one of which asks first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clients.test_agents import BOUND_S, conducted, project
from e2e.test_mcp_repository import ASKS, git, merging
from support.agents import Agent, claude, codex, gemini, opencode
from support.conductor import Step
from support.mcp import SPAWN

__all__ = ["project"]

SCRIPT: list[Step] = [
    (
        SPAWN,
        {
            "tasks": [
                merging("echo a > x.md; echo done", "x", owns=["x.md"]),
                merging(ASKS, "asks", owns=["c.md"]),
                merging("echo b > y.md; echo done", "y", owns=["y.md"]),
            ]
        },
    ),
    ("continue_subagent", {"subagent_id": "asks", "message": "the colour is red"}),
]


@pytest.mark.timeout(BOUND_S * 2)
@pytest.mark.parametrize("agent", [claude, codex, gemini, opencode])
def test_three_subagents_change_the_repository_and_one_is_answered(
    agent: Agent, project: Path
) -> None:
    git(project, "init", "-q", "-b", "main")
    (project / ".gitignore").write_text(".*\n*.json\n")
    git(project, "add", "-f", ".gitignore")
    git(project, "commit", "-qm", "one")
    model, _, told = conducted(project, agent, SCRIPT)
    first, second = model.results
    # Whichever form the client shows its model, it has the question and what to do about it.
    assert "which colour?" in first and "continue_subagent" in first, told
    assert "merged" in first and "merged" in second, told
    trailers = "--format=%(trailers:key=Sub-Agent-Id,valueonly)"
    merged = git(project, "log", trailers, "retinue/mcp").split()
    assert sorted(merged) == ["asks", "x", "y"], json.dumps(model.results)
