"""Each door to a coding agent: the command line, a plan, an MCP client and Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.test_mcp_repository import git
from retinue import Brief, run_sync
from retinue.trust import trust_root
from support.mcp import SPAWN, Raw
from support.roots import held
from support.scripted import Models, Said
from support.scripted import acp_member as member

BOUND_S = 40
PLAN = """
goal: A file
base: {repository: .}
steps:
  - id: writer
    agent: ours
    description: Make a.md.
    owns: [a.md]
    verify: [grep, -q, made, a.md]
  - id: reader
    agent: ours
    access: read
    depends_on: [writer]
    description: Judge a.md.
    answer_schema:
      type: object
      properties: {verdict: {enum: [pass, fail]}}
      required: [verdict]
"""


@pytest.fixture
def models() -> Iterator[Models]:
    with Models(lambda heard: Said(text="hello")) as models:
        yield models


@pytest.fixture
def root(tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root in a repository whose configuration has one agent, `ours`."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    project = tmp_path / "project"
    root = project / ".retinue"
    root.mkdir(parents=True, mode=0o700)
    url = f"http://127.0.0.1:{models.port}/v1"
    provider = {"type": "chatcompletion", "model": "m", "base_url": url}
    config = {"agents": [member("ours")], "providers": [{"id": "p", "backend": provider}]}
    (root / "config.yaml").write_text(json.dumps(config))
    trust_root(root, os.environ, ())
    git(project, "init", "-q", "-b", "main")
    (project / "a.md").write_text("one\n")
    (project / ".gitignore").write_text(".retinue\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "one")
    with held(root):
        yield root


def retinue(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "retinue", *words],
        cwd=root.parent,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def test_a_check_asks_one_question_and_tells_what_it_took(root: Path) -> None:
    done = retinue(root, "agent", "check", "ours", "--json")
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    assert (told["ok"], told["agent"]) == (True, "ours"), told


def test_a_check_of_an_agent_that_is_refused_fails(root: Path, models: Models) -> None:
    models.script = lambda heard: Said(status=401, text="NO-WAY")
    done = retinue(root, "agent", "check", "ours")
    assert done.returncode == 1, done
    assert "NO-WAY" in done.stdout + done.stderr


def test_a_spawn_says_what_the_agent_can_see_and_how_its_work_is_joined(
    root: Path, models: Models
) -> None:
    models.script = lambda heard: (
        Said(text="made", calls=[("shell", {"command": "echo two >> a.md"})])
        if heard.number % 2
        else Said(text="done")
    )
    assert retinue(root, "task", "create", "--title", "t", "--id", "t").returncode == 0
    spawn = ("subagent", "spawn", "t", "--agent", "ours", "--wait", "--id")
    blind = retinue(root, *spawn, "blind", "Fix it")
    assert blind.returncode == 0 and "note: this gives the agent no files" in blind.stderr, blind
    sees = retinue(root, *spawn, "sees", "--integration", "merge", "Fix it")
    assert sees.returncode == 0 and "no files" not in sees.stderr, sees
    command = sees.stdout.splitlines()[-1].removeprefix("join its output with: retinue ")
    joined = retinue(root, *command.split())
    assert joined.returncode == 0, joined
    assert git(root.parent, "show", "retinue/t:a.md") == "one\ntwo\n"


def test_steps_of_a_plan_are_agents_whose_work_is_merged(root: Path, models: Models) -> None:
    def script(heard: object) -> Said:
        words = models.heard[-1].words
        if "Judge" in words:
            return Said(text='{"verdict": "pass"}')
        if '"tool"' in words:
            return Said(text="I made it.")
        return Said(calls=[("shell", {"command": "echo made > a.md"})])

    models.script = script
    (root.parent / "plan.yaml").write_text(PLAN)
    done = retinue(root, "run", "--plan", "plan.yaml", "--json")
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    results = {each["subagent_id"]: each for each in told["results"]}
    assert results["writer"]["integration"]["reason"] == "merged", told
    assert results["reader"]["structured_answer"] == {"verdict": "pass"}, told
    branch = git(root.parent, "branch", "--list", "retinue/*", "--format=%(refname)").split()[0]
    assert git(root.parent, "show", f"{branch}:a.md") == "made\n"


def test_a_task_of_an_mcp_client_names_agent_model_and_access(root: Path, models: Models) -> None:
    task = {"task": "look", "context_paths": [], "agent": "ours", "access": "read"}
    with Raw(root).open() as server:
        number = server.call(SPAWN, {"tasks": [task | {"model": "other"}]})
        answer = server.answer(number)["result"]["structuredContent"]
    (result,) = answer["results"]
    assert (result["status"], result["answer"]) == ("completed", "hello"), result["error"]
    assert [heard.model for heard in models.heard] == ["other"]


def test_a_brief_in_python_names_an_agent(root: Path) -> None:
    batch = run_sync([Brief("say hi", agent="ours", context_paths=[])], root=root)
    (result,) = batch.results
    assert (result.success, result.answer) == (True, "hello"), result
