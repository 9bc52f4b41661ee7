"""Delivery of results when a call is cancelled at the last moment."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from retinue.core.errors import StewardUnavailable
from retinue.delegation.delegation_calls import DelegationCalls
from retinue.delegation.result_view import Request, ToolAnswer
from retinue.delegation.tool_definitions import CONTINUE, FETCH, JOBS_LIST, LIST, SPAWN, WAIT

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
    """Session that delivers the result of `a`; the test decides on further results."""

    def __init__(self, told: dict[str, Any] = TOLD) -> None:
        self.told = told
        self.total = 0  # number of subagents; lists show none of them
        self.looked = asyncio.Event()  # set when further results are asked for
        self.others: asyncio.Future[list[dict[str, Any]]] = asyncio.Future()
        self.taken_back: list[str] = []
        self.ends: list[dict[str, Any]] = []  # of plans

    async def look(self) -> None:
        """Do nothing."""

    async def spawn(self, **params: Any) -> Any:
        raise AssertionError("this session does not spawn")

    newest_task = "mcp"
    has_live_run = False

    async def ask(self, verb: str, **params: Any) -> Any:
        return self.told

    async def wait(self, timeout_seconds: float) -> dict[str, Any]:
        told: dict[str, Any] = await self.ask("wait")
        return told

    async def take_run_ends(self) -> list[dict[str, Any]]:
        return self.ends

    async def listing(self, limit: int) -> dict[str, Any]:
        return {"subagents": [], "total": self.total, "shown": 0}

    async def list_rows(self, limit: int) -> list[dict[str, Any]]:
        return []

    async def take_unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]:
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
def test_a_result_is_delivered_again_if_the_call_is_cancelled_after_it(
    tool: str, arguments: dict[str, Any], news: list[str]
) -> None:
    async def scene() -> None:
        desk = FakeDesk(TOLD | {"tells": news})
        calls = DelegationCalls(desk)
        call = asyncio.create_task(calls.perform(Request(tool=tool, arguments=arguments)))
        await desk.looked.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await calls.close()
        assert call.cancelled() and desk.taken_back == news

    play(scene())


def test_a_result_is_delivered_again_if_the_call_ends_before_it_is_read() -> None:
    async def scene() -> None:
        answered, arrived = asyncio.Event(), asyncio.Event()

        class LateSession(FakeDesk):
            async def ask(self, verb: str, **params: Any) -> Any:
                await answered.wait()
                arrived.set()
                return self.told

            async def list_rows(self, limit: int) -> list[dict[str, Any]]:
                return [{"subagent_id": "a", "status": "running"}]

        session = LateSession()
        calls = DelegationCalls(session)
        call = asyncio.create_task(calls.perform(Request(tool=WAIT, arguments={})))
        await asyncio.sleep(0)
        answered.set()
        await arrived.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await calls.close()
        assert call.cancelled() and session.taken_back == ["a"]

    play(scene())


def test_an_answer_is_cut_and_its_rest_can_be_fetched() -> None:
    async def scene() -> None:
        answer = "".join(f"{number:06d} " for number in range(3000))
        long = TOLD | {"result": RESULT | {"answer": answer, "log_path": "/t/a/runtime"}}
        parts: list[str] = []
        while len("".join(parts)) < len(answer):
            session = FakeDesk(long)
            session.others.set_result([])
            offset = len("".join(parts))
            given = {"job_id": "a", "offset": offset}
            got = await DelegationCalls(session).perform(Request(tool=FETCH, arguments=given))
            parts.append(got.document["result"]["answer"])
            rest = got.document["result"].get("answer_rest", "")
            assert len(parts[-1]) <= 8000 and rest in "\n".join(got.texts)
            more = offset + 8000 < len(answer)
            assert (f"offset {offset + 8000}" in rest) == more
            assert ("read /t/a/artifacts/answer.txt" in rest) == more
        assert "".join(parts) == answer

    play(scene())


def test_an_answer_lists_the_results_it_delivers_without_failed_fetches() -> None:
    async def scene() -> None:
        async def answered(others: Any) -> ToolAnswer:
            desk = FakeDesk()
            if isinstance(others, Exception):
                desk.others.set_exception(others)
            else:
                desk.others.set_result(others)
            calls = DelegationCalls(desk)
            answer = await calls.perform(Request(tool=WAIT, arguments={}))
            await calls.close()
            assert not desk.taken_back, "an answer that is sent delivers its results once"
            return answer

        other = TOLD | {"agentInstance": "b", "result": RESULT | {"subagent_id": "b"}}
        assert (await answered([other])).delivered == ("a", "b")
        assert (await answered(StewardUnavailable("it is gone"))).delivered == ("a",)

    play(scene())


@pytest.mark.parametrize(("tool", "arguments"), [(LIST, {}), (JOBS_LIST, {"include_all": True})])
@pytest.mark.parametrize("total", [0, 7])
def test_a_list_that_leaves_subagents_out_says_so(
    tool: str, arguments: dict[str, Any], total: int
) -> None:
    async def scene() -> None:
        desk = FakeDesk()
        desk.total = total
        desk.others.set_result([])
        answer = await DelegationCalls(desk).perform(Request(tool=tool, arguments=arguments))
        said = "0 of 7 subagents are listed" in "\n".join(answer.texts)
        assert (answer.document.get("total"), said) == ((7, True) if total else (None, False))

    play(scene())


def test_an_answer_tells_that_a_plan_has_ended_and_what_never_started() -> None:
    async def scene() -> None:
        desk = FakeDesk()
        desk.others.set_result([])
        end = {"task_id": "mcp-plan-1", "outcome": "failed", "branch": "retinue/mcp-plan-1"}
        desk.ends = [end | {"applied": None, "not_started": {"late": "base failed"}}]
        answer = await DelegationCalls(desk).perform(Request(tool=LIST, arguments={}))
        (plan,) = answer.document["plans"]
        assert plan == {
            "plan": "mcp-plan-1",
            "success": False,
            "branch": "retinue/mcp-plan-1",
            "not_started": {"late": "base failed"},
        }
        text = "\n".join(answer.texts)
        assert "plan mcp-plan-1 ended and did not succeed" in text
        assert "[late] not started: base failed" in text

    play(scene())


class StuckMerge(FakeDesk):
    """Session whose subagents wait to be merged, which never ends."""

    def __init__(self, told: dict[str, Any] = TOLD) -> None:
        super().__init__(told | {"status": "waiting_for_merge"})
        self.merging = asyncio.Event()
        self.refusal: Exception | None = None

    async def spawn(self, **params: Any) -> Any:
        return {"success": True, "results": [RESULT], "summary": {"total": 1}, "tells": ["a"]}

    async def ask(self, verb: str, **params: Any) -> Any:
        if verb == "look":
            return {"status": "waiting_for_merge", "integrated_by": "parent"}
        return RESULT | {"tells": ["a"]} if verb == "continue" else self.told

    async def integrate(self, name: str) -> None:
        self.merging.set()
        if self.refusal is not None:
            raise self.refusal
        await asyncio.Event().wait()


MERGED = {"tasks": [{"task": "x", "context_paths": [], "integration": "merge"}]}
MERGING: list[tuple[str, dict[str, Any]]] = [
    (WAIT, {}),
    (FETCH, {"job_id": "a"}),
    (CONTINUE, {"subagent_id": "a", "message": "more"}),
    (SPAWN, MERGED),
]


@pytest.mark.parametrize(("tool", "arguments"), MERGING)
def test_a_result_is_delivered_again_if_the_call_is_cancelled_while_it_is_merged(
    tool: str, arguments: dict[str, Any]
) -> None:
    async def scene() -> None:
        desk = StuckMerge()
        calls = DelegationCalls(desk)
        call = asyncio.create_task(calls.perform(Request(tool=tool, arguments=arguments)))
        await desk.merging.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await calls.close()
        assert call.cancelled() and desk.taken_back == ["a"]

    play(scene())


def test_a_background_result_is_delivered_again_if_the_call_is_cancelled_while_it_is_merged() -> (
    None
):
    async def scene() -> None:
        desk = StuckMerge()
        desk.others.set_result([desk.told])
        calls = DelegationCalls(desk)
        call = asyncio.create_task(calls.perform(Request(tool=LIST, arguments={})))
        await desk.merging.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await calls.close()
        assert desk.taken_back == ["a"]

    play(scene())


@pytest.mark.parametrize(("tool", "arguments"), MERGING[2:])
def test_a_result_whose_merge_fails_is_delivered_with_a_warning(
    tool: str, arguments: dict[str, Any]
) -> None:
    async def scene() -> None:
        desk = StuckMerge()
        desk.refusal = StewardUnavailable("it is gone")
        desk.others.set_result([])
        answer = await DelegationCalls(desk).perform(Request(tool=tool, arguments=arguments))
        assert answer.delivered == ("a",)
        assert "its output was not merged yet: it is gone" in "\n".join(answer.texts)

    play(scene())


class PlanSession(FakeDesk):
    """Session with a plan that settles a step, and then asks for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.waiting = asyncio.Event()
        self.waits = 0  # requests for the next step that are under way
        self.cancelled: list[str] = []

    async def start_run(self, plan: str, names: Sequence[str], **params: Any) -> dict[str, Any]:
        return {"task_id": "mcp-plan-1", "path": "/t", "subagents": []}

    def follow_run(self, task: str) -> Any:
        return nullcontext()

    async def wait_run(self, task: str) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("this plan does not end")

    async def wait_in_run(self, task: str) -> dict[str, Any]:
        self.waits += 1
        if self.waits == 1 and self.steps.empty():
            self.waiting.set()
        try:
            return await self.steps.get()
        finally:
            self.waits -= 1

    async def cancel_run(self, task: str) -> None:
        self.cancelled.append(task)


