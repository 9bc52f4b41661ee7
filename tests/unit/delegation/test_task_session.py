"""A parent's tasks: the newest takes work, older ones are still searched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import (
    BadInput,
    NotFound,
    NothingToWaitFor,
    Refused,
    StewardUnavailable,
    WaitTimedOut,
)
from retinue.delegation.task_session import Choice, TaskSession

CHOICE = Choice(folder=Path("/"))


class Steward:
    """Fake steward: tasks with their states, subagent ids and undelivered results."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.ids: dict[str, set[str]] = {}
        self.untold: dict[str, list[str]] = {}
        self.refuses: Exception | None = None  # a spawn that would create a task
        self.ends: dict[str, Any] = {}  # of plans
        self.kept = ""  # task whose results are reserved for another call
        self.heard: list[tuple[str, str]] = []

    async def call(self, verb: str, **params: Any) -> Any:
        if verb == "task.list":
            return self.list_tasks(params["text"])
        name = params["task"]
        self.heard.append((verb, name))
        if params.get("create") and name not in self.states:
            if self.refuses is not None:
                raise self.refuses
            self.states[name] = "open"
        if name not in self.states:
            raise NotFound(f"no task {name}", code="unknown_task")
        if verb == "run.wait":
            if name not in self.ends:
                raise StewardUnavailable("it is gone")
            return self.ends[name]
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

    def take_back(self, name: str, subagents: list[str], **_: Any) -> Any:
        if not set(subagents) <= self.ids.get(name, set()):
            raise NotFound(f"no subagent in {name}", code="unknown_subagent")
        self.untold.setdefault(name, [])[:0] = [{"agentInstance": each} for each in subagents]

    def list_tasks(self, text: str) -> Any:
        newest = [name for name in reversed(self.states) if text in name]
        return [{"task_id": name, "state": self.states[name]} for name in newest]


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
        told = [await desk.wait(9) for _ in range(3)]
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
        assert await waits.wait(9) == "c" and await takes.take_unseen() == []
        steward.kept = ""
        assert await waits.wait(9) == "a" and await takes.take_unseen() == ["b"]

    asyncio.run(scene())


def test_a_named_task_is_the_only_one(steward: Steward) -> None:
    async def scene() -> None:
        desk = TaskSession(steward.call, Choice(folder=Path("/"), task="mcp-2"))
        with pytest.raises(Refused) as refused:
            await desk.spawn()
        assert refused.value.code == "task_closed" and "another --task" in refused.value.hint

    asyncio.run(scene())


def test_plans_of_other_servers_are_found_and_their_ends_are_told_once(steward: Steward) -> None:
    async def scene() -> None:
        desk = TaskSession(steward.call, CHOICE)
        steward.states |= {"mcp-plan-1": "closed", "mcp-plan-2": "open", "other-plan-3": "open"}
        steward.ids = {"mcp-plan-2": {"step"}, "mcp": {"step"}}
        steward.ends = {"mcp-plan-2": {"task_id": "mcp-plan-2", "outcome": "succeeded"}}
        await desk.look()
        assert desk.has_live_run
        assert await desk.ask("look", subagent="step") == "mcp-plan-2", "plans under way come first"
        assert await desk.take_run_ends() == []
        steward.states["mcp-plan-2"] = "closed"
        await desk.look()
        assert not desk.has_live_run
        assert await desk.take_run_ends() == [steward.ends["mcp-plan-2"]]
        assert await desk.take_run_ends() == []
        assert ("run.wait", "mcp-plan-1") not in steward.heard, "it had ended before"

    asyncio.run(scene())


def test_results_of_a_plan_that_a_call_follows_come_with_no_other_answer(steward: Steward) -> None:
    async def scene() -> None:
        desk = TaskSession(steward.call, CHOICE)
        steward.states |= {"mcp-plan-1": "open"}
        steward.untold = {"mcp-plan-1": ["a"]}
        await desk.look()
        with desk.follow_run("mcp-plan-1"):
            assert await desk.take_unseen() == [] and not desk.has_live_run
        assert await desk.take_unseen() == ["a"]

    asyncio.run(scene())


def test_two_results_at_the_same_moment_are_delivered_one_after_the_other(
    steward: Steward,
) -> None:
    async def scene() -> None:
        class LateSteward(Steward):
            """Results that come only to a call that has time to wait."""

            def wait(self, name: str, timeout_seconds: float, **more: Any) -> Any:
                if not timeout_seconds:
                    raise WaitTimedOut("nothing yet")
                return super().wait(name, **more)

        late = LateSteward()
        late.states = {"mcp": "open", "mcp-plan-1": "open"}
        late.ids = {"mcp": {"a"}, "mcp-plan-1": {"b"}}
        late.untold = {"mcp": [{"agentInstance": "a"}], "mcp-plan-1": [{"agentInstance": "b"}]}
        desk = TaskSession(late.call, CHOICE)
        await desk.look()
        told = [(await desk.wait(9))["agentInstance"] for _ in range(2)]
        assert sorted(told) == ["a", "b"]

    asyncio.run(scene())


def test_a_plan_cannot_reuse_the_id_of_a_subagent(steward: Steward) -> None:
    async def scene() -> None:
        desk = TaskSession(steward.call, CHOICE)
        steward.ids = {"mcp": {"a"}}
        with pytest.raises(Refused) as refused:
            await desk.start_run("{}", ["b", "a"], mark="1", apply=False)
        assert refused.value.code == "duplicate_id"
        assert not any(verb == "run.start" for verb, _ in steward.heard)

    asyncio.run(scene())


@pytest.mark.parametrize("failing", ["mcp", "mcp-plan-1"])
def test_a_result_is_delivered_also_if_the_wait_in_another_task_fails(failing: str) -> None:
    async def scene() -> None:
        class HalfLost(Steward):
            """Steward that fails to wait in one task, and has a result in the other."""

            def wait(self, name: str, timeout_seconds: float, **more: Any) -> Any:
                if not timeout_seconds:
                    raise WaitTimedOut("nothing yet")
                if name == failing:
                    raise StewardUnavailable("it is gone")
                return super().wait(name, **more)

        lost = HalfLost()
        lost.states = {"mcp": "open", "mcp-plan-1": "open"}
        lost.untold = {name: [{"agentInstance": "a"}] for name in lost.states}
        desk = TaskSession(lost.call, CHOICE)
        await desk.look()
        assert (await desk.wait(9))["agentInstance"] == "a"
        with pytest.raises(StewardUnavailable):
            await desk.wait(9)

    asyncio.run(scene())


def test_the_end_of_a_plan_is_told_also_if_that_of_another_cannot_be_read(steward: Steward) -> None:
    async def scene() -> None:
        desk = TaskSession(steward.call, CHOICE)
        steward.states |= {"mcp-plan-1": "open", "mcp-plan-2": "open"}
        await desk.look()
        ends = {name: {"task_id": name} for name in ("mcp-plan-1", "mcp-plan-2")}
        steward.states |= dict.fromkeys(ends, "closed")
        await desk.look()
        steward.ends = {"mcp-plan-1": ends["mcp-plan-1"]}
        assert await desk.take_run_ends() == [ends["mcp-plan-1"]]
        with pytest.raises(StewardUnavailable):
            await desk.take_run_ends()
        steward.ends = ends
        assert await desk.take_run_ends() == [ends["mcp-plan-2"]]

    asyncio.run(scene())
