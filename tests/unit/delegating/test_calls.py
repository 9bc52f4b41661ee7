"""A call that is ended in the last moment takes back what its answer would have told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pytest

from retinue.delegating.asking import Answer, Request
from retinue.delegating.blocking import Blocking
from retinue.delegating.calls import Calls
from retinue.delegating.tools import FETCH, WAIT
from retinue.domain.errors import StewardUnavailable

BOUND_S = 20.0
RESULT = {
    "subagent_id": "a",
    "status": "completed",
    "success": True,
    "answer": "x",
    "workspace": "/w",
    "execution_time_seconds": 1.0,
    "token_usage": {},
}
TOLD = {"agentInstance": "a", "status": "completed", "result": RESULT, "tells": ["a"]}


class FakeDesk:
    """Whoever asks is told of `a`; what else there is to tell is up to the test."""

    def __init__(self, told: dict[str, Any] = TOLD) -> None:
        self.told = told
        self.looked = asyncio.Event()  # somebody wants to know what else there is
        self.others: asyncio.Future[list[dict[str, Any]]] = asyncio.Future()
        self.taken_back: list[str] = []

    async def look(self) -> None:
        """Its task is where it was."""

    async def spawn(self, **params: Any) -> Any:
        raise AssertionError("nobody spawns here")

    async def ask(self, verb: str, **params: Any) -> Any:
        return self.told

    async def rows(self, limit: int) -> list[dict[str, Any]]:
        return []

    async def unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]:
        self.looked.set()
        return await self.others

    async def take_back(self, names: Sequence[str]) -> None:
        self.taken_back += names


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def staged() -> None:
        async with asyncio.timeout(BOUND_S):
            await scene

    asyncio.run(staged())


@pytest.mark.parametrize(("tool", "arguments"), [(WAIT, {}), (FETCH, {"job_id": "a"})])
@pytest.mark.parametrize("news", [["a"], []], ids=["unheard", "told-before"])
def test_an_end_that_was_unheard_is_told_again_if_the_call_ends_behind_it(
    tool: str, arguments: dict[str, Any], news: list[str]
) -> None:
    async def scene() -> None:
        desk = FakeDesk(TOLD | {"tells": news})
        calls = Calls(desk)
        call = asyncio.create_task(calls.perform(Request(tool=tool, arguments=arguments)))
        await desk.looked.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await calls.close()
        assert call.cancelled() and desk.taken_back == news

    play(scene())


def test_an_end_is_told_again_if_its_word_came_before_the_call_could_take_it() -> None:
    async def scene() -> None:
        taken_back: list[str] = []
        said, arrived = asyncio.Event(), asyncio.Event()

        async def work() -> Any:
            await said.wait()
            arrived.set()
            return {"results": [RESULT], "tells": ["a"]}

        async def running() -> str:
            return ""

        async def tell_again(names: Sequence[str]) -> None:
            taken_back.extend(names)

        blocking = Blocking(running, tell_again)
        call = asyncio.create_task(blocking.result(Request(tool=WAIT, arguments={}), work()))
        await asyncio.sleep(0)
        said.set()
        await arrived.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await blocking.close()
        assert call.cancelled() and taken_back == ["a"]

    play(scene())


def test_an_answer_knows_whose_ends_it_tells_and_comes_without_those_that_cannot_be_had() -> None:
    async def scene() -> None:
        async def answered(others: Any) -> Answer:
            desk = FakeDesk()
            if isinstance(others, Exception):
                desk.others.set_exception(others)
            else:
                desk.others.set_result(others)
            return await Calls(desk).perform(Request(tool=WAIT, arguments={}))

        other = TOLD | {"agentInstance": "b", "result": RESULT | {"subagent_id": "b"}}
        assert (await answered([other])).told == ("a", "b")
        assert (await answered(StewardUnavailable("it is gone"))).told == ("a",)

    play(scene())
