"""Teams and coding agents on a node are watched, told and recovered as if they were here."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Lab, wait_for
from support.roots import Row
from support.scripted import Heard, Models, Said, acp_member, call
from support.teams import brief, team

COORDINATION = "subagent_runtime: nodes\nsubagent_retries_on_node_loss: 0"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("teams"))
    with pytest.MonkeyPatch.context() as patch:
        # The first line of the scripted agent asks for python3: let it be the tests' own.
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        try:
            made.open()
            made.join("w1")
            yield made
        finally:
            made.close()


@pytest.fixture
def models() -> Iterator[Models]:
    with Models(team()) as models:
        yield models


def create(lab: Lab, text: str) -> str:
    return str(lab.call("task.create", title="t", config_text=text)["task_id"])


def list_row(lab: Lab, task: str) -> Row:
    (row,) = lab.calls.rows(task).values()
    return row


def find_node_status(lab: Lab) -> Row:
    """The status.json that the team on the node has written, if it has one."""
    found = list((lab.top / "w1" / "tasks").glob("*/agents/*/full_logs/status.json"))
    return json.loads(found[0].read_bytes()) if found else {}


def test_a_team_on_a_node_is_watched_and_what_it_had_answered_survives_its_node(
    lab: Lab, models: Models
) -> None:
    models.script = team(votes=lambda heard: Said(wait=True))
    task = create(lab, models.config("m1", "m2", coordination=COORDINATION))
    lab.calls.spawn(task, brief())

    def is_voting() -> bool:
        coordination = find_node_status(lab).get("coordination", {})
        return bool(coordination.get("completion_percentage") == 50)

    wait_for(is_voting)
    began = time.monotonic()
    shown = wait_for(
        lambda: [row for row in [list_row(lab, task)] if row.get("completion_percentage") == 50]
    )
    assert time.monotonic() - began < 1.0
    assert shown[0]["phase"] == "enforcement"
    lab.kill("w1")
    result = lab.call("subagent.attend", task=task, subagent=shown[0]["agentInstance"])
    lab.restart("w1")
    assert result["answer"] == "answer of m1", result
    assert result["completion_percentage"] == 50
    closed = lab.call("subagent.show", task=task, subagent=shown[0]["agentInstance"])
    assert closed["close_reason"] == "node_lost"


def count_messages(lab: Lab) -> int:
    """How many messages are in inboxes on the node."""
    return len(list((lab.top / "w1" / "tasks").glob("*/agents/*/inbox/[0-9]*.txt")))


def test_a_message_reaches_a_team_on_a_node_even_after_its_steward_was_killed(
    lab: Lab, models: Models
) -> None:
    first, second = threading.Event(), threading.Event()

    def script(heard: Heard) -> Said:
        if "mind the second gap" in heard.words:
            return team()(heard)
        held = first if heard.number == 1 else second
        return Said(calls=call("list_files", path=".").calls, until=held.is_set)

    models.script = script
    task = create(lab, models.config("m1", coordination=COORDINATION))
    (name,) = lab.calls.spawn(task, brief())
    wait_for(lambda: models.heard)
    lab.call("subagent.send", task=task, subagent=name, message="mind the first gap")
    wait_for(lambda: count_messages(lab) == 1)
    first.set()
    wait_for(lambda: len(models.heard) > 1)
    assert "mind the first gap" in models.heard[1].words
    lab.kill_steward()
    lab.call("subagent.send", task=task, subagent=name, message="mind the second gap")
    wait_for(lambda: count_messages(lab) == 2)
    second.set()
    result = lab.call("subagent.attend", task=task, subagent=name)
    assert result["status"] == "completed", result
    assert any("mind the second gap" in heard.words for heard in models.heard)


def make_agent_config(models: Models, **coordination: Any) -> str:
    provider = {
        "type": "chatcompletion",
        "model": "m",
        "base_url": f"http://127.0.0.1:{models.port}/v1",
    }
    terms = {"subagent_min_timeout": 0.1, "subagent_runtime": "nodes"}
    return json.dumps(
        {
            "agents": [acp_member("ours")],
            "providers": [{"id": "p", "backend": provider}],
            "orchestrator": {"coordination": terms | coordination},
        }
    )


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_a_coding_agent_works_on_a_node_and_is_continued_there(
    lab: Lab, models: Models, mode: str
) -> None:
    replies = [
        Said(text="I will look.", calls=[("shell", {"command": "echo made | tee it.txt"})]),
        Said(text="It is made."),
        Said(text="", calls=[("shell", {"command": "cat it.txt"})]),
        Said(text="It is still there."),
    ]
    models.script = lambda heard: replies[min(heard.number, len(replies)) - 1]
    task = create(lab, make_agent_config(models, subagent_runtime_mode=mode))
    (result,) = lab.calls.run(task, brief("go", agent="ours", subagent_id="s"))
    assert (result["status"], result["answer"]) == ("completed", "It is made."), json.dumps(result)
    assert Path(result["workspace"], "it.txt").read_text() == "made\n"
    assert result["token_usage"]["input_tokens"] == 20
    assert result["agent"]["name"] == "ours"
    again = lab.call("subagent.continue", task=task, subagent="s", message="more", wait=True)
    assert again["answer"] == "It is still there.", json.dumps(again)
    assert "made" in models.heard[-1].last
    nodes = [
        each["node"]
        for name in lab.calls.rows(task)
        for each in lab.call("subagent.show", task=task, subagent=name)["attempts"]
    ]
    assert nodes == ["w1", "w1"]


def test_an_urgent_message_interrupts_a_coding_agent_on_a_node(lab: Lab, models: Models) -> None:
    models.script = lambda heard: (
        Said(text="thinking", hold=True) if heard.number == 1 else Said(text="told")
    )
    task = create(lab, make_agent_config(models))
    lab.calls.spawn(task, brief("go", agent="ours", subagent_id="s"))
    assert models.holding.wait(20)
    lab.call("subagent.send", task=task, subagent="s", message="stop that", now=True)
    result = lab.call("subagent.attend", task=task, subagent="s")
    assert (result["status"], result["answer"]) == ("completed", "told"), result
    assert "stop that" in models.heard[-1].words


def test_a_subagent_that_may_delegate_is_refused_a_node_with_what_would_do(lab: Lab) -> None:
    error = lab.calls.refusal(
        "subagent.spawn",
        task=create(lab, ""),
        tasks=[{"argv": ["true"], "context_paths": [], "on": ["w1"], "max_delegation_depth": 1}],
    )
    assert error.code == "no_delegation_on_nodes"
    assert error.hint is not None and "without --on" in error.hint
