"""The eight tools at work: arguments in, a document and a text out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from retinue.delegating import answers, tools
from retinue.delegating.arguments import checked
from retinue.domain.errors import NotFound, Refused, RetinueError, WaitTimedOut
from retinue.domain.subagent import LEFT

LISTED = 50
ALL_LISTED = 1000
WAIT_SECONDS = 45.0  # below what any known client allows a call
FIRST_BEAT_SECONDS = 1.0
BEAT_SECONDS = 5.0
AT_WORK = ("pending", "running", "blocked")

Work = Coroutine[Any, Any, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a tool gives: for programs, and for reading."""

    document: dict[str, Any]
    texts: tuple[str, ...]
    begun: tuple[str, ...] = ()  # told as begun, even if it has ended since


async def _silent(seconds: float, message: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call of a tool, and what is known of who makes it."""

    tool: str
    arguments: Mapping[str, Any]
    caller: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[float, str], Awaitable[None]] = _silent
    was_cut: Callable[[], bool] = lambda: False  # the client ended the call only for its length


class Errands(Protocol):
    """Verbs about one parent's subagents, carried to the steward."""

    async def spawn(self, **params: Any) -> Any: ...

    async def ask(self, verb: str, **params: Any) -> Any: ...

    async def rows(self, limit: int) -> list[dict[str, Any]]: ...

    async def unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]: ...


