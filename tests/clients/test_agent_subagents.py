"""Real coding agents as subagents by name: they answer, are counted, held, steered, continued."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.agents import BINARIES
from support.conductor import Step, conducting
from support.roots import Root, held

BOUND_S = 120
CONFIG = """
providers:
  - {{id: a, backend: {{type: anthropic, model: claude-opus-5-5, base_url: "{url}"}}}}
  - {{id: o, backend: {{type: openai, model: gpt-5, base_url: "{url}/v1"}}}}
  - {{id: g, backend: {{type: gemini, model: gemini-2.5-flash, base_url: "{url}"}}}}
orchestrator: {{coordination: {{subagent_max_timeout: 120, subagent_min_timeout: 1}}}}
"""
AGENTS = ("claude", "codex", "gemini", "opencode")
# A shell command by each agent's own tool.
SHELLS: dict[str, tuple[str, str]] = {
    "claude": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "gemini": ("run_shell_command", "command"),
    "opencode": ("bash", "command"),
}

pytestmark = pytest.mark.timeout(BOUND_S * 2)


def shell(agent: str, command: str) -> Step:
    tool, key = SHELLS[agent]
    more = {"description": "run it"} if agent in ("opencode", "claude") else {}
    return tool, {key: command} | more


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, f"secret-of-{name.lower()}")
    monkeypatch.setenv("PATH", f"{BINARIES}:{os.environ['PATH']}")
    path = tmp_path / "project" / ".retinue"
    path.mkdir(parents=True, mode=0o700)
    with held(path) as root:
        yield root


def brief(agent: str, task: str = "go", **terms: Any) -> dict[str, Any]:
    return {"task": task, "agent": agent, "context_paths": [], "timeout_seconds": 60} | terms


def create(root: Root, url: str) -> str:
    return str(root.call("task.create", title="t", config_text=CONFIG.format(url=url))["task_id"])


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_answers_with_the_text_alone(root: Root, agent: str) -> None:
    with conducting([]) as model:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent, "say hi"))
    assert result["status"] == "completed", result
    assert result["answer"] == "DONE nothing", result
    assert result["agent"]["name"] == agent
    assert result["agent"]["resumed"] == "fresh"
    asked = [path for path, _ in model.asked if "count" not in path]
    usage = result["token_usage"]
    assert usage["input_tokens"] == 10 * len(asked) and usage["output_tokens"] == 5 * len(asked)
    assert "estimated" not in usage


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_uses_its_tools_in_the_workspace(root: Root, agent: str) -> None:
    with conducting([shell(agent, "echo made > it.txt")]) as model:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent))
    assert result["status"] == "completed", result
    assert Path(result["workspace"], "it.txt").read_text() == "made\n"
    assert result["token_usage"]["input_tokens"] == 10 * len(model.asked), model.asked