PLANNED = {
    "tasks": [
        {"task": "x", "context_paths": [], "subagent_id": "a"},
        {"task": "y", "context_paths": [], "subagent_id": "b", "depends_on": ["a"]},
    ]
}


@pytest.mark.parametrize("cut", [True, False], ids=["timed out", "cancelled"])
def test_a_plan_goes_on_if_its_call_timed_out_and_ends_if_it_was_cancelled(cut: bool) -> None:
    async def scene() -> None:
        session = PlanSession()
        session.steps.put_nowait(TOLD)
        calls = DelegationCalls(session)
        reasons = [cut]  # told once, as the record of cancelled calls does
        request = Request(
            tool=SPAWN, arguments=PLANNED, was_cut=lambda: bool(reasons and reasons.pop())
        )
        call = asyncio.create_task(calls.perform(request))
        await session.waiting.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await calls.close()
        assert session.cancelled == ([] if cut else ["mcp-plan-1"])
        assert session.taken_back == ["a"]
        assert session.waits == 0, "a request left behind would receive the next result"

    play(scene())


def test_a_plan_that_asks_delivers_its_results_again_if_the_call_ends_at_that_moment() -> None:
    async def scene() -> None:
        session = PlanSession()
        calls = DelegationCalls(session)
        call = asyncio.create_task(calls.perform(Request(tool=SPAWN, arguments=PLANNED)))
        await session.waiting.wait()
        session.steps.put_nowait(TOLD | {"status": "blocked"})
        # Until the work has ended, and before the call goes on.
        for _ in range(4):
            await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await calls.close()
        assert call.cancelled() and session.taken_back == ["a"]

    play(scene())
