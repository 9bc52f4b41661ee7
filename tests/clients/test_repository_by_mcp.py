"""A coding agent has three others change its git repository over MCP; one of them asks first."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.test_agent_subagents import CONFIG
from clients.test_agents import BOUND_S, conducted
from e2e.test_mcp_repository import git
from retinue.trust import trust_root
from support.agents import BINARIES, Agent, claude, codex, gemini, opencode
from support.coding_agents import run_in_shell
from support.conductor import Step
from support.mcp import SPAWN
from support.prompted_model import Plan, TextStep, ToolStep, prompting
from support.roots import Root, held

DONE = TextStep(text="done")
# What the subagents' model does, by a word of their prompt. The answer to the question comes
# with the brief, so it stands before the word of that.
PLANS: dict[str, Plan] = {
    "WRITE-X": [run_in_shell("claude", "echo a > x.md"), DONE],
    "colour is red": [run_in_shell("codex", "echo red > c.md"), DONE],
    "WRITE-COLOUR": [ToolStep(tool="ask", arguments={"questions": ["which colour?"]}), DONE],
    "WRITE-Y": [run_in_shell("gemini", "echo b > y.md"), DONE],
}


def write(word: str, name: str, agent: str, owns: str) -> dict[str, Any]:
    return {
        "task": f"{word}: write {owns}",
        "subagent_id": name,
        "agent": agent,
        "context_paths": [],
        "integration": "merge",
        "owns": [owns],
        "timeout_seconds": 100,
    }


TASKS = [
    write("WRITE-X", "x", "claude", "x.md"),
    write("WRITE-COLOUR", "asks", "codex", "c.md"),
    write("WRITE-Y", "y", "gemini", "y.md"),
]
SCRIPT: list[Step] = [
    (SPAWN, {"tasks": TASKS}),
    ("continue_subagent", {"subagent_id": "asks", "message": "the colour is red"}),
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PATH", f"{BINARIES}:{os.environ['PATH']}")
    (tmp_path / "home").mkdir()
    path = tmp_path / "project" / ".retinue"
    path.mkdir(parents=True, mode=0o700)
    trust_root(path, os.environ, ())
    with held(path) as root:
        yield root


@pytest.mark.timeout(BOUND_S * 2)
@pytest.mark.parametrize("agent", [claude, codex, gemini, opencode])
def test_three_coding_agents_change_the_repository_and_one_is_answered(
    agent: Agent, root: Root
) -> None:
    project = root.path.parent
    git(project, "init", "-q", "-b", "main")
    (project / ".gitignore").write_text(".*\n*.json\n")
    git(project, "add", "-f", ".gitignore")
    git(project, "commit", "-qm", "one")
    with prompting(PLANS) as workers:
        (root.path / "config.yaml").write_text(CONFIG.format(url=workers.url))
        root.call("task.list")  # starts the steward, which then has the keys of the subagents
        model, _, told = conducted(project, agent, SCRIPT)
    first, second = model.results
    # Whichever form the client shows its model, it has the question and what to do about it.
    assert "which colour?" in first and "continue_subagent" in first, told
    assert "merged" in first and "merged" in second, (told, model.results)
    trailers = "--format=%(trailers:key=Sub-Agent-Id,valueonly)"
    merged = git(project, "log", trailers, "retinue/mcp").split()
    assert sorted(merged) == ["asks", "x", "y"], json.dumps(model.results)
    assert git(project, "show", "retinue/mcp:c.md") == "red\n"
