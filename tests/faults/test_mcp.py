"""Servers and stewards that die in the middle: what blocked is cancelled, nothing is lost."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retinue.client.blocking_client import Client
from retinue.core.errors import Refused
from retinue.runtime.procfs import list_process_tree
from support.mcp import CANCEL, FETCH, SPAWN, WAIT, Raw, own, task
from support.roots import Root, holder, until
from support.traces import is_over

__all__ = ["own"]

SLOW = 'echo draft > "$RETINUE_ANSWER"; touch ready; exec sleep 60'
ASKS = 'printf \'{"status":"blocked","questions":["which?"]}\' > "$RETINUE_FINAL"'


def ready(root: Path, name: str) -> int:
    """The subagent is at work; the process that it is."""
    workspace = root / "tasks/mcp/agents" / name / "workspace"
    until((workspace / "ready").exists)
    with closing(Client(root)) as client:
        shown = client.call("subagent.show", task="mcp", subagent=name)
    return int(shown["attempts"][-1]["pid"])


def given(server: Raw, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = server.answer(server.call(tool, arguments))
    assert not answer["result"].get("isError"), answer
    document: dict[str, Any] = answer["result"]["structuredContent"]
    return document


def ended_alike(own: Path, names: set[str]) -> dict[str, Any]:
    """Every one is closed as cancelled with its draft; a new server lists and fetches them."""
    with_root = Root(own)
    until(lambda: all(row["state"] == "closed" for row in with_root.rows("mcp").values()))
    with_root.sound()
    with_root.release()
    with Raw(own) as server:
        server.open()
        listed = given(server, "list_subagents")
        assert {row["subagent_id"] for row in listed["subagents"]} == names
        return {name: given(server, FETCH, job_id=name)["result"] for name in names}


def test_kill_9_of_the_server_in_a_blocking_spawn_cancels_and_recovers(own: Path) -> None:
    with Raw(own) as server:
        server.open().call(SPAWN, {"tasks": [task(SLOW, "a"), task(SLOW, "b")]})
        pids = [ready(own, name) for name in "ab"]
        server.process.kill()
        for pid in pids:
            until(lambda pid=pid: is_over(pid))
    results = ended_alike(own, {"a", "b"})
    assert {each["status"] for each in results.values()} == {"cancelled"}
    assert {each["answer"] for each in results.values()} == {"draft"}


def test_kill_9_of_the_server_leaves_background_work_at_work(own: Path) -> None:
    script = "touch ready; until [ -e go ]; do sleep 0.01; done; echo done"
    with Raw(own) as server:
        given(server.open(), SPAWN, tasks=[task(script, "a")], background=True)
        pid = ready(own, "a")
        server.process.kill()
        server.process.wait()
    assert not is_over(pid)
    with Raw(own) as server:
        server.open()
        assert given(server, FETCH, job_id="a")["status"] == "running"
        (own / "tasks/mcp/agents/a/workspace/go").touch()
        waited = given(server, WAIT)
        assert (waited["job_id"], waited["result"]["answer"]) == ("a", "done")
    assert not list_process_tree(pid)


def test_input_that_ends_in_a_blocking_spawn_cancels_and_recovers(own: Path) -> None:
    with Raw(own) as server:
        server.open().call(SPAWN, {"tasks": [task(SLOW, "a")]})
        pid = ready(own, "a")
        assert server.end_input() == 0
        until(lambda: is_over(pid))
    assert ended_alike(own, {"a"})["a"]["answer"] == "draft"


def test_a_told_server_ends_at_once(own: Path) -> None:
    with Raw(own) as server:
        server.open().call(SPAWN, {"tasks": [task(SLOW, "a")]})
        pid = ready(own, "a")
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(10)
        until(lambda: is_over(pid))


def without_steward(own: Path) -> None:
    """The steward has been killed."""
    steward = holder(own)
    assert steward is not None
    os.kill(steward, signal.SIGKILL)
    until(lambda: is_over(steward))


@pytest.mark.parametrize("first", ["echo hi", ASKS], ids=["ended", "blocked"])
def test_kill_9_of_the_steward_in_a_continue_does_not_do_it_twice(own: Path, first: str) -> None:
    script = (
        f"[ -e kept ] || {{ touch kept; {first}; exit; }}; echo once >> counted; touch ready; "
        "until [ -e go ]; do sleep 0.01; done; cat counted"
    )
    workspace = own / "tasks/mcp/agents/a/workspace"
    with Raw(own) as server:
        given(server.open(), SPAWN, tasks=[task(script, "a")])
        number = server.call("continue_subagent", {"subagent_id": "a", "message": "# more"})
        until((workspace / "ready").exists)
        without_steward(own)
        (workspace / "go").touch()
        answer = server.answer(number)["result"]
        assert not answer.get("isError"), answer
        result = answer["structuredContent"]
        assert (result["status"], result["answer"]) == ("completed", "once")
        listed = given(server, "list_subagents")["subagents"]
        assert len(listed) == (1 if first == ASKS else 2)


def test_a_repeated_message_is_not_taken_for_one_that_a_lost_steward_had(own: Path) -> None:
    script = "echo once >> counted; cat counted"
    with Raw(own) as server:
        given(server.open(), SPAWN, tasks=[task(script, "a")])
        again = {"subagent_id": "a", "message": "# more"}
        assert given(server, "continue_subagent", **again)["answer"] == "once\nonce"
        without_steward(own)
        assert given(server, "continue_subagent", **again)["answer"] == "once\nonce\nonce"


def test_a_cancellation_that_is_repeated_tells_what_came_of_the_first(own: Path) -> None:
    with Raw(own) as server:
        given(server.open(), SPAWN, tasks=[task(SLOW, "a")], background=True)
        ready(own, "a")
        given(server, CANCEL, job_id="a")
    asked = {"task": "mcp", "subagent": "a", "consumer": "mcp", "by": "parent"}
    with closing(Client(own)) as client:
        told = client.call("parent.cancel", **asked, again=True)
        assert (told["status"], told["result"]["answer"]) == ("cancelled", "draft")
        with pytest.raises(Refused):
            client.call("parent.cancel", **asked)


def test_kill_9_of_the_steward_in_a_blocking_spawn_is_not_noticed_by_the_client(own: Path) -> None:
    script = "touch ready; until [ -e go ]; do sleep 0.01; done; echo done"
    with Raw(own) as server:
        number = server.open().call(SPAWN, {"tasks": [task(script, "a")]})
        ready(own, "a")
        without_steward(own)
        (own / "tasks/mcp/agents/a/workspace/go").touch()
        results = server.answer(number)["result"]["structuredContent"]["results"]
        assert [(each["status"], each["answer"]) for each in results] == [("completed", "done")]
    events = [json.loads(line) for line in (own / "tasks/mcp/events.jsonl").open()]
    assert sum(event["type"] == "agent.subagent_created" for event in events) == 1
