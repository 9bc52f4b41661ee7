"""A parent's tasks: the newest takes work, older ones are still searched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import BadInput, NotFound, NothingToWaitFor, Refused, WaitTimedOut
from retinue.delegation.task_session import Choice, TaskSession

CHOICE = Choice(folder=Path("/"))


class Steward:
    """Fake steward: tasks with their states, subagent ids and undelivered results."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.ids: dict[str, set[str]] = {}
        self.untold: dict[str, list[str]] = {}
        self.refuses: Exception | None = None  # a spawn that would create a task
        self.kept = ""  # task whose results are reserved for another call
        self.heard: list[tuple[str, str]] = []

    async def call(self, verb: str, **params: Any) -> Any:
        name = params["task"]
        self.heard.append((verb, name))
        if params.get("create") and name not in self.states:
            if self.refuses is not None:
                raise self.refuses
            self.states[name] = "open"
        if name not in self.states:
            raise NotFound(f"no task {name}", code="unknown_task")
        return getattr(self, verb.partition(".")[2])(name, **params)

    def show(self, name: str, **_: Any) -> Any:
        return {"task_id": name, "state": self.states[name]}

    def list(self, name: str, **_: Any) -> Any:
        return [{"task_id": name}]

    def spawn(self, name: str, **_: Any) -> Any:
        if self.states[name] != "open":
            raise Refused(f"task {name} is closed", code="task_closed")
        return name

    def look(self, name: str, subagent: str, **_: Any) -> Any:
        if subagent not in self.ids.get(name, ()):
            raise NotFound(f"no subagent in {name}", code="unknown_subagent")
        return name

    def wait(self, name: str, **_: Any) -> Any:
        if self.kept == name:
            raise WaitTimedOut("kept", code="kept_for_another")
        if not self.untold.get(name):
            raise NothingToWaitFor("nobody")
        return self.untold[name].pop(0)

    def take(self, name: str, **_: Any) -> Any:
        if self.kept == name:
            return []
        found, self.untold[name] = self.untold.get(name, []), []
        return found


@pytest.fixture
def steward() -> Steward:
    steward = Steward()
    steward.states = {"mcp": "closed", "mcp-2": "closed", "mcp-3": "open"}
    return steward


def test_work_goes_to_the_newest_task_and_a_closed_one_is_followed_by_the_next() -> None:
    async def scene() -> None:
        steward = Steward()
        one, two = TaskSession(steward.call, CHOICE), TaskSession(steward.call, CHOICE)
        await one.look()
        assert await one.list_rows(1) == [] and await one.find_open_task() is None
        assert [await one.spawn(), await two.spawn()] == ["mcp", "mcp"]
        steward.states["mcp"] = "closed"
        assert [await two.spawn(), await one.spawn()] == ["mcp-2", "mcp-2"]

    asyncio.run(scene())


def test_a_refused_first_spawn_is_followed_by_one_that_creates_the_task() -> None:
    async def scene() -> None:
        steward = Steward()
        steward.refuses = BadInput("no model", code="no_backend")
        desk = TaskSession(steward.call, CHOICE)
        with pytest.raises(BadInput, match="no model"):
            await desk.spawn()
        assert await desk.find_open_task() is None and steward.states == {}
        steward.refuses = None
        assert await desk.spawn() == "mcp"

    asyncio.run(scene())


def test_a_task_that_is_gone_with_its_root_is_created_again() -> None:
    async def scene() -> None:
        steward = Steward()
        desk = TaskSession(steward.call, CHOICE)
        await desk.spawn()
        steward.states = {"mcp": "closed", "mcp-2": "open"}
        await desk.look()
        steward.states.clear()
        assert await desk.spawn() == "mcp"

    asyncio.run(scene())


def test_a_newer_task_of_another_server_is_found(steward: Steward) -> None:
    async def scene() -> None:
        desk = TaskSession(steward.call, CHOICE)
        await desk.look()
        assert await desk.list_rows(1) == [{"task_id": "mcp-3"}]
        steward.states |= {"mcp-3": "closed", "mcp-4": "open"}
        await desk.look()
        assert await desk.list_rows(1) == [{"task_id": "mcp-4"}]
        standing = await desk.find_open_task()
        assert standing is not None and standing["task_id"] == "mcp-4"

    asyncio.run(scene())


def test_a_subagent_is_found_in_any_task_newest_first(steward: Steward) -> None:
    async def scene() -> None:
        desk = TaskSession(steward.call, CHOICE)
        await desk.look()
        steward.ids = {"mcp": {"a", "b"}, "mcp-2": {"b"}}
        assert await desk.ask("look", subagent="a") == "mcp"
        assert await desk.ask("look", subagent="b") == "mcp-2"
        with pytest.raises(NotFound, match="mcp-3"):
            await desk.ask("look", subagent="c")

    asyncio.run(scene())


def test_results_of_older_tasks_are_delivered_and_then_not_asked_for(steward: Steward) -> None:
    async def scene() -> None:
        desk = TaskSession(steward.call, CHOICE)
        await desk.look()
        steward.untold = {"mcp": ["a"], "mcp-2": ["b"], "mcp-3": ["c"]}
        told = [await desk.ask("wait", timeout_seconds=9) for _ in range(3)]
        assert told == ["a", "b", "c"]
        steward.heard.clear()
        assert await desk.take_unseen() == []
        assert steward.heard == [("parent.take", "mcp-3")]

    asyncio.run(scene())


def test_a_reserved_result_of_an_older_task_is_delivered_once_released(
    steward: Steward,
) -> None:
    async def scene() -> None:
        waits, takes = TaskSession(steward.call, CHOICE), TaskSession(steward.call, CHOICE)
        await waits.look()
        await takes.look()
        steward.untold, steward.kept = {"mcp": ["a", "b"], "mcp-3": ["c"]}, "mcp"
        assert await waits.ask("wait") == "c" and await takes.take_unseen() == []
        steward.kept = ""
        assert await waits.ask("wait") == "a" and await takes.take_unseen() == ["b"]

    asyncio.run(scene())


def test_a_named_task_is_the_only_one(steward: Steward) -> None:
    async def scene() -> None:
        desk = TaskSession(steward.call, Choice(folder=Path("/"), task="mcp-2"))
        with pytest.raises(Refused) as refused:
            await desk.spawn()
        assert refused.value.code == "task_closed" and "another --task" in refused.value.hint

    asyncio.run(scene())
