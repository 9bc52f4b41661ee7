"""Real coding agents as subagents by name: they answer, are counted, held, steered, continued."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from support.agents import BINARIES
from support.conductor import Conductor, Step, conducting
from support.roots import Root, Row, held
from support.upstream import serving

BOUND_S = 120
GRACE_S = 5  # of an attempt whose budget is used up, by default
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

# Tools that write and read a file.
FILES: dict[str, tuple[Step, ...]] = {
    "claude": (
        ("Write", {"file_path": "made", "content": "x"}),
        ("Read", {"file_path": "/etc/hostname"}),
    ),
    "codex": (("apply_patch", {"input": "*** Begin Patch\n*** Add File: made\n+x\n"}),),
    "gemini": (
        ("write_file", {"file_path": "made", "content": "x"}),
        ("read_file", {"file_path": "/etc/hostname"}),
    ),
    "opencode": (
        ("write", {"filePath": "made", "content": "x"}),
        ("read", {"filePath": "/etc/hostname"}),
    ),
}
KEYS = {  # the variable of each one's key
    "claude": "anthropic_api_key",
    "codex": "openai_api_key",
    "gemini": "gemini_api_key",
    "opencode": "openai_api_key",
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


def plant(folder: Path) -> None:
    """Files from which the programs of all vendors would run something by themselves."""
    hook = {"type": "command", "command": "touch ran-claude"}
    server = {"p": {"command": "touch", "args": ["ran-server"]}}
    files = {
        ".claude/settings.json": json.dumps({"hooks": {"SessionStart": [{"hooks": [hook]}]}}),
        ".mcp.json": json.dumps({"mcpServers": server}),
        ".gemini/settings.json": json.dumps({"mcpServers": server}),
        ".codex/config.toml": '[mcp_servers.p]\ncommand = "touch"\nargs = ["ran-codex"]\n',
        ".opencode/plugin/p.js": 'import fs from "fs"\nfs.writeFileSync("ran-opencode", "")\n'
        "export const P = async () => ({})\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    owner = folder.stat()
    for each in folder.rglob("*"):
        os.chown(each, owner.st_uid, owner.st_gid)


@dataclass
class Refuser:
    """A provider that refuses every request, in words."""

    status: int
    port: int = 0
    began: float = 0.0  # when it refused first

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def refuse(self, request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        self.began = self.began or time.monotonic()
        error = {"type": "refused", "message": "NO-WAY", "code": self.status}
        return web.json_response({"type": "error", "error": error}, status=self.status)


def run_refused(root: Root, agent: str, status: int) -> tuple[Row, float]:
    """Return the result, and the seconds from the first refusal on."""
    refuser = Refuser(status)
    with serving(refuser.refuse) as refuser.port:
        task = create(root, refuser.url)
        (result,) = root.run(task, brief(agent))
        return result, time.monotonic() - refuser.began


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


def texts(document: dict[str, Any]) -> str:
    return json.dumps(document)


@pytest.mark.parametrize("agent", [*AGENTS, "goose", "copilot"])
def test_continue_goes_on_in_the_same_conversation_twice_within_a_minute(
    root: Root, agent: str
) -> None:
    with conducting([]) as model:
        task = create(root, model.url)
        (first,) = root.run(task, brief(agent, "say WORD-ONE", subagent_id="s"))
        assert first["status"] == "completed", first
        for word in ("WORD-TWO", "WORD-THREE"):
            before = len(model.asked)
            row = root.call("subagent.continue", task=task, subagent="s", message=f"say {word}")
            result = root.call("subagent.attend", task=task, subagent=row["subagent_id"])
            assert result["status"] == "completed", result
            asked = [texts(document) for _, document in model.asked[before:]]
            assert any(word in text and "DONE nothing" in text for text in asked), asked
            assert asked[-1].count("say WORD-ONE") == asked[-1].count("say WORD-TWO") == 1, asked
            expected = "transcript" if agent == "gemini" else "native"
            assert result["agent"]["resumed"] == expected
    told = [each["payload"] for each in root.events(task) if each["type"] == "agent.session"]
    assert [each["resumed"] for each in told][1:] == [expected] * 2


@pytest.mark.parametrize("agent", [*AGENTS, "goose", "copilot"])
@pytest.mark.parametrize("status", [400, 401, 402])
def test_an_agent_that_its_provider_refused_has_failed(root: Root, agent: str, status: int) -> None:
    """Goose and Copilot report success."""
    result, took = run_refused(root, agent, status)
    assert result["status"] == "error", result
    assert f"answered {status}" in result["error"] and "NO-WAY" in result["error"], result
    assert took < 5, result


@pytest.mark.parametrize("agent", ["claude", "gemini", "opencode"])
def test_an_agent_is_held_to_the_tools_of_its_contract(root: Root, agent: str) -> None:
    with conducting([shell(agent, "touch made")], insists=True) as model:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent, allowed_tools=["read_file", "list_files"]))
    assert SHELLS[agent][0] not in model.offered
    assert not Path(result["workspace"], "made").exists()
    told = [each["payload"] for each in root.events(task) if each["type"] == "agent.tool_denied"]
    assert [each["tool"] for each in told] == [SHELLS[agent][0]], (result, told)


@pytest.mark.parametrize("agent", ["codex", "goose", "copilot"])
def test_tools_that_an_agent_cannot_be_held_to_are_refused(root: Root, agent: str) -> None:
    task = create(root, "http://127.0.0.1:9")
    refusal = root.refusal(
        "subagent.spawn", task=task, tasks=[brief(agent, allowed_tools=["read_file"])]
    )
    assert refusal.code == "tools_not_enforced"
    assert root.rows(task) == {}


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_without_tools_does_nothing(root: Root, agent: str) -> None:
    script = [shell(agent, "touch made"), *FILES[agent]]
    tools = {name for name, _ in script}
    with conducting(script, insists=True) as model:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent, allowed_tools=[]))
    assert not tools & model.offered
    assert len(model.results) == len(script), model.results
    assert list(Path(result["workspace"]).iterdir()) == []
    told = [each["payload"] for each in root.events(task) if each["type"] == "agent.tool_denied"]
    assert {each["tool"] for each in told} == tools, (result, told)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_workspace_that_may_only_be_read_is_not_changed(root: Root, agent: str) -> None:
    command = "touch made; echo read; ls /"
    with conducting([shell(agent, command)]) as model:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent, access="read"))
    assert result["status"] == "completed", result
    assert "Read-only" in model.results[0] and "read" in model.results[0], model.results
    assert list(Path(result["workspace"]).iterdir()) == []


@pytest.mark.parametrize("agent", AGENTS)
def test_no_key_is_anywhere_in_the_child(root: Root, agent: str) -> None:
    search = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; echo end"
    with conducting([shell(agent, search)]) as model:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent))
    assert result["status"] == "completed", result
    assert "secret-of" not in model.results[0]
    # The provider had it nevertheless, and nothing else.
    assert [key.removeprefix("Bearer ") for key in model.keys] == [f"secret-of-{KEYS[agent]}"]
    folder = Path(result["log_path"]).parent
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert b"secret-of" not in path.read_bytes(), path


class Voter(Conductor):
    """Answers in words, and votes for the second member once it is shown the answers."""

    winner = "subagent-1_agent_2"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        votes = b"These are the present answers" in await request.read()
        chosen = {"agent_id": self.winner, "reason": "best"}
        self.script = [("vote", chosen)] if votes else []
        return await super().answer(request)


def test_a_mixed_team_votes_and_the_winner_presents(root: Root) -> None:
    config = "agents:\n" + "".join(
        f"  - {{id: {name}, backend: {{type: {kind}}}}}\n"
        for name, kind in (("claude", "claude_code"), ("codex", "codex"), ("gemini", "gemini_cli"))
    )
    model = Voter([])
    with serving(model.answer) as model.port:
        text = config + CONFIG.format(url=model.url).lstrip("\n")
        task = str(root.call("task.create", title="t", config_text=text)["task_id"])
        (result,) = root.run(task, {"task": "go", "context_paths": [], "timeout_seconds": 90})
    status = Path(result["log_path"]).parent / "full_logs" / "status.json"
    assert result["status"] == "completed", (result, status.read_text())
    assert result["agent"]["name"] == "codex", result


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("agent", AGENTS)
def test_an_answer_that_never_fits_its_schema_fails_with_its_text_kept(
    root: Root, agent: str
) -> None:
    with conducting([]) as model:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent, answer_schema=SCHEMA))
    assert result["status"] == "error", result
    assert "invalid_answer" in result["error"], result
    assert result["answer"] == "DONE nothing", result


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_that_used_up_its_turns_is_over_budget(root: Root, agent: str) -> None:
    script = [shell(agent, "echo again")] * 20
    with conducting(script) as model:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent, turns=3))
    assert "budget exceeded" in result["error"], result
    assert result["status"] in ("error", "partial"), result
    at = {each["type"]: datetime.fromisoformat(each["ts"]) for each in root.events(task)}
    took = max(at.values()) - at["agent.budget_exceeded"]
    assert took.total_seconds() < GRACE_S + 2, at
    assert len([path for path, _ in model.asked if "count" not in path]) == 3


@pytest.mark.parametrize("agent", AGENTS)
def test_what_is_planted_in_a_workspace_does_not_run(root: Root, agent: str) -> None:
    with conducting([]) as model:
        task = create(root, model.url)
        (result,) = root.run(task, brief(agent, subagent_id="s"))
        workspace = Path(result["workspace"])
        plant(workspace)
        again = root.call("subagent.continue", task=task, subagent="s", message="go on")
        result = root.call("subagent.attend", task=task, subagent=again["subagent_id"])
    assert result["status"] == "completed", result
    assert [path.name for path in workspace.iterdir() if path.name.startswith("ran")] == []
