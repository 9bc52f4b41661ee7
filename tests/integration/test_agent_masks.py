"""Files of a workspace that an agent's program would obey are hidden, whatever leads to them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.repositories import Repository, carry_out
from support.roots import Root, held
from support.scripted import ACP_AGENT, Models, Said, acp_member

MASKS = [".plain", ".way/hooks", ".settings", ".file"]
PLAN = {
    "goal": "look",
    "base": {"repository": "."},
    "steps": [{"id": "one", "agent": "ours", "description": "look", "owns": ["said"]}],
}

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def models() -> Iterator[Models]:
    with Models(lambda heard: Said(text="hello")) as models:
        yield models


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    files = {f"{name}/obeyed": "OBEYED\n" for name in (".plain", "gh/hooks", "gs")}
    return Repository(tmp_path / "project", files | {"gf": "OBEYED\n"})


@pytest.fixture
def root(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with held(repository.path / ".retinue") as root:
        yield root


def make_config(models: Models, member: dict[str, Any], **terms: Any) -> dict[str, Any]:
    url = f"http://127.0.0.1:{models.port}/v1"
    provider = {"type": "chatcompletion", "model": "m", "base_url": url}
    return {
        "agents": [member],
        "providers": [{"id": "p", "backend": provider}],
        "orchestrator": {"coordination": {"subagent_runtime_mode": "isolated"} | terms},
    }


def look(
    repository: Repository, root: Root, models: Models, links: Mapping[str, str], **terms: Any
) -> dict[str, Any]:
    """Let an agent read what it finds at its masks, in a checkout with links; return its result."""
    for name, target in links.items():
        (repository.path / name).symlink_to(target)
    repository.git("add", "-A")
    repository.git("commit", "-qm", "links")
    places = ".plain/obeyed .way/hooks/obeyed .settings/obeyed .file"
    models.script = lambda heard: (
        Said(text=heard.last)
        if heard.number > 1
        else Said(calls=[("shell", {"command": f"cat {places}; echo x > said"})])
    )
    config = make_config(models, acp_member("ours", masks=MASKS), **terms)
    text = json.dumps(config).replace("{", "{{").replace("}", "}}")
    (result,) = carry_out(root, json.dumps(PLAN), config=text)["results"]
    return dict(result)


@pytest.mark.parametrize("workspaces", ["shared", "whole"])
def test_what_a_link_of_the_checkout_leads_to_is_hidden(
    repository: Repository, root: Root, models: Models, workspaces: str
) -> None:
    links = {".way": "gh", ".settings": "there", "there": "gs", ".file": "gf"}
    result = look(repository, root, models, links, subagent_workspaces=workspaces)
    assert result["status"] == "completed", result
    assert "OBEYED" not in result["answer"] and "No such file" in result["answer"], result


@pytest.mark.parametrize("target", ["/proc/self/cwd/gs", "/etc", "."])
def test_an_agent_does_not_start_where_its_mask_would_hide_nothing(
    repository: Repository, root: Root, models: Models, target: str
) -> None:
    result = look(repository, root, models, {".settings": target})
    assert result["status"] == "error" and "leads out of the workspace" in result["error"], result
    assert not models.heard


def test_a_link_that_leads_nowhere_keeps_no_agent_from_its_work(
    repository: Repository, root: Root, models: Models
) -> None:
    result = look(repository, root, models, {".settings": "/not/there"})
    assert result["status"] == "completed", result


def test_a_root_in_the_package_of_an_agent_is_hidden(
    repository: Repository, root: Root, models: Models, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "package.json").write_text("{}")
    (package / "inner" / "gateway.key").write_text("the-key")
    (program := package / "agent").write_bytes(ACP_AGENT.read_bytes())
    program.chmod(0o755)
    models.script = lambda heard: (
        Said(text=heard.last)
        if heard.number > 1
        else Said(calls=[("shell", {"command": f"cat {package}/inner/* {package}/package.json"})])
    )
    member = acp_member("ours")
    member["backend"]["argv"] = [str(program)]
    config = make_config(models, member)
    task = root.call("task.create", title="t", config_text=json.dumps(config))["task_id"]
    brief = {"task": "go", "agent": "ours", "context_paths": [], "timeout_seconds": 30}
    (result,) = root.run(task, brief)
    assert result["status"] == "completed" and "{}" in result["answer"], result
    assert "the-key" not in result["answer"], result
