"""Coding agents that compete for one result and review each other: scripted ACP programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from support import repositories
from support.repositories import Repository, reasons
from support.roots import Root
from support.scripted import Heard, Models, Said, acp_member

EXAMPLE = Path(__file__).parents[2] / "examples" / "review"

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project", {"a.txt": "one\n"})


@pytest.fixture
def root(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    yield from repositories.root.__wrapped__(repository)


@pytest.fixture
def models() -> Iterator[Models]:
    with Models(lambda heard: Said(text="hello")) as models:
        yield models


def config(models: Models, *names: str) -> str:
    url = f"http://127.0.0.1:{models.port}/v1"
    provider = {"type": "chatcompletion", "model": "m", "base_url": url}
    return json.dumps(
        {
            "agents": [acp_member(name) for name in names],
            "providers": [{"id": "p", "backend": provider}],
        }
    )


def shell(command: str) -> Said:
    return Said(calls=[("shell", {"command": command})])


def contest(root: Root, repository: Repository, models: Models, **more: Any) -> Any:
    request = {
        "prompt": "Write x",
        "agents": ["ann", "bob", "cid"],
        "verify": ["sh", "-c", "grep good x"],
        "config_text": config(models, "ann", "bob", "cid"),
        "cwd": str(repository.path),
        "by": "user",
    }
    started = root.call("run.begin", **request | more)
    return root.call("run.wait", task=started["task_id"])


def make_script(votes: dict[str, str]) -> Any:
    """Each agent writes its name, bob badly; then it votes as it is told here."""

    def script(heard: Heard) -> Said:
        if "Choose the best" in heard.words:
            return Said(text=json.dumps({"vote": votes[heard.model], "reason": "short"}))
        word = "bad" if heard.model == "bob" else "good"
        if heard.number == 1:
            return shell(f"cat a.txt && echo {word} {heard.model} > x")
        return Said(text="done")

    return script


def test_the_best_of_several_agents_by_test_and_vote_is_merged(
    root: Root, repository: Repository, models: Models
) -> None:
    before = repository.untouched()
    models.script = make_script({"ann": "candidate-3", "bob": "candidate-3", "cid": "candidate-1"})
    end = contest(root, repository, models)
    assert end["outcome"] == "succeeded", end
    assert end["choices"]["candidate"] == {
        "winner": "candidate-3",
        "reason": "2 of 3 votes",
        "passed": ["candidate-1", "candidate-3"],
        "votes": {"candidate-1": 1, "candidate-3": 2},
        "candidates": {"candidate-1": "ann", "candidate-2": "bob", "candidate-3": "cid"},
    }
    assert repository.joined(end["branch"]) == ["candidate-3"]
    assert repository.files(end["branch"])["x"] == "good cid"
    assert repository.untouched() == before
    ballots = [each.words for each in models.heard if "Choose the best" in each.words]
    # Voters are shown the patches of those that passed, and not whose they are.
    assert len(ballots) == 3 and all("candidate-2" not in each for each in ballots)
    assert not any(name in ballots[0] for name in ("bob", "cid")), ballots[0]
    kept = next(e for e in end["results"] if e["subagent_id"] == "candidate-1")["integration"]
    assert kept["reason"] == "not_chosen" and "+good ann" in Path(kept["patch"]).read_text()


def test_one_agent_is_verified_and_merged_without_a_vote(
    root: Root, repository: Repository, models: Models
) -> None:
    models.script = make_script({})
    end = contest(root, repository, models, agents=["ann"])
    assert (end["outcome"], repository.joined(end["branch"])) == ("succeeded", ["candidate-1"])
    end = contest(root, repository, models, agents=["bob"])
    assert (end["outcome"], end["branch"]) == ("failed", None)
    assert reasons(end) == {"candidate-1": "check_failed"}


def test_a_contest_without_a_repository_is_refused_and_leaves_nothing(
    root: Root, repository: Repository, models: Models, tmp_path: Path
) -> None:
    (repository.path / ".git").rename(tmp_path / "git")
    with pytest.raises(RetinueError, match="not in a git repository"):
        contest(root, repository, models, cwd=str(tmp_path))
    assert root.call("task.list") == []
    (tmp_path / "git").rename(repository.path / ".git")


@pytest.mark.parametrize("approves", [True, False])
def test_the_example_of_a_review_merges_what_another_agent_approves(
    root: Root, repository: Repository, models: Models, approves: bool
) -> None:
    subprocess.run([str(EXAMPLE / "make.sh")], cwd=repository.path, check=True)
    right = 'item["price"] * item["quantity"]'

    def script(heard: Heard) -> Said:
        if heard.model == "claude":
            fix = f"sed -i 's/item\\[\"price\"\\]/{right}/' shop.py"
            return shell(fix) if heard.number == 1 else Said(text="It counts now.")
        if heard.number == 1:
            return shell("touch written; cat shop.py")
        assert right in heard.words.replace('\\"', '"').replace("\\", ""), heard.words
        verdict = {"approve": approves, "reason": "as seen", "problems": []}
        return Said(text=json.dumps(verdict))

    models.script = script
    started = root.call(
        "run.start",
        plan_text=(EXAMPLE / "plan.yaml").read_text(),
        plan_folder=str(repository.path),
        cwd=str(repository.path),
        config_text=config(models, "claude", "codex"),
        by="user",
    )
    end = root.call("run.wait", task=started["task_id"])
    assert end["outcome"] == ("succeeded" if approves else "failed"), end["results"]
    assert reasons(end)["fix"] == ("merged" if approves else "review_rejected")
    assert bool(end["branch"]) == approves
    critic = next(each for each in end["results"] if each["subagent_id"] == "critic")
    assert critic["structured_answer"]["reason"] == "as seen"
    assert not Path(critic["workspace"], "written").exists()
