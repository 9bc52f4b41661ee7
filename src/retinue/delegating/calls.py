"""The eight tools at work: arguments in, a document and a text out."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from retinue.delegating import answers, tools
from retinue.delegating.arguments import checked
from retinue.delegating.asking import Answer, Request, shown, told_by
from retinue.delegating.blocking import Blocking
from retinue.domain.briefing import plateau_hint
from retinue.domain.errors import NotFound, Refused, RetinueError, WaitTimedOut

LISTED = 50
ALL_LISTED = 1000
KEPT = "kept_for_another"  # the steward's word for results that another call will tell
CALLED_AWAY = "called_away"  # likewise, where the parent should hear something else first
AT_WORK = ("pending", "running", "blocked")
SESSION = ("task_id", "subagent_id", "continues", "attempt")


class Errands(Protocol):
    """Verbs about one parent's subagents, carried to the steward."""

    async def look(self) -> None:
        """Where the subagents are is known; before anybody asks for one."""

    async def spawn(self, **params: Any) -> Any: ...

    async def ask(self, verb: str, **params: Any) -> Any: ...

    async def rows(self, limit: int) -> list[dict[str, Any]]: ...

    async def unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]: ...

    async def take_back(self, names: Sequence[str]) -> None: ...


class Calls:
    def __init__(self, desk: Errands, active: Callable[[], Collection[str]] = tuple) -> None:
        """`active` gives the types that the parent is shown."""
        self._desk = desk
        self._active = active
        self._blocking = Blocking(self._running, desk.take_back)
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

        What evaluations report goes with a hint where work stands on a plateau.

        Raises:
            RetinueError: why the tool cannot do it.
        """
        arguments = checked(request.tool, request.arguments)
        if request.tool != tools.SPAWN:  # which finds out by itself
            await self._desk.look()
        answer = await self._tools[request.tool](request, arguments)
        taken: list[dict[str, Any]] = []
        try:
            with suppress(RetinueError):  # then they come with a later answer
                taken = await self._desk.unseen(but=answer.begun)
        except asyncio.CancelledError:
            self.take_back(answer.told)
            raise
        document, texts = answer.document, answer.texts
        if taken:
            unseen = [answers.riding(told) for told in taken]
            document = document | {"background_results": unseen}
            texts = (*texts, answers.riding_text(unseen))
        if hint := plateau_hint("\n".join(texts), self._active()):
            document, texts = document | {"hint": hint}, (*texts, hint)
        told = (*answer.told, *(each["agentInstance"] for each in taken))
        return replace(answer, document=document, texts=texts, told=told)

    def take_back(self, told: Sequence[str]) -> None:
        """An answer that told of these ends was lost: the next one tells of them again."""
        self._blocking.take_back(told)

    async def begin(self, request: Request) -> tuple[list[str], list[str]]:
        """A spawn that does not block, though it was not for the background: the ids begun, and
        what to know of the call.

        Their results are for whoever collects them, and come with no other answer.
        """
        given = checked(request.tool, request.arguments)
        document = await self._desk.spawn(handle=True, **_spawn_params(request, given))
        names = [row["subagent_id"] for row in document["subagents"]]
        return names, document.get("warnings", [])

    async def collect(self, names: Sequence[str]) -> tuple[dict[str, Any], Answer | None]:
        """How far these are, and the answer that a blocking spawn would have given."""
        await self._desk.look()
        found = await self._desk.ask("collect", subagents=list(names))
        batch = found["batch"]
        if batch is None:
            return found, None
        return found, Answer(document=batch, texts=(answers.batch_text(batch),))

    async def stop(self, names: Sequence[str]) -> None:
        """Those of them that were at work have come to their end."""
        await self._desk.look()
        for name in names:
            with suppress(Refused):  # it had come to its end by itself
                await self._desk.ask("cancel", subagent=name, reason="its task was cancelled")

    async def close(self) -> None:
        """Nothing that was begun here is left."""
        await self._blocking.close()

    async def _spawn(self, request: Request, given: dict[str, Any]) -> Answer:
        params = _spawn_params(request, given)
        if given.get("background"):
            document = await self._desk.spawn(**params)
            begun = tuple(row["subagent_id"] for row in document["subagents"])
            return Answer(document=document, texts=(answers.spawned_text(document),), begun=begun)
        work = self._desk.spawn(wait=True, **params)
        # Cut before the steward had heard of it, it is begun after all: the key makes it once.
        document = await self._blocking.result(request, work, lambda: self._desk.spawn(**params))
        texts = (answers.batch_text(document),)
        return Answer(document=shown(document), texts=texts, told=told_by(document))

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
        result = await self._blocking.result(request, asked)
        document = shown(result) | {"continues": given["subagent_id"]}
        texts = (*answers.warnings(result), answers.result_text(result))
        return Answer(document=document, texts=texts, told=told_by(result))

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
        return _ended(told)

    async def _wait(self, request: Request, given: dict[str, Any]) -> Answer:
        try:
            told = await self._next_end(request, given.get("timeout_seconds", tools.WAIT_SECONDS))
        except (WaitTimedOut, NotFound) as error:
            if error.code == CALLED_AWAY:
                return _called_away()
            return await self._nothing_yet(kept=error.code == KEPT)
        if told["status"] != "blocked":
            return _ended(told)
        text = "\n".join(map(answers.quoted, told["result"].get("questions") or ()))
        return _ended(told, interrupted=True, injected_content=text)

    async def _cancel(self, request: Request, given: dict[str, Any]) -> Answer:
        reason = "no longer needed by its parent"
        told = await self._desk.ask("cancel", subagent=given["job_id"], reason=reason)
        return _ended(told, cancelled=True)

    async def _jobs(self, request: Request, given: dict[str, Any]) -> Answer:
        everyone = given.get("include_all", False)
        rows = [_row(row) for row in await self._desk.rows(ALL_LISTED if everyone else 0)]
        if not everyone:
            rows = [row for row in rows if row["status"] in AT_WORK]
        jobs = [{"job_id": row["subagent_id"], "tool": tools.SPAWN, **row} for row in rows]
        text = answers.rows_text(rows, "no background job" if everyone else "no job is running")
        return Answer(document={"jobs": jobs}, texts=(text,))

    async def _next_end(self, request: Request, seconds: float) -> Any:
        """Where nobody is at work, only what is kept for another call is worth the time."""
        if not await self._at_work():
            try:
                return await self._desk.ask("wait", timeout_seconds=0)  # it may be unseen
            except WaitTimedOut as error:
                if error.code != KEPT:
                    raise
        asked = self._desk.ask("wait", timeout_seconds=seconds)
        return await self._blocking.result(request, asked)

    async def _at_work(self) -> list[dict[str, Any]]:
        rows = [_row(row) for row in await self._desk.rows(0)]
        return [row for row in rows if row["status"] in ("pending", "running")]

    async def _running(self) -> str:
        return answers.running_text(await self._at_work())

    async def _nothing_yet(self, *, kept: bool) -> Answer:
        running = await self._at_work()
        status = "timed_out" if running or kept else "idle"
        if running:
            text = f"nothing ended in time: {answers.running_text(running)}; wait again"
        elif kept:
            text = f"what has ended is kept for whoever spawned it; wait again, or {tools.FETCH}"
        else:
            text = "no background job is running, and every result has been told"
        document = {"job_id": None, "status": status, "result": None, "running": len(running)}
        return Answer(document=document, texts=(text,))


def _spawn_params(request: Request, given: dict[str, Any]) -> dict[str, Any]:
    refine = given.get("refine", True)
    return {
        "tasks": [task | {"refine": refine} for task in given["tasks"]],
        "key": given.get("idempotency_key") or f"mcp-{secrets.token_hex(8)}",
        "caller": dict(request.caller) or None,
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent is shown of a subagent. By its session it is found again, and continued."""
    kept = {key: value for key, value in row.items() if key != "agentInstance"}
    return kept | {"session": {key: row[key] for key in SESSION if key in row}}


def _ended(told: Mapping[str, Any], **more: Any) -> Answer:
    texts = (answers.result_text(told["result"]),)
    return Answer(document=_job(told) | more, texts=texts, told=told_by(told))


def _job(told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "job_id": told["agentInstance"],
        "status": told["status"],
        "result": told["result"],
    }


def _called_away() -> Answer:
    text = "interrupted: there is a message for you, which follows; the subagents go on"
    document = {"job_id": None, "status": "timed_out", "result": None}
    return Answer(
        document=document | {"interrupted": True, "injected_content": text}, texts=(text,)
    )
