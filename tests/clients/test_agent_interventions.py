"""Real coding agents that are told something, interrupted, cancelled, killed or refused."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from clients.test_agent_subagents import AGENTS, brief, create, root, shell
from support.conductor import conducting
from support.roots import Root, Row, until

__all__ = ["root"]
BOUND_S = 60
WAITS = "touch began; until [ -e go ]; do sleep 0.05; done; echo over"

pytestmark = pytest.mark.timeout(BOUND_S * 3)


def begin(root: Root, url: str, agent: str, **terms: Any) -> str:
    task = create(root, url)
    root.spawn(task, brief(agent, subagent_id="s", max_retries=0, **terms))
    return task


def attend(root: Root, task: str) -> Row:
    result: Row = root.call("subagent.attend", task=task, subagent="s")
    return result


def find_file(root: Root, task: str, name: str) -> Path | None:
    # Unlike rglob, this does not mind folders that vanish meanwhile.
    for folder, _, files in os.walk(root.folder(task, "s")):
        if name in files:
            return Path(folder, name)
    return None


def notices(root: Root, task: str) -> str:
    path = find_file(root, task, "notices.jsonl")
    return path.read_text() if path else ""


def steered(root: Root, task: str) -> list[str]:
    return [e["payload"]["how"] for e in root.events(task) if e["type"] == "agent.steered"]


def first_process(root: Root, task: str) -> int:
    show = root.call("subagent.show", task=task, subagent="s")
    return int(show["attempts"][-1]["pid"])


def processes_below(first: int) -> list[int]:
    """The process and all that it and they have started."""
    found = [first]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found


@pytest.mark.parametrize("agent", AGENTS)
def test_a_message_while_a_tool_runs_is_told_as_the_agent_can(root: Root, agent: str) -> None:
    with conducting([shell(agent, WAITS)]) as model:
        task = begin(root, model.url, agent)
        began = until(lambda: find_file(root, task, "began"), BOUND_S)
        root.call("subagent.send", task=task, subagent="s", message="NEW-WORD")
        until(lambda: "agent_steered" in notices(root, task), BOUND_S)
        (began.parent / "go").touch()
        result = attend(root, task)
    assert result["status"] == "completed", result
    after = "after the turn" if agent == "gemini" else "in the turn"
    assert steered(root, task) == [after]
    told = [str(document) for _, document in model.asked]
    assert "NEW-WORD" in told[-1], told[-1][-3000:]
    # In the turn: the request that has the tool's result has the message, too. opencode does not
    # confirm that it has read the message, so there it may be a later request of the same turn.
    first = next(text for text in told if "over" in text and "began" in text)
    if agent != "opencode":
        assert ("NEW-WORD" in first) == (agent != "gemini"), told


@pytest.mark.parametrize("agent", AGENTS)
def test_an_urgent_message_aborts_the_request_and_is_answered(root: Root, agent: str) -> None:
    with conducting([], holds=lambda asked: "NEW-WORD" not in asked) as model:
        task = begin(root, model.url, agent)
        assert model.holding.wait(BOUND_S)
        began = time.monotonic()
        root.call("subagent.send", task=task, subagent="s", message="NEW-WORD", now=True)
        assert model.given_up.wait(BOUND_S)
        took = time.monotonic() - began
        result = attend(root, task)
    print(f"{agent}: given up after {took:.2f} s")
    assert (result["status"], result["answer"]) == ("completed", "DONE nothing"), result
    assert steered(root, task) == ["interrupted"]
    assert took < 0.5


@pytest.mark.parametrize("agent", AGENTS)
def test_cancelling_an_agent_in_a_tool_leaves_its_words_and_no_process(
    root: Root, agent: str
) -> None:
    with conducting([shell(agent, WAITS)], words="I will wait.") as model:
        task = begin(root, model.url, agent)
        until(lambda: find_file(root, task, "began"), BOUND_S)
        inside = processes_below(first_process(root, task))
        assert len(inside) > 1
        began = time.monotonic()
        root.call("subagent.cancel", task=task, subagent="s")
        took = time.monotonic() - began
        result = attend(root, task)
    print(f"{agent}: closed after {took:.2f} s")
    assert (result["status"], result["answer"]) == ("cancelled", "I will wait."), result
    assert not any(Path(f"/proc/{each}").exists() for each in inside)
    assert took < 2


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_that_is_killed_in_a_tool_leaves_its_words(root: Root, agent: str) -> None:
    with conducting([shell(agent, WAITS)], words="I will wait.") as model:
        task = begin(root, model.url, agent)
        until(lambda: find_file(root, task, "began"), BOUND_S)
        os.kill(first_process(root, task), signal.SIGKILL)
        result = attend(root, task)
    assert (result["status"], result["answer"]) == ("partial", "I will wait."), result
    assert result["token_usage"]["input_tokens"] == 10, result


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_that_is_killed_in_a_stream_leaves_what_it_said(root: Root, agent: str) -> None:
    with conducting([], holds=lambda asked: True) as model:
        task = begin(root, model.url, agent)
        assert model.holding.wait(BOUND_S)
        until(lambda: find_file(root, task, "last_words.txt"), BOUND_S)
        os.kill(first_process(root, task), signal.SIGKILL)
        result = attend(root, task)
    assert result["status"] == "partial", result
    assert result["answer"] == "half an answer\n[cut off]", result
    assert result["token_usage"]["estimated"], result


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_outlives_its_steward(root: Root, agent: str) -> None:
    with conducting([shell(agent, WAITS)]) as model:
        task = begin(root, model.url, agent)
        began = until(lambda: find_file(root, task, "began"), BOUND_S)
        root.kill()
        until(lambda: root.call("subagent.show", task=task, subagent="s"), BOUND_S)
        (began.parent / "go").touch()
        result = attend(root, task)
        show = root.call("subagent.show", task=task, subagent="s")
    assert result["status"] == "completed" and "over" in result["answer"], result
    assert len(show["attempts"]) == 1
    assert result["token_usage"]["input_tokens"] == 10 * len(model.asked), result


@pytest.mark.parametrize("agent", AGENTS)
def test_before_its_deadline_an_agent_is_interrupted_and_asked(root: Root, agent: str) -> None:
    with conducting([], holds=lambda asked: "almost up" not in asked) as model:
        task = begin(root, model.url, agent, timeout_seconds=20)
        result = attend(root, task)
    assert (result["status"], result["answer"]) == ("completed", "DONE nothing"), result


@pytest.mark.parametrize("agent", AGENTS)
def test_a_provider_that_is_busy_for_a_while_costs_no_attempt(root: Root, agent: str) -> None:
    with conducting([], refuses=lambda number: number <= 2) as model:
        task = begin(root, model.url, agent)
        result = attend(root, task)
        show = root.call("subagent.show", task=task, subagent="s")
    assert (result["status"], result["answer"]) == ("completed", "DONE nothing"), result
    assert len(show["attempts"]) == 1
    assert "provider.cooldown" in [event["type"] for event in root.events(task)]
