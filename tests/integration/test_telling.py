"""A parent is told of each end once, and again only if the answer that told of it was lost."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from retinue.client.blocking_client import connect_if_running
from support.roots import BOUND_S, Root, sh, until


class Parent:
    """A parent that can say of any answer, by its number, that it never took it."""

    def __init__(self, root: Root, task: str) -> None:
        connection = connect_if_running(root.path)
        assert connection is not None
        connection.settimeout(BOUND_S)
        self.end = connection
        self._asked = {"task": task, "consumer": "mcp", "by": "parent"}
        self._lines = connection.makefile("rwb")
        self._numbers = count(1)

    def ask(self, verb: str, **params: Any) -> tuple[int, Any]:
        number = self._send(verb, **self._asked, **params)
        answer = json.loads(self._lines.readline())
        assert answer["id"] == number
        return number, answer["result"]

    def begin(self, verb: str, **params: Any) -> None:
        """It is asked, and nobody waits for the answer."""
        self._send(verb, **self._asked, **params)

    def lose(self, number: int) -> None:
        self._send("request.forget", request=number)

    def unseen(self) -> list[str]:
        return [each["agentInstance"] for each in self.ask("parent.take")[1]]

    def _send(self, verb: str, **params: Any) -> int:
        number = next(self._numbers)
        request = {"v": 1, "id": number, "verb": verb, "params": params}
        self._lines.write(json.dumps(request).encode() + b"\n")
        self._lines.flush()
        return number


@pytest.fixture
def task(root: Root) -> str:
    return root.create_task()


@pytest.fixture
def parent(root: Root, task: str) -> Iterator[Parent]:
    parent = Parent(root, task)
    with parent.end:
        yield parent


BRIEF = sh("echo done", subagent_id="a")


@pytest.mark.parametrize(
    ("verb", "again"),
    [
        ("parent.result", {"subagent": "a"}),
        ("parent.collect", {"subagents": ["a"]}),
        ("parent.spawn", {"tasks": [BRIEF], "wait": True}),
    ],
)
def test_a_delivered_result_is_not_repeated_for_a_lost_answer(
    parent: Parent, verb: str, again: dict[str, Any]
) -> None:
    first, answer = parent.ask("parent.spawn", tasks=[BRIEF], wait=True)
    assert answer["tells"] == ["a"]
    second, _ = parent.ask(verb, **again)
    parent.lose(second)
    assert parent.unseen() == []
    parent.lose(first)
    assert parent.unseen() == ["a"]


def test_results_reserved_by_one_call_are_not_delivered_by_another_during_its_start(
    root: Root, task: str, parent: Parent
) -> None:
    root.spawn(task, sh("sleep 600"))  # so that somebody can be waited for
    names = [f"quick-{number}" for number in range(15)]
    other = Parent(root, task)
    with other.end:
        other.begin("parent.wait", timeout_seconds=BOUND_S)
        parent.ask("parent.spawn", tasks=[sh("true", subagent_id=n) for n in names], handle=True)
        until(lambda: parent.ask("parent.collect", subagents=names)[1]["batch"] is not None)
        assert not select.select([other.end], [], [], 0)[0], "it was told by both"
    root.call("task.cancel", task=task)


def test_long_answers_come_by_and_by(root: Root, task: str, parent: Parent) -> None:
    script = "head -c 600000 /dev/zero | tr '\\0' x"
    briefs = [sh(script, subagent_id=name) for name in ("a", "b", "c")]
    assert all(len(each["answer"]) == 600_000 for each in root.run(task, *briefs))
    assert [len(parent.unseen()) for _ in range(3)] == [2, 1, 0]


def test_a_fetched_result_is_delivered_again_if_the_answer_was_lost(
    root: Root, task: str, parent: Parent
) -> None:
    root.run(task, BRIEF)
    number, answer = parent.ask("parent.result", subagent="a")
    assert answer["tells"] == ["a"]
    parent.lose(number)
    assert parent.unseen() == ["a"]
    assert parent.unseen() == []
