"""Real coding agents as subagents: what they ask by themselves is let through by the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import BINARIES, Agent, claude, codex, gemini, opencode, surroundings
from support.conductor import Step, conducting
from support.roots import Root, command, held

BOUND_S = 150
CONFIG = """
agents:
  - {{id: a, backend: {{type: anthropic, model: claude-opus-5-5, base_url: "{url}"}}}}
  - {{id: o, backend: {{type: openai, model: gpt-5, base_url: "{url}/v1"}}}}
  - {{id: g, backend: {{type: gemini, model: gemini-2.5-flash, base_url: "{url}"}}}}
  - {{id: m, backend: {{type: openai, model: m, base_url: "{url}/v1"}}}}
orchestrator: {{coordination: {{subagent_runtime_mode: inherited}}}}
"""
# The address of the gateway is known in the child alone; those who are told it in words get it so.
RUN = """
import os, sys
openai = os.environ["OPENAI_BASE_URL"]
os.environ["K"] = os.environ["OPENAI_API_KEY"]
filled = lambda text: text.replace("{url}/v1", openai).replace('"x"', '"' + os.environ["K"] + '"')
if "OPENCODE_CONFIG_CONTENT" in os.environ:
    os.environ["OPENCODE_CONFIG_CONTENT"] = filled(os.environ["OPENCODE_CONFIG_CONTENT"])
os.execvp(sys.argv[1], [filled(word) for word in sys.argv[1:]])
"""
# One of each agent's own tools, so that calls and their results pass, too.
SCRIPTS: dict[Agent, list[Step]] = {
    claude: [("Bash", {"command": "echo said so"})],
    codex: [("exec_command", {"cmd": "echo said so"})],
    gemini: [("run_shell_command", {"command": "echo said so"})],
    opencode: [("bash", {"command": "echo said so", "description": "say so"})],
}
OURS = {
    *("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
    "K",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "key")
    (tmp_path / "home").mkdir()
    path = tmp_path / "project" / ".retinue"
    path.mkdir(parents=True, mode=0o700)
    with held(path) as root:
        yield root


@pytest.mark.timeout(BOUND_S * 2)
@pytest.mark.parametrize("agent", [claude, codex, gemini, opencode])
def test_an_agent_answers_with_its_usual_requests(root: Root, agent: Agent) -> None:
    environment = surroundings(root.path.parent.parent / "home")
    words = agent("{url}", environment)
    variables = [f"{name}={value}" for name, value in environment.items() if name not in OURS]
    words[0] = str(BINARIES / words[0])
    if agent is claude:
        words += ["--model", "claude-opus-5-5"]
    with conducting(SCRIPTS[agent]) as model:
        config = CONFIG.format(url=model.url)
        task = str(root.call("task.create", title="t", config_text=config)["task_id"])
        run = ["env", *variables, "python3", "-c", RUN, *words]
        (result,) = root.run(task, command(*run, timeout_seconds=BOUND_S))
    told = [each["payload"] for each in root.events(task) if each["type"].endswith("_denied")]
    assert result["status"] == "completed", (result, told)
    assert "DONE" in result["answer"], (result, told)
    left_out = [each for each in told if each["subject"] == "web_search"] if agent is codex else []
    assert told == left_out
    assert len(model.results) == 1 and "said so" in model.results[0], model.offered
