"""Real coding agents, driven headless by a model of the tests, use the tools as installed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.trust import trust_root
from support.agents import BINARIES, Agent, claude, codex, gemini, opencode, surroundings
from support.conductor import Conductor, Step, conducting
from support.mcp import CONFIG, ENVIRONMENT, SPAWN, WAIT, task
from support.roots import held

BOUND_S = 150
SCRIPT: list[Step] = [
    (SPAWN, {"tasks": [task("echo from the background", "kid")], "background": True}),
    (WAIT, {"timeout_seconds": 30}),
    (SPAWN, {"tasks": [task("echo one", "one"), task("sleep 0.3; echo two", "two")]}),
]

TOOLS = (
    *("spawn_subagents", "list_subagents", "continue_subagent"),
    *("get_background_tool_status", "get_background_tool_result", "wait_for_background_tool"),
    *("cancel_background_tool", "list_background_tools"),
)


# What they need beside that to use our server: to wait for it, and to be let.
MORE: dict[Agent, Callable[[Path], list[str]]] = {
    claude: lambda project: [
        *("--mcp-config", str(project / ".mcp.json"), "--strict-mcp-config"),
        *("--allowedTools", "mcp__retinue"),
    ],
    codex: lambda project: ["-c", "mcp_servers.retinue.required=true"],
}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "project"
    root = folder / ".retinue"
    root.mkdir(parents=True, mode=0o700)
    (root / "config.yaml").write_text(CONFIG)
    trust_root(root, os.environ, ())
    (tmp_path / "home").mkdir()
    with held(root):
        yield folder


def conducted(
    project: Path, agent: Agent, script: list[Step], *more: str
) -> tuple[Conductor, str, str]:
    """The agent has been conducted through the script: by whom, what it said, and all of it."""
    environment = ENVIRONMENT | surroundings(project.parent / "home")
    with conducting(script) as model:
        words = agent(model.url, environment)
        words += MORE[agent](project) if agent in MORE else []
        installed = [sys.executable, "-m", "retinue", "mcp", "install", words[0], "--yes"]
        subprocess.run(installed, cwd=project, env=environment, check=True, timeout=60)
        done = subprocess.run(
            [*words, *more],
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
    told = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{sorted(model.offered)}"
    assert done.returncode == 0, told
    assert len(model.results) == len(script), told
    return model, done.stdout, told


@pytest.mark.timeout(BOUND_S * 2)
@pytest.mark.parametrize("agent", [claude, codex, gemini, opencode])
def test_an_agent_spawns_waits_and_reads_results(agent: Agent, project: Path) -> None:
    model, said, told = conducted(project, agent, SCRIPT)
    began, waited, blocked = model.results
    assert sum(name.endswith(TOOLS) for name in model.offered) == len(TOOLS), told
    assert "kid" in began and "from the background" in waited, told
    assert "one" in blocked and "two" in blocked, told
    assert "DONE" in said, told
    caller = contract(project, "one")["parent"]["caller"]
    assert caller["client"], "who asked is in the contract"
    if agent in (claude, codex):
        assert caller["call"], "and in which call"


MOST_CHARACTERS = 450  # of three results: about 150 tokens


@pytest.mark.timeout(BOUND_S * 2)
@pytest.mark.parametrize("agent", [claude, codex, gemini, opencode])
def test_an_agent_reads_each_result_once_and_briefly(agent: Agent, project: Path) -> None:
    names = ["biography", "discography", "songs"]
    script: list[Step] = [
        (SPAWN, {"tasks": [task(f"echo written by {name}", name) for name in names]}),
        ("list_subagents", {}),
        (SPAWN, {"tasks": [task("echo late", "kid")], "background": True}),
        (WAIT, {"timeout_seconds": 30}),
        ("list_subagents", {}),
    ]
    model, _, told = conducted(project, agent, script)
    spawned, listed, _, _, last = model.results
    assert all(f"written by {name}" in spawned and name in listed for name in names), told
    # The folder of this test has a longer path than a project has.
    assert len(spawned.replace(str(project), "/home/you/site")) <= MOST_CHARACTERS, spawned
    # The answers once; the titles in both lists.
    assert "".join(model.results).count("written by") == len(names) * 3, model.results
    assert "background" not in last.lower(), told


# How each says which servers it knows, and what it says of ours.
LISTED: dict[Agent, tuple[tuple[str, ...], str]] = {
    claude: (("claude", "mcp", "get", "retinue"), "Project config"),
    codex: (("codex", "mcp", "get", "retinue"), "tool_timeout_sec: 80"),
    gemini: (("gemini", "mcp", "list"), "Connected"),
    opencode: (("opencode", "mcp", "list"), "connected"),
}


@pytest.mark.timeout(BOUND_S)
@pytest.mark.parametrize("agent", [claude, codex, gemini, opencode])
def test_an_agent_reads_the_entry_that_was_installed(agent: Agent, project: Path) -> None:
    environment = ENVIRONMENT | surroundings(project.parent / "home")
    client = agent("http://127.0.0.1:9", environment)[0]
    words, said = LISTED[agent]

    def run(*words: str) -> str:
        ran = subprocess.run(
            words,
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        return ran.stdout + ran.stderr

    ours = (sys.executable, "-m", "retinue", "mcp", "install", client, "--yes")
    run(*ours)
    assert said in run(*words)
    run(*ours, "--remove")
    assert said not in run(*words)


@pytest.mark.timeout(BOUND_S * 2)
def test_a_call_that_codex_cuts_is_delivered_by_waiting(project: Path) -> None:
    script: list[Step] = [
        (SPAWN, {"tasks": [task("sleep 6; echo late", "late")]}),
        (WAIT, {"timeout_seconds": 2}),
        (WAIT, {"timeout_seconds": 2}),
        (WAIT, {"timeout_seconds": 2}),
    ]
    limit = ("-c", "mcp_servers.retinue.tool_timeout_sec=3")
    model, _, told = conducted(project, codex, script, *limit)
    assert "timed out" in model.results[0], told
    assert any("completed" in each and "late" in each for each in model.results[1:]), told


@pytest.mark.timeout(BOUND_S * 2)
def test_hooks_tell_claude_of_an_end_and_keep_it_from_stopping_unread(project: Path) -> None:
    ours = [sys.executable, "-P", "-m", "retinue"]
    environment = ENVIRONMENT | {"PATH": os.environ["PATH"]}
    subprocess.run(
        [*ours, "mcp", "install", "claude", "--hooks", "--yes"],
        cwd=project,
        env=environment,
        check=True,
        timeout=60,
    )
    # Its own tool takes until the subagent has ended; the hook after it says so, if not before.
    variables = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    waits = ["subagent", "wait-any", "mcp", "--peek", "--timeout-seconds", "60"]
    script: list[Step] = [
        (SPAWN, {"tasks": [task("sleep 0.3; echo over", "kid")], "background": True}),
        ("Bash", {"command": shlex.join(["env", *variables, *ours, *waits])}),
    ]
    model, _, told = conducted(project, claude, script, "--allowedTools", "mcp__retinue", "Bash")
    said = [json.dumps(document) for _, document in model.asked]
    news = "Background subagents ended or ask: kid (completed)"
    *before, stopping = (words.count(news) for words in said)
    assert max(before) == 1, f"after a tool, once: {told}"
    # The agent was about to stop without the result, and was asked once more.
    assert stopping > 1 and f"Stop hook feedback:\\n{news}" in said[-1], told


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_lists_and_calls_the_tools(project: Path, era: str) -> None:
    def inspect(*words: str) -> dict[str, Any]:
        server = [sys.executable, "-m", "retinue", "mcp"]
        # It passes few variables on by itself; this folder says which roots are trusted.
        state = f"XDG_STATE_HOME={ENVIRONMENT['XDG_STATE_HOME']}"
        done = subprocess.run(
            [
                *(str(BINARIES / "mcp-inspector"), "--cli", *server, *words),
                *("--protocol-era", era, "-e", state),
            ],
            cwd=project,
            env=ENVIRONMENT | {"PATH": f"{BINARIES}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=True,
        )
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    listed = inspect("--method", "tools/list")
    assert len(listed["tools"]) == 8
    tasks = json.dumps([task("echo inspected", "i")])
    called = inspect(
        *("--method", "tools/call", "--tool-name", SPAWN, "--tool-arg", f"tasks={tasks}")
    )
    assert called["structuredContent"]["results"][0]["answer"] == "inspected"


def contract(project: Path, name: str) -> dict[str, Any]:
    path = project / ".retinue/tasks/mcp/agents" / name / "contract.json"
    document: dict[str, Any] = json.loads(path.read_text())
    return document
