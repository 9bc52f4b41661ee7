"""A real coding agent as a subagent is held to the tools of its contract by its own program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import BINARIES, claude, surroundings
from support.conductor import Step, conducting
from support.roots import Root, command, held

BOUND_S = 150
CONFIG = """
agents: [{{id: m, backend: {{type: anthropic, model: m, base_url: "{url}"}}}}]
orchestrator: {{coordination: {{subagent_runtime_mode: inherited}}}}
"""
NONE = "No such tool available"
SCRIPT: list[Step] = [
    ("Bash", {"command": "touch made"}),
    ("Write", {"file_path": "written", "content": "x"}),
    ("Read", {"file_path": "/etc/hostname"}),
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    (tmp_path / "home").mkdir()
    path = tmp_path / "project" / ".retinue"
    path.mkdir(parents=True, mode=0o700)
    with held(path) as root:
        yield root


def plant(home: Path, project: Path) -> None:
    """Programs that claude would run by itself, before its model has said a word."""
    (home / "claude").mkdir()
    hook = {"type": "command", "command": f"touch {project}/hooked"}
    settings = {"hooks": {"SessionStart": [{"hooks": [hook]}]}}
    (home / "claude" / "settings.json").write_text(json.dumps(settings))
    server = {"command": "touch", "args": [f"{project}/served"]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"planted": server}}))


@pytest.mark.requirement("R101")
@pytest.mark.timeout(BOUND_S * 2)
@pytest.mark.parametrize(
    ("tools", "offered", "made"),
    [
        ([], set(), set()),
        (["read_file"], {"Read"}, set()),
        (["read_file", "write_file"], {"Read", "Write"}, {"written"}),
        (["run_command"], {"Bash"}, {"made"}),
    ],
)
def test_claude_is_refused_every_tool_that_was_not_granted(
    root: Root, tools: list[str], offered: set[str], made: set[str]
) -> None:
    project = root.path.parent
    environment = surroundings(project.parent / "home")
    plant(project.parent / "home", project)
    with conducting(SCRIPT, insists=True) as model:
        words = [str(BINARIES / "claude"), *claude("", environment)[1:], "--model", "m"]
        ours = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")  # lead to the gateway
        variables = [f"{name}={environment[name]}" for name in environment if name not in ours]
        work = command("env", *variables, *words, allowed_tools=tools, timeout_seconds=BOUND_S)
        config = CONFIG.format(url=model.url)
        task = str(root.call("task.create", title="t", config_text=config)["task_id"])
        (result,) = root.run(task, work)
    assert result["status"] == "completed", result
    assert model.offered == offered
    refused = {tool for (tool, _), told in zip(SCRIPT, model.results, strict=True) if NONE in told}
    assert refused == {"Bash", "Write", "Read"} - offered
    told = [each["payload"] for each in root.events(task) if each["type"] == "agent.tool_denied"]
    assert {each["tool"] for each in told} == refused
    assert {path.name for path in Path(result["workspace"]).iterdir()} == made
    assert not {"hooked", "served"} & {path.name for path in project.iterdir()}
