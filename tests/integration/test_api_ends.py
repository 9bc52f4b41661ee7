"""Calls that outlast something: the block they were made in, their loop, their steward."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue import BadInput, Brief, Refused, Retinue, Task
from support.api import (
    BOUND_S,
    Opening,
    create,
    let_go,
    playing,
    sh,
    statuses,
    until_async,
)

LATE = "while ! test -e go; do sleep 0.02; done; echo late"


async def events(task: Task, *, follow: bool = False) -> list[dict[str, Any]]:
    return [event async for event in task.events(follow=follow)]


@pytest.mark.requirement("R251")
def test_calls_still_awaited_end_with_the_block_and_only_a_run_takes_its_children_along(
    opened: Opening,
) -> None:
    async def leave() -> str:
        async with opened() as r:
            task = await create(r)
            await task.spawn([sh(LATE, "spawned")])
            calls = [
                asyncio.create_task(call)
                for call in (
                    task.run([sh("sleep 60", "run")]),
                    task.wait_any(),
                    task.wait_all(),
                    events(task, follow=True),
                )
            ]
            both = {"spawned": "running", "run": "running"}
            await until_async(lambda: statuses(task), both)
        for call in calls:
            with pytest.raises(Refused) as over:
                await call
            assert over.value.code == "root_left"
            assert not call.cancelling(), "nobody had cancelled it"
        return task.id

    async def come_back(name: str) -> None:
        async with opened() as r:
            task = r.task(name)
            await until_async(lambda: statuses(task), {"spawned": "running", "run": "cancelled"})
            assert "its caller is gone" in (await task.result("run")).error
            let_go((await r.call("subagent.show", task=name, subagent="spawned"))["workspace"])
            assert [each.status for each in await task.wait_all(timeout=20)] == [
                "completed",
                "cancelled",
            ]
            told = {(await task.wait_any(timeout=5)).id for _ in range(2)}
            assert told == {"spawned", "run"}, "the wait that was cut short took nothing away"

    asyncio.run(come_back(asyncio.run(leave())))


def test_an_error_in_the_block_is_what_its_caller_sees_though_a_run_is_under_way(
    opened: Opening,
) -> None:
    async def scene() -> None:
        async with opened() as r:
            task = await create(r)
            run = asyncio.create_task(task.run([sh("sleep 60", "run")]))
            await until_async(lambda: statuses(task), {"run": "running"})
            await asyncio.gather(run, task.run([Brief("", id="bad")]))

    with pytest.raises(BadInput, match="nothing to do"):
        asyncio.run(scene())


def test_a_call_that_is_cancelled_while_the_block_is_left_is_cancelled(opened: Opening) -> None:
    async def scene() -> None:
        async with opened() as r:
            task = await create(r)
            await task.spawn([sh(LATE, "spawned")])
            waiting = asyncio.create_task(task.wait_any())
            await statuses(task)  # asked after it
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scene())


def test_after_the_block_everything_is_refused_by_its_name(opened: Opening) -> None:
    async def scene() -> None:
        async with opened() as r:
            task = await create(r)
            begun = task.events()
            assert (await anext(begun))["seq"] == 1
        asked: list[Awaitable[object]] = [
            r.tasks(),
            create(r),
            task.result("x"),
            task.wait_any(timeout=1),
            events(task),
            anext(begun),
        ]
        for each in asked:
            with pytest.raises(Refused) as over:
                await each
            assert over.value.code == "root_left" and "async with" in over.value.message

    asyncio.run(scene())


def test_another_loop_is_refused_and_can_hand_its_call_over(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task, loop = await create(r), asyncio.get_running_loop()
        seen: list[object] = []

        async def elsewhere() -> None:
            for asked in (r.tasks(), task.wait_any(timeout=1), events(task)):
                with pytest.raises(Refused) as refused:
                    await asyncio.wait_for(asked, BOUND_S)
                seen.append(refused.value.code)
            there = asyncio.run_coroutine_threadsafe(r.tasks(), loop)
            seen.append(len(await asyncio.wrap_future(there)))

        other = threading.Thread(target=asyncio.run, args=(elsewhere(),))
        other.start()
        await asyncio.to_thread(other.join, BOUND_S)
        assert seen == [*["other_loop"] * 3, 1]
        assert (await task.run([sh("echo x")])).success

    playing(scene, opened)


def test_a_value_that_cannot_be_sent_is_bad_input_and_nothing_is_done(opened: Opening) -> None:
    async def scene(r: Retinue) -> None:
        task = await create(r)
        odd: Any = Path("/")
        no_briefs: list[Any] = ["hello", Brief("x"), [Brief("x"), "y"], None, 1]
        asked: list[Awaitable[object]] = [
            *(task.wait_any(timeout=seconds) for seconds in (math.inf, math.nan)),
            task.wait_all(timeout=-math.inf),
            *(task.run([sh("x", timeout_seconds=each)]) for each in (math.inf, math.nan)),
            task.run([Brief("x", context_paths=[odd])]),
            task.run([Brief(argv=[odd])]),
            task.run([Brief(argv=[b"x"])]),  # type: ignore[list-item]
            task.run([Brief(argv="ls")]),
            task.run([Brief("x", context_paths="abc")]),
            task.run([Brief("x", tools="abc")]),
            task.run([Brief("x", success_criteria=None)]),  # type: ignore[arg-type]
            *(task.spawn(each) for each in no_briefs),
            r.call("task.list", limit={("a", "b"): 1}),
        ]
        for each in asked:
            with pytest.raises(BadInput) as refused:
                await each
            assert refused.value.code == "invalid_request"
        assert await task.subagents() == []

    playing(scene, opened)


@pytest.mark.parametrize("way", ["asked", "told"])
def test_a_steward_that_is_stopped_leaves_the_children_of_blocking_calls_to_the_next(
    own: Path, way: str
) -> None:
    async def scene() -> None:
        async with retinue.connect(own) as r, retinue.connect(own) as other:
            task = await create(r)
            await task.spawn([sh(LATE, "spawned")])
            run = asyncio.create_task(task.run([sh(LATE, "run")]))
            both = {"spawned": "running", "run": "running"}
            await until_async(lambda: statuses(task), both)
            if way == "asked":
                await other.call("steward.stop")
            else:
                os.kill((await other.call("steward.status"))["pid"], signal.SIGTERM)
            assert await statuses(task) == both
            for row in await task.subagents():
                let_go(row["workspace"])
            assert [each.answer for each in (await run).results] == ["late"]
            assert {each.status for each in await task.wait_all(timeout=20)} == {"completed"}

    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scene()

    asyncio.run(bounded())


def test_stopping_the_steward_with_its_children_answers_pending_waits(own: Path) -> None:
    async def scene() -> None:
        async with asyncio.timeout(BOUND_S), retinue.connect(own) as r:
            task = await create(r)
            run = asyncio.create_task(task.run([sh("sleep 60", "run")]))
            await until_async(lambda: statuses(task), {"run": "running"})
            await r.call("steward.stop", cancel=True)
            assert [each.status for each in (await run).results] == ["cancelled"]

    asyncio.run(scene())
