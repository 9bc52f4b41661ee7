"""Spawns as tasks of the protocol, for clients that declare the extension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.mcp import BOUND_S, FETCH, SPAWN, WAIT, Message, Raw, task
from support.roots import Root, until

PREFIX = "io.modelcontextprotocol"
TASKS = f"{PREFIX}/tasks"
GATED = "touch ready; until [ -e go ]; do sleep 0.01; done; echo {}"


def asked(server: Raw, method: str, params: Message, *, declared: bool = True) -> Message:
    """The answer to one request of the newer era, with or without the extension."""
    meta = {
        f"{PREFIX}/protocolVersion": "2026-07-28",
        f"{PREFIX}/clientInfo": {"name": "raw", "version": "1"},
        f"{PREFIX}/clientCapabilities": {"extensions": {TASKS: {}}} if declared else {},
    }
    return server.answer(server.send(method, params | {"_meta": meta}))


def spawned(server: Raw, *tasks: Message, **options: Any) -> Message:
    params = {"name": SPAWN, "arguments": {"tasks": list(tasks)}}
    result: Message = asked(server, "tools/call", params, **options)["result"]
    return result


def go(own: Path, name: str) -> None:
    workspace = own / "tasks/mcp/agents" / name / "workspace"
    until((workspace / "ready").exists)
    (workspace / "go").touch()


def ended(server: Raw, task_id: str) -> Message:
    """The task once it is over."""

    def over() -> Message | None:
        found: Message = asked(server, "tasks/get", {"taskId": task_id})["result"]
        return found if found["status"] != "working" else None

    return until(over) or {}


def test_a_spawn_is_a_task_that_is_polled_and_outlives_its_server(own: Path) -> None:
    with Raw(own) as server:
        discovered = asked(server, "server/discover", {})["result"]
        assert TASKS in discovered["capabilities"]["extensions"]
        begun = spawned(server, task(GATED.format("one"), "a"), task("echo two", "b"))
        assert (begun["resultType"], begun["status"]) == ("task", "working")
        assert {"createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"} <= set(begun)
        working = asked(server, "tasks/get", {"taskId": begun["taskId"]})["result"]
        assert working["status"] == "working" and "a running" in working["statusMessage"]
        listed = asked(server, "tools/call", {"name": "list_subagents"})["result"]
        assert "background_results" not in listed["structuredContent"], "it is told by its task"
        server.process.kill()
    with Raw(own) as server:
        go(own, "a")
        result = ended(server, begun["taskId"])["result"]
        told = [each["answer"] for each in result["structuredContent"]["results"]]
        assert told == ["one", "two"]
        assert ended(server, begun["taskId"])["result"] == result
        listed = asked(server, "tools/call", {"name": "list_subagents"})["result"]
        assert "background_results" not in listed["structuredContent"], "it has been told"


def test_a_task_for_what_has_ended_says_that_nothing_was_started(own: Path) -> None:
    with Raw(own) as server:
        first = spawned(server, task("echo one", "a"))
        assert "statusMessage" not in first and ended(server, first["taskId"])
        again = spawned(server, task("echo one", "a"))
        assert "nothing was started" in again["statusMessage"]
        assert ended(server, again["taskId"])["status"] == "completed"


def test_a_task_is_cancelled_with_its_subagents(own: Path) -> None:
    with Raw(own) as server:
        begun = spawned(server, task(GATED.format("one"), "a"))
        until((own / "tasks/mcp/agents/a/workspace/ready").exists)
        assert "error" not in asked(server, "tasks/cancel", {"taskId": begun["taskId"]})
        assert ended(server, begun["taskId"])["status"] == "cancelled"
        assert "error" not in asked(server, "tasks/cancel", {"taskId": begun["taskId"]})
        update = {"taskId": begun["taskId"], "inputResponses": {}}
        assert "result" in asked(server, "tasks/update", update)


def test_a_client_without_the_extension_gets_an_ordinary_answer(own: Path) -> None:
    with Raw(own) as server:
        answer = spawned(server, task("echo plain", "a"), declared=False)
        assert answer["structuredContent"]["results"][0]["answer"] == "plain"
        refused = asked(server, "tasks/get", {"taskId": "a"}, declared=False)
        assert refused["error"]["code"] == -32021


@pytest.mark.parametrize("name", ["no-such", "../etc", "", "a," * 40, "a,,b"])
def test_an_unknown_task_is_refused(own: Path, name: str) -> None:
    with Raw(own) as server:
        assert asked(server, "tasks/get", {"taskId": name})["error"]["code"] == -32602
        assert server.process.poll() is None


def test_a_wrong_call_is_refused_and_makes_no_task(own: Path) -> None:
    with Raw(own) as server:
        answer = spawned(server, {"task": "x"})
        assert answer["isError"] and "context_paths is missing" in answer["content"][0]["text"]


def called(server: Raw, tool: str, **arguments: Any) -> Message:
    result = asked(server, "tools/call", {"name": tool, "arguments": arguments})["result"]
    document: Message = result["structuredContent"]
    return document


def test_the_results_of_a_client_that_is_gone_are_told_to_the_next(own: Path) -> None:
    with Raw(own) as server, Raw(own) as other:
        spawned(server, task("echo one", "a"))
        with_root = Root(own)
        with_root.call("subagent.wait_all", task="mcp", timeout_seconds=BOUND_S)
        kept = called(other, WAIT, timeout_seconds=0)
        assert (kept["job_id"], kept["status"]) == (None, "timed_out"), "somebody else will tell"
        server.process.kill()
        told = called(other, WAIT, timeout_seconds=BOUND_S)
        assert (told["job_id"], told["result"]["answer"]) == ("a", "one")
        assert called(other, WAIT)["status"] == "idle"
        with_root.release()


def test_what_is_kept_for_a_task_can_be_fetched(own: Path) -> None:
    with Raw(own) as server, Raw(own) as other:
        begun = spawned(server, task("echo one", "a"))
        ended(server, begun["taskId"])
        assert called(other, FETCH, job_id="a")["result"]["answer"] == "one"
        assert called(other, WAIT)["status"] == "idle"
