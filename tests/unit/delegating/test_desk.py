"""A parent's tasks: the newest is worked in, and none of the older is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue.delegating.desk import Choice, Desk
from retinue.domain.errors import NotFound, NothingToWaitFor, Refused, WaitTimedOut

CHOICE = Choice(folder=Path("/"))


class Steward:
    """Tasks with their states, the ids that are in each, and the ends that nobody was told of."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.ids: dict[str, set[str]] = {}
        self.untold: dict[str, list[str]] = {}
        self.kept = ""  # the task of which the rest is kept for another call
        self.heard: list[tuple[str, str]] = []

    async def call(self, verb: str, **params: Any) -> Any:
        name = params.get("task") or params["task_id"]
        self.heard.append((verb, name))
        if verb == "task.create":
            self.states[name] = "open"
            return None
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
        one, two = Desk(steward.call, CHOICE), Desk(steward.call, CHOICE)
        await one.look()
        assert await one.rows(1) == [] and await one.standing() is None
        assert [await one.spawn(), await two.spawn()] == ["mcp", "mcp"]
        steward.states["mcp"] = "closed"
        assert [await two.spawn(), await one.spawn()] == ["mcp-2", "mcp-2"]

    asyncio.run(scene())


def test_another_servers_newer_task_is_seen_by_every_reading(steward: Steward) -> None:
    async def scene() -> None:
        desk = Desk(steward.call, CHOICE)
        await desk.look()
        assert await desk.rows(1) == [{"task_id": "mcp-3"}]
        steward.states |= {"mcp-3": "closed", "mcp-4": "open"}
        await desk.look()
        assert await desk.rows(1) == [{"task_id": "mcp-4"}]
        standing = await desk.standing()
        assert standing is not None and standing["task_id"] == "mcp-4"

    asyncio.run(scene())


def test_a_subagent_is_found_in_whichever_task_it_is_the_newest_first(steward: Steward) -> None:
    async def scene() -> None:
        desk = Desk(steward.call, CHOICE)
        await desk.look()
        steward.ids = {"mcp": {"a", "b"}, "mcp-2": {"b"}}
        assert await desk.ask("look", subagent="a") == "mcp"
        assert await desk.ask("look", subagent="b") == "mcp-2"
        with pytest.raises(NotFound, match="mcp-3"):
            await desk.ask("look", subagent="c")

    asyncio.run(scene())


def test_ends_in_older_tasks_are_told_and_then_those_are_asked_no_more(steward: Steward) -> None:
    async def scene() -> None:
        desk = Desk(steward.call, CHOICE)
        await desk.look()
        steward.untold = {"mcp": ["a"], "mcp-2": ["b"], "mcp-3": ["c"]}
        told = [await desk.ask("wait", timeout_seconds=9) for _ in range(3)]
        assert told == ["a", "b", "c"]
        steward.heard.clear()
        assert await desk.unseen() == []
        assert steward.heard == [("parent.take", "mcp-3")]

    asyncio.run(scene())


def test_what_was_kept_for_another_call_in_an_older_task_is_told_when_it_no_longer_is(
    steward: Steward,
) -> None:
    async def scene() -> None:
        waits, takes = Desk(steward.call, CHOICE), Desk(steward.call, CHOICE)
        await waits.look()
        await takes.look()
        steward.untold, steward.kept = {"mcp": ["a", "b"], "mcp-3": ["c"]}, "mcp"
        assert await waits.ask("wait") == "c" and await takes.unseen() == []
        steward.kept = ""
        assert await waits.ask("wait") == "a" and await takes.unseen() == ["b"]

    asyncio.run(scene())


def test_a_named_task_is_the_only_one(steward: Steward) -> None:
    async def scene() -> None:
        desk = Desk(steward.call, Choice(folder=Path("/"), task="mcp-2"))
        with pytest.raises(Refused) as refused:
            await desk.spawn()
        assert refused.value.code == "task_closed" and "another task" in refused.value.hint

    asyncio.run(scene())