class Calls:
    def __init__(self, desk: Errands) -> None:
        self._desk = desk
        self._ending: set[asyncio.Task[Any]] = set()
        self._tools: dict[str, Callable[[Request, dict[str, Any]], Awaitable[Answer]]] = {
            tools.SPAWN: self._spawn,
            tools.LIST: self._list,
            tools.CONTINUE: self._continue,
            tools.STATUS: self._status,
            tools.FETCH: self._fetch,
            tools.WAIT: self._wait,
            tools.CANCEL: self._cancel,
            tools.JOBS_LIST: self._jobs,
        }

    async def perform(self, request: Request) -> Answer:
        """The tool's answer, with the background results that the parent has not seen.

        Raises:
            RetinueError: why the tool cannot do it.
        """
        arguments = checked(request.tool, request.arguments)
        answer = await self._tools[request.tool](request, arguments)
        unseen = [answers.riding(told) for told in await self._desk.unseen(but=answer.begun)]
        if not unseen:
            return answer
        return Answer(
            document=answer.document | {"background_results": unseen},
            texts=(*answer.texts, answers.riding_text(unseen)),
        )

    async def begin(self, request: Request) -> list[str]:
        """A spawn that does not block, though it was not for the background: the ids begun.

        Their results are for whoever collects them, and come with no other answer.
        """
        given = checked(request.tool, request.arguments)
        document = await self._desk.spawn(handle=True, **_spawn_params(request, given))
        return [row["subagent_id"] for row in document["subagents"]]

    async def collect(self, names: Sequence[str]) -> tuple[dict[str, Any], Answer | None]:
        """How far these are, and the answer that a blocking spawn would have given."""
        found = await self._desk.ask("collect", subagents=list(names))
        batch = found["batch"]
        if batch is None:
            return found, None
        return found, Answer(document=batch, texts=(answers.batch_text(batch),))

    async def stop(self, names: Sequence[str]) -> None:
        """Those of them that were at work have come to their end."""
        for name in names:
            with suppress(Refused):  # it had come to its end by itself
                await self._desk.ask("cancel", subagent=name, reason="its task was cancelled")

    async def close(self) -> None:
        """Nothing that was begun here is left."""
        if self._ending:
            await asyncio.wait(self._ending)

    async def _spawn(self, request: Request, given: dict[str, Any]) -> Answer:
        params = _spawn_params(request, given)
        if given.get("background"):
            document = await self._desk.spawn(**params)
            begun = tuple(row["subagent_id"] for row in document["subagents"])
            return Answer(document=document, texts=(answers.spawned_text(document),), begun=begun)
        work = self._desk.spawn(wait=True, **params)
        # Cut before the steward had heard of it, it is begun after all: the key makes it once.
        document = await self._blocking(request, work, lambda: self._desk.spawn(**params))
        return Answer(document=document, texts=(answers.batch_text(document),))

    async def _list(self, request: Request, given: dict[str, Any]) -> Answer:
        rows = [_row(row) for row in await self._desk.rows(LISTED)]
        text = answers.rows_text(rows, "no subagents yet")
        return Answer(document={"subagents": rows}, texts=(text,))

    async def _continue(self, request: Request, given: dict[str, Any]) -> Answer:
        asked = self._desk.ask(
            "continue",
            subagent=given["subagent_id"],
            message=given["message"],
            timeout_seconds=given.get("timeout_seconds"),
        )
        result = await self._blocking(request, asked)
        document = result | {"continues": given["subagent_id"]}
        return Answer(document=document, texts=(answers.result_text(result),))

    async def _status(self, request: Request, given: dict[str, Any]) -> Answer:
        row = _row(await self._desk.ask("look", subagent=given["job_id"]))
        return Answer(
            document={"job_id": row["subagent_id"], **row}, texts=(answers.row_text(row),)
        )

    async def _fetch(self, request: Request, given: dict[str, Any]) -> Answer:
        told = await self._desk.ask("result", subagent=given["job_id"])
        if told["result"] is None:
            text = f"{told['agentInstance']} is {told['status']}; it has no result yet"
            return Answer(document=_job(told), texts=(text,))
        return Answer(document=_job(told), texts=(answers.result_text(told["result"]),))

    async def _wait(self, request: Request, given: dict[str, Any]) -> Answer:
        seconds = given.get("timeout_seconds", WAIT_SECONDS)
        if not await self._at_work():
            seconds = 0  # what has ended can still be unseen, but nothing can come
        try:
            asked = self._desk.ask("wait", timeout_seconds=seconds)
            told = await self._blocking(request, asked)
        except (WaitTimedOut, NotFound):
            return await self._nothing_yet()
        document = _job(told)
        if told["status"] == "blocked":
            text = "\n".join(map(answers.quoted, told["result"].get("questions") or ()))
            document |= {"interrupted": True, "injected_content": text}
        return Answer(document=document, texts=(answers.result_text(told["result"]),))

    async def _cancel(self, request: Request, given: dict[str, Any]) -> Answer:
        reason = "no longer needed by its parent"
        told = await self._desk.ask("cancel", subagent=given["job_id"], reason=reason)
        document = _job(told) | {"cancelled": True}
        return Answer(document=document, texts=(answers.result_text(told["result"]),))

    async def _jobs(self, request: Request, given: dict[str, Any]) -> Answer:
        everyone = given.get("include_all", False)
        rows = [_row(row) for row in await self._desk.rows(ALL_LISTED if everyone else 0)]
        if not everyone:
            rows = [row for row in rows if row["status"] in AT_WORK]
        jobs = [{"job_id": row["subagent_id"], "tool": tools.SPAWN, **row} for row in rows]
        text = answers.rows_text(rows, "no background job" if everyone else "no job is running")
        return Answer(document={"jobs": jobs}, texts=(text,))

    async def _at_work(self) -> list[dict[str, Any]]:
        rows = [_row(row) for row in await self._desk.rows(0)]
        return [row for row in rows if row["status"] in ("pending", "running")]

    async def _nothing_yet(self) -> Answer:
        running = await self._at_work()
        status = "timed_out" if running else "idle"
        text = (
            f"nothing ended in time: {answers.running_text(running)}; wait again"
            if running
            else "no background job is running, and every result has been told"
        )
        document = {"job_id": None, "status": status, "result": None, "running": len(running)}
        return Answer(document=document, texts=(text,))

    async def _blocking(
        self, request: Request, work: Work, when_cut: Callable[[], Work] | None = None
    ) -> Any:
        """What comes of it in the end; meanwhile the client hears what is running.

        A client that takes the call back ends what it blocked on. One that only cuts it for its
        length leaves it at work, to be waited for.
        """
        task = asyncio.create_task(work)
        began = time.monotonic()
        beat = FIRST_BEAT_SECONDS
        try:
            while not (await asyncio.wait({task}, timeout=beat))[0]:
                beat = BEAT_SECONDS
                with suppress(RetinueError):  # what is blocked on may well succeed
                    running = answers.running_text(await self._at_work())
                    await request.report(time.monotonic() - began, running)
            return task.result()
        finally:
            if not task.done():
                cut = request.was_cut()
                self._let_go(task)
                task.cancel(LEFT if cut else None)
                if cut and when_cut is not None:
                    self._let_go(asyncio.create_task(when_cut()))

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # nobody is left to be told


def _spawn_params(request: Request, given: dict[str, Any]) -> dict[str, Any]:
    refine = given.get("refine", True)
    return {
        "tasks": [task | {"refine": refine} for task in given["tasks"]],
        "key": given.get("idempotency_key") or f"mcp-{secrets.token_hex(8)}",
        "caller": dict(request.caller) or None,
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent is shown of a subagent."""
    kept = {key: value for key, value in row.items() if key != "agentInstance"}
    session = {"task": row.get("task_id"), "attempt": row.get("attempt")}
    return kept | {"session": {key: value for key, value in session.items() if value is not None}}


def _job(told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "job_id": told["agentInstance"],
        "status": told["status"],
        "result": told["result"],
    }
