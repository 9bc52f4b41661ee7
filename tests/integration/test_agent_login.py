"""A coding agent with its user's own login: lent as a copy, and told what is not enforced."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.trust import trust_root
from support.roots import Root, held

# Answers with what it finds as its login, and changes it, as programs do that renew a token.
PROGRAM = """#!{python}
import json, os, sys
login = os.environ["XDG_CONFIG_HOME"] + "/goose/secrets.yaml"
def say(**message):
    print(json.dumps({{"jsonrpc": "2.0"}} | message), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    method = asked.get("method")
    if method == "initialize":
        say(id=asked["id"], result={{"protocolVersion": 1, "agentCapabilities": {{}}}})
    elif method == "session/new":
        say(id=asked["id"], result={{"sessionId": "s1"}})
    elif method == "session/prompt":
        text = open(login).read().strip() + " " + os.environ.get("OPENAI_API_KEY", "no key")
        open(login, "w").write("renewed")
        piece = {{"type": "text", "text": text}}
        update = {{"sessionUpdate": "agent_message_chunk", "content": piece}}
        say(method="session/update", params={{"sessionId": "s1", "update": update}})
        say(id=asked["id"], result={{"stopReason": "end_turn"}})
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def root(home: Path, tmp_path: Path) -> Iterator[Root]:
    with held(tmp_path / "project" / ".retinue") as root:
        yield root


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "goose"
    path.write_text(PROGRAM.format(python=Path(sys.executable).resolve()))
    path.chmod(0o755)
    return path


@pytest.fixture
def login(home: Path) -> Path:
    path = home / ".config" / "goose" / "secrets.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("my-login\n")
    return path


def create(root: Root, program: Path, network: str = "on", login: str = "own") -> str:
    backend = {"type": "goose", "program": str(program), "login": login}
    coordination = {"subagent_network": network, "subagent_min_timeout": 1}
    config = {
        "agents": [{"id": "mine", "backend": backend}],
        "orchestrator": {"coordination": coordination},
    }
    answer = root.call("task.create", title="t", config_text=json.dumps(config))
    return str(answer["task_id"])


def brief(**terms: Any) -> dict[str, Any]:
    return {"task": "go", "agent": "mine", "context_paths": [], "timeout_seconds": 30} | terms


def test_the_agent_has_a_copy_of_the_login_and_the_result_says_what_is_not_enforced(
    root: Root, program: Path, login: Path
) -> None:
    (result,) = root.run(create(root, program), brief())
    assert (result["status"], result["answer"]) == ("completed", "my-login no key"), result
    assert "its own login" in result["warning"] and "no budget" in result["warning"], result
    assert not result["token_usage"].get("input_tokens"), result
    assert login.read_text() == "my-login\n"


def test_what_the_agent_renewed_is_kept_for_its_next_attempt(
    root: Root, program: Path, login: Path
) -> None:
    task = create(root, program)
    (first,) = root.run(task, brief(subagent_id="s"))
    again = root.call("subagent.continue", task=task, subagent="s", message="go on")
    result = root.call("subagent.attend", task=task, subagent=again["subagent_id"])
    assert (first["answer"], result["answer"]) == ("my-login no key", "renewed no key"), result


def test_a_backup_holds_no_login(root: Root, program: Path, login: Path, tmp_path: Path) -> None:
    root.run(create(root, program), brief(subagent_id="s"))
    root.call("backup", path=str(tmp_path / "backup.tar.gz"))
    with tarfile.open(tmp_path / "backup.tar.gz") as archive:
        kept = [each.name for each in archive if "/agent_home/" in each.name]
    assert any(name.endswith("retinue-session.json") for name in kept), kept
    assert not any(name.endswith("secrets.yaml") for name in kept), kept


def test_without_a_login_or_a_network_it_is_refused(
    root: Root, program: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    task = create(root, program)
    refusal = root.refusal("subagent.spawn", task=task, tasks=[brief()])
    assert refusal.code == "no_login" and "goose" in refusal.hint, refusal
    request.getfixturevalue("login")
    shut = create(root, program, network="models")
    refusal = root.refusal("subagent.spawn", task=shut, tasks=[brief()])
    assert refusal.code == "network_needed", refusal
    assert root.rows(task) == {} and root.rows(shut) == {}


def test_a_missing_key_is_answered_with_the_own_login_where_there_is_one(
    root: Root, program: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    task = create(root, program, login="gateway")
    refusal = root.refusal("subagent.spawn", task=task, tasks=[brief()])
    assert refusal.code == "no_key" and "login" not in refusal.hint, refusal
    request.getfixturevalue("login")
    refusal = root.refusal("subagent.spawn", task=task, tasks=[brief()])
    assert "'retinue mcp install --subagents goose'" in refusal.hint, refusal


@pytest.mark.parametrize("name", ["mine", "goose"])
def test_the_list_of_agents_says_who_is_not_logged_in(
    root: Root, program: Path, request: pytest.FixtureRequest, name: str
) -> None:
    backend = {"type": "goose", "program": str(program), "login": "own"}
    config = {"agents": [{"id": name, "backend": backend}]}
    root.path.mkdir(parents=True, mode=0o700)
    (root.path / "config.yaml").write_text(json.dumps(config))
    trust_root(root.path, os.environ, ())

    def find() -> dict[str, Any]:
        (found,) = [each for each in root.call("agent.list") if each["agent"] == name]
        return dict(found)

    assert (find()["login"], find()["problem_code"]) == ("own", "no_login")
    request.getfixturevalue("login")
    assert "problem" not in find()


def test_an_agent_by_configuration_has_no_login_that_is_known(root: Root) -> None:
    backend = {"type": "acp", "argv": ["my-agent"], "wire": "chat", "login": "own"}
    config = json.dumps({"agents": [{"id": "mine", "backend": backend}]})
    refusal = root.refusal("task.create", title="t", config_text=config)
    assert refusal.code == "bad_config" and "login" in refusal.message, refusal
