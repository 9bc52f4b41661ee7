"""Implementation of the eight delegation tools: arguments in, a document and a text out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from retinue.core.errors import NotFound, Refused, RetinueError, WaitTimedOut
from retinue.core.prompts import find_plateau_hint
from retinue.core.subagent import LEFT
from retinue.delegation import answer_text, tool_definitions
from retinue.delegation.plan_tool import describe_background_plan, needs_plan, to_plan
from retinue.delegation.result_view import (
    TELLS,
    AnswerBudget,
    Request,
    ToolAnswer,
    count_statuses,
    describe_integration,
    list_delivered,
    shape_row,
    shape_run_end,
    shape_status,
    shape_summary,
    to_parent_view,
)
from retinue.delegation.tool_definitions import check_arguments
from retinue.delegation.tool_schemas import ToolLimits

# Some clients, such as opencode, end a call after a minute without progress.
FIRST_BEAT_SECONDS = 1.0
BEAT_SECONDS = 5.0

Work = Coroutine[Any, Any, Any]


LISTED = 50
MOST_NAMED = 10
ALL_LISTED = 1000
# Error codes of the steward's wait verb.
KEPT = "kept_for_another"  # the finished results are reserved for another call
CALLED_AWAY = "called_away"  # the parent has a message to read first
AT_WORK = ("pending", "running", "blocked", "waiting_for_merge")
MOVING = ("pending", "running")
WAITS_FOR_MERGE = "waiting_for_merge"


class ParentSession(Protocol):
    """Verbs about one parent's subagents, sent to the steward."""

    async def look(self) -> None:
        """Find the parent's tasks; every other verb except spawn needs them."""

    async def spawn(self, **params: Any) -> Any: ...

    async def ask(self, verb: str, **params: Any) -> Any: ...

    async def list_rows(self, limit: int) -> list[dict[str, Any]]: ...

    async def listing(self, limit: int) -> dict[str, Any]: ...

    async def wait(self, timeout_seconds: float) -> dict[str, Any]: ...

    async def take_unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]: ...

    async def take_back(self, names: Sequence[str]) -> None: ...

    async def integrate(self, name: str) -> None: ...

    @property
    def newest_task(self) -> str: ...

    @property
    def has_live_run(self) -> bool: ...

    async def start_run(
        self, plan: str, names: Sequence[str], *, mark: str, apply: bool
    ) -> dict[str, Any]: ...

    def follow_run(self, task: str) -> AbstractContextManager[None]: ...

    async def take_in_run(self, task: str) -> list[dict[str, Any]]: ...

    async def take_run_ends(self) -> list[dict[str, Any]]: ...

    async def wait_run(self, task: str) -> dict[str, Any]: ...

    async def wait_in_run(self, task: str) -> dict[str, Any]: ...

    async def cancel_run(self, task: str) -> None: ...


class DelegationCalls:
    """The tools of one parent. If a client gives up a blocking call, its work can continue."""

    def __init__(
        self, session: ParentSession, limits: Callable[[], ToolLimits] = ToolLimits
    ) -> None:
        """`limits` returns the limits in force, which may change between calls."""
        self._session = session
        self._limits = limits
        self._ending: set[asyncio.Task[Any]] = set()  # work that outlives its call
        self._tools: dict[str, Callable[[Request, dict[str, Any]], Awaitable[ToolAnswer]]] = {
            tool_definitions.SPAWN: self._spawn,
            tool_definitions.LIST: self._list,
            tool_definitions.CONTINUE: self._continue,
            tool_definitions.STATUS: self._get_status,
            tool_definitions.FETCH: self._fetch,
            tool_definitions.WAIT: self._wait,
            tool_definitions.CANCEL: self._cancel,
            tool_definitions.JOBS_LIST: self._list_jobs,
        }

    async def perform(self, request: Request) -> ToolAnswer:
        """Run the tool and return its answer, with background results not yet delivered.

        A hint is added where an evaluation in the texts found no transformative change.

        Raises:
            RetinueError: the tool refused or failed.
        """
        arguments = check_arguments(request.tool, request.arguments)
        # spawn finds or creates the task itself.
        if request.tool != tool_definitions.SPAWN:
            await self._session.look()
        answer = await self._tools[request.tool](request, arguments)
        delivered = [*answer.delivered]
        merged: list[dict[str, Any]] = []
        ends: list[dict[str, Any]] = []
        # Results that cannot be fetched now come with a later answer.
        with self._return_if_lost(delivered), suppress(RetinueError):
            taken = await self._session.take_unseen(but=answer.started)
            delivered += [each["agentInstance"] for each in taken]
            merged = [await self._merge_settled(settled) for settled in taken]
            # Last, since nothing tells an end again whose answer was lost.
            ends = await self._session.take_run_ends()
        document = answer.document
        texts = answer.texts
        if merged:
            # After the answer itself, with a budget of their own: they come unasked.
            unseen = self._make_budget().shape_results(settled["result"] for settled in merged)
            document = document | {"background_results": unseen}
            texts = (*texts, answer_text.format_background_results(unseen))
        if ends:
            plans = [shape_run_end(end) for end in ends]
            document = document | {"plans": plans}
            texts = (*texts, *map(answer_text.format_run_end, plans))
        if hint := find_plateau_hint("\n".join(texts), self._limits().type_names):
            document = document | {"hint": hint}
            texts = (*texts, hint)
        return replace(answer, document=document, texts=texts, delivered=tuple(delivered))

    def take_back(self, delivered: Sequence[str]) -> None:
        """Deliver these results again: the answer that carried them was lost."""
        if delivered:
            self._keep_until_done(asyncio.create_task(self._session.take_back(delivered)))

    @contextmanager
    def _return_if_lost(self, delivered: Sequence[str]) -> Iterator[None]:
        """Deliver these results again if the block is cancelled or fails: no answer has them.

        Args:
            delivered: read at the end of the block, which may add to it.
        """
        try:
            yield
        except (asyncio.CancelledError, RetinueError):
            self.take_back(delivered)
            raise

    async def begin(self, request: Request) -> tuple[list[str], list[str]]:
        """Spawn without blocking; return the subagent ids and the warnings.

        The results are reserved for `collect` and come with no other answer.
        """
        given = check_arguments(request.tool, request.arguments)
        document = await self._session.spawn(handle=True, **_spawn_params(request, given))
        names = [row["subagent_id"] for row in document["subagents"]]
        return names, document.get("warnings", [])

    async def collect(self, names: Sequence[str]) -> tuple[dict[str, Any], ToolAnswer | None]:
        """Return the progress of these subagents and, once all ended, the answer of a blocking
        spawn.
        """
        await self._session.look()
        found = await self._session.ask("collect", subagents=list(names))
        batch = found["batch"]
        if batch is None:
            return found, None
        view = self._shape_batch(await self._merge_batch(batch))
        return found, ToolAnswer(document=view, texts=(answer_text.format_batch(view),))

    async def stop(self, names: Sequence[str]) -> None:
        """Cancel those of these subagents that are still running."""
        await self._session.look()
        for name in names:
            # A finished subagent refuses to be cancelled.
            with suppress(Refused):
                await self._session.ask("cancel", subagent=name, reason="its task was cancelled")

    async def close(self) -> None:
        """Wait until the work that outlives its call has ended."""
        if self._ending:
            await asyncio.wait(self._ending)

    async def _wait_result(
        self,
        request: Request,
        work: Work,
        *,
        when_cut: Callable[[], Work] | None = None,
        when_cancelled: Callable[[], Work] | None = None,
    ) -> Any:
        """Return the result of `work`, reporting progress to the client meanwhile.

        A cancelled call stops its work; `when_cancelled` then runs in the background. A call that
        only timed out in the client leaves the work running; `when_cut` then does.
        """
        task = asyncio.create_task(work)
        began = time.monotonic()
        beat = FIRST_BEAT_SECONDS
        ended = False
        try:
            while not (await asyncio.wait({task}, timeout=beat))[0]:
                beat = BEAT_SECONDS
                # A failed progress report says nothing about the work itself.
                with suppress(RetinueError):
                    await request.report(time.monotonic() - began, await self._list_running())
            ended = True
            return task.result()
        finally:
            if not ended:
                # Asked once: the record of the cancellation is removed.
                cut = request.was_cut()
                then = when_cut if cut else when_cancelled
                if not self._leave(task, cut) and cut:
                    then = None
                if then is not None:
                    self._keep_until_done(asyncio.create_task(then()))

    def _leave(self, task: asyncio.Task[Any], cut: bool) -> bool:
        """Stop waiting for the work of a call that has ended; return whether it still runs."""
        # The work finished at the moment the call ended, so its answer is not sent.
        if task.done():
            if not task.cancelled() and task.exception() is None:
                self.take_back(list_delivered(task.result()))
            return False
        self._keep_until_done(task)
        # LEFT tells the steward client to stop waiting without cancelling the subagents.
        task.cancel(LEFT if cut else None)
        return True

    def _keep_until_done(self, task: asyncio.Task[Any]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._discard)

    def _discard(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        # Retrieve the exception, or asyncio logs it as never retrieved.
        if not task.cancelled():
            task.exception()

    def _make_budget(self) -> AnswerBudget:
        limits = self._limits()
        fetch = tool_definitions.use_names(tool_definitions.FETCH, plain=limits.plain_names)
        return AnswerBudget(limits.answer_characters, fetch)

    def _shape_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        results = self._make_budget().shape_results(batch["results"])
        summary = shape_summary(batch["summary"])
        return to_parent_view(batch) | {"results": results, "summary": summary}

    async def _spawn(self, request: Request, given: dict[str, Any]) -> ToolAnswer:
        if needs_plan(given):
            return await self._run_plan(request, given)
        params = _spawn_params(request, given)
        if given.get("background"):
            document = await self._session.spawn(**params)
            started = tuple(row["subagent_id"] for row in document["subagents"])
            text = answer_text.format_spawned(document)
            task = self._session.newest_task
            return ToolAnswer(document=document, texts=(text,), started=started, started_in=task)
        work = self._session.spawn(wait=True, **params)
        # If the client cuts the call before the steward received it, spawn in the background:
        # the idempotency key prevents a second set of subagents.
        batch = await self._wait_result(
            request, work, when_cut=lambda: self._session.spawn(**params)
        )
        if any(task.get("integration") == "merge" for task in given["tasks"]):
            with self._return_if_lost(list_delivered(batch)):
                batch = await self._merge_batch(batch)
        view = self._shape_batch(batch)
        texts = (answer_text.format_batch(view),)
        return ToolAnswer(document=view, texts=texts, delivered=list_delivered(batch))

    async def _merge_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Merge the output that waits for it, and return the batch with the results by now."""
        # In the order of the tasks, when all have ended: a conflict is that of the later one.
        results = [await self._merge_or_warn(each) for each in batch["results"]]
        good = all(each["success"] for each in results)
        return {**batch, "results": results, "success": good}

    async def _merge_waiting(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Merge the output of a subagent if it waits for that; return its result by now."""
        name = result["subagent_id"]
        row = await self._session.ask("look", subagent=name)
        if row["status"] == WAITS_FOR_MERGE and row.get("integrated_by") == "parent":
            await self._session.integrate(name)
            result = (await self._session.ask("result", subagent=name))["result"]
        return describe_integration(result)

    async def _merge_or_warn(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Merge as `_merge_waiting` does; if that fails, return the result with a warning."""
        try:
            return await self._merge_waiting(result)
        except RetinueError as error:
            return _add_merge_warning(result, error)

    async def _merge_settled(self, settled: Mapping[str, Any]) -> dict[str, Any]:
        """Return the delivered result, after merging output that waits for it."""
        if settled["result"] is None or settled["status"] not in (WAITS_FOR_MERGE, "completed"):
            return dict(settled)
        try:
            result = await self._merge_waiting(settled["result"])
        except RetinueError as error:
            return {**settled, "result": _add_merge_warning(settled["result"], error)}
        ended = "completed" if result["success"] else "failed"
        return {**settled, "result": result, "status": ended}

    async def _run_plan(self, request: Request, given: dict[str, Any]) -> ToolAnswer:
        """Run dependent tasks as a plan; return when it ends, or when one of them asks."""
        mark = secrets.token_hex(3)
        # All get ids now: the default ones would not be unique among the parent's tasks.
        tasks = [
            {"subagent_id": f"plan-{mark}-{number}"} | task
            for number, task in enumerate(given["tasks"], 1)
        ]
        names = [task["subagent_id"] for task in tasks]
        plan = to_plan(given | {"tasks": tasks})
        apply = given.get("apply", False)
        shown = await self._session.start_run(plan, names, mark=mark, apply=apply)
        task = shown["task_id"]
        if given.get("background"):
            document = describe_background_plan(shown, names)
            text = answer_text.format_spawned(document)
            started = tuple(names)
            return ToolAnswer(document=document, texts=(text,), started=started, started_in=task)
        end = await self._wait_result(
            request,
            self._follow_run(task),
            when_cancelled=lambda: self._session.cancel_run(task),
        )
        asks = end["outcome"] == "blocked"
        results = [describe_integration(each) for each in end["results"]]
        batch = {
            "success": end["outcome"] == "succeeded",
            "results": results,
            "summary": count_statuses(results, len(given["tasks"])),
        }
        view = self._shape_batch(batch)
        text = answer_text.format_batch(view)
        if asks:
            view["note"] = "The other tasks go on; their results come with your next calls."
            text = f"{text}\n\n{view['note']}"
        else:
            ended = shape_run_end(end)
            del ended["plan"], ended["success"]
            view |= ended
            text = f"{answer_text.format_run_end(ended)}\n{text}"
        return ToolAnswer(document=view, texts=(text,), delivered=list_delivered(end))

    async def _follow_run(self, task: str) -> dict[str, Any]:
        """Return the end of a run; before that, the results so far if a subagent asks.

        Its key `tells` lists the subagents whose results were delivered here.
        """
        delivered: list[str] = []
        results: list[dict[str, Any]] = []
        ended = asyncio.create_task(self._session.wait_run(task))
        unread: asyncio.Task[dict[str, Any]] | None = None
        try:
            with self._session.follow_run(task), self._return_if_lost(delivered):
                while not ended.done():
                    waiting = unread = asyncio.create_task(self._session.wait_in_run(task))
                    await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
                    unread = None
                    if not waiting.done() or waiting.exception() is not None:
                        # Nothing more settles, so the end is next; or it was first.
                        self._stop_waiting(waiting)
                        break
                    settled = waiting.result()
                    delivered.append(settled["agentInstance"])
                    results.append(settled["result"])
                    if settled["status"] == "blocked":
                        return {"outcome": "blocked", "results": results, TELLS: delivered}
                end = await ended
                # The end has all results: later answers must not deliver them again.
                with suppress(RetinueError):
                    taken = await self._session.take_in_run(task)
                    delivered += [each["agentInstance"] for each in taken]
                return end | {TELLS: delivered}
        finally:
            self._stop_waiting(ended)
            # If left alone, it would receive a result that no answer has.
            if unread is not None and not self._stop_waiting(unread):
                self.take_back([unread.result()["agentInstance"]])

    def _stop_waiting(self, task: asyncio.Task[Any]) -> bool:
        """Cancel a request; return False if its answer had come before."""
        if task.done() and not task.cancelled() and task.exception() is None:
            return False
        task.cancel()
        self._keep_until_done(task)
        return True

    async def _list(self, request: Request, given: dict[str, Any]) -> ToolAnswer:
        found = await self._session.listing(LISTED)
        rows = [shape_row(row) for row in found["subagents"]]
        text = answer_text.format_rows(rows, "no subagents yet")
        further = f"{self._name(tool_definitions.JOBS_LIST)} with include_all lists more"
        cut, texts = _left_out(found, further)
        limits = self._limits()
        if limits.problem:
            problem = f"{limits.problem}; {limits.remedy}"
            cut |= {"problem": problem}
            texts = (*texts, problem)
        return ToolAnswer(document={"subagents": rows} | cut, texts=(text, *texts))

    async def _continue(self, request: Request, given: dict[str, Any]) -> ToolAnswer:
        asked = self._session.ask(
            "continue",
            subagent=given["subagent_id"],
            message=given["message"],
            timeout_seconds=given.get("timeout_seconds"),
        )
        result = await self._wait_result(request, asked)
        with self._return_if_lost(list_delivered(result)):
            merged = await self._merge_or_warn(to_parent_view(result))
        view = self._make_budget().shape_result(merged)
        texts = (*answer_text.format_warnings(result), answer_text.format_result(view))
        document = view | {"continues": given["subagent_id"]}
        return ToolAnswer(document=document, texts=texts, delivered=list_delivered(result))

    async def _get_status(self, request: Request, given: dict[str, Any]) -> ToolAnswer:
        row = shape_status(await self._session.ask("look", subagent=given["job_id"]))
        return ToolAnswer(
            document={"job_id": row["subagent_id"], **row}, texts=(answer_text.format_status(row),)
        )

    async def _fetch(self, request: Request, given: dict[str, Any]) -> ToolAnswer:
        found = await self._session.ask("result", subagent=given["job_id"])
        if found["result"] is None:
            text = f"{found['agentInstance']} is {found['status']}; it has no result yet"
            document = {"job_id": found["agentInstance"], "status": found["status"], "result": None}
            return ToolAnswer(document=document, texts=(text,))
        with self._return_if_lost(list_delivered(found)):
            merged = await self._merge_settled(found)
        return self._answer_end(merged, offset=given.get("offset", 0))

    async def _wait(self, request: Request, given: dict[str, Any]) -> ToolAnswer:
        try:
            settled = await self._wait_next_end(
                request, given.get("timeout_seconds", tool_definitions.WAIT_SECONDS)
            )
        except (WaitTimedOut, NotFound) as error:
            if error.code == CALLED_AWAY:
                return _answer_called_away()
            return await self._answer_nothing_yet(kept=error.code == KEPT)
        if settled["status"] != "blocked":
            with self._return_if_lost(list_delivered(settled)):
                merged = await self._merge_settled(settled)
            return self._answer_end(merged)
        text = "\n".join(map(answer_text.quote_lines, settled["result"].get("questions") or ()))
        return self._answer_end(settled, interrupted=True, injected_content=text)

    async def _cancel(self, request: Request, given: dict[str, Any]) -> ToolAnswer:
        reason = "no longer needed by its parent"
        settled = await self._session.ask("cancel", subagent=given["job_id"], reason=reason)
        return self._answer_end(settled, cancelled=True)

    async def _list_jobs(self, request: Request, given: dict[str, Any]) -> ToolAnswer:
        everyone = given.get("include_all", False)
        if everyone:
            found = await self._session.listing(ALL_LISTED)
            rows = [shape_row(row) for row in found["subagents"]]
            cut, texts = _left_out(found, "each is still found by its id")
        else:
            rows = [shape_row(row) for row in await self._session.list_rows(0)]
            rows = [row for row in rows if row["status"] in AT_WORK]
            cut = {}
            texts = ()
        jobs = [
            {"job_id": row["subagent_id"], "tool": tool_definitions.SPAWN, **row} for row in rows
        ]
        text = answer_text.format_rows(
            rows, "no background job" if everyone else "no job is running"
        )
        return ToolAnswer(document={"jobs": jobs} | cut, texts=(text, *texts))

    async def _wait_next_end(self, request: Request, seconds: float) -> Any:
        """Wait for the next result; return at once if none can come."""
        if not await self._list_active():
            # No subagent is running, but a finished one may not have been delivered yet.
            try:
                return await self._session.wait(0)
            except WaitTimedOut as error:
                # A reserved result becomes available if the call that reserved it is lost, and
                # a plan may be between two of its steps.
                if error.code != KEPT and not self._session.has_live_run:
                    raise
        asked = self._session.wait(seconds)
        return await self._wait_result(request, asked)

    async def _list_active(self) -> list[dict[str, Any]]:
        rows = await self._session.list_rows(0)
        # The run joins the output of a planned step, so the step ends without the parent.
        return [row for row in rows if row["status"] in MOVING or row.get("integrated_by") == "run"]

    async def _list_running(self) -> str:
        # The blocking call may have created the task since the last look.
        await self._session.look()
        return answer_text.format_running(await self._list_active())

    async def _answer_nothing_yet(self, *, kept: bool) -> ToolAnswer:
        running = await self._list_active()
        status = "timed_out" if running or kept else "idle"
        if running:
            text = f"nothing ended in time: {answer_text.format_running(running)}; wait again"
        elif kept:
            text = (
                "finished results are reserved for the call that spawned them; wait again, or use "
                f"{self._name(tool_definitions.FETCH)}"
            )
        else:
            text = "no background job is running, and all results were delivered"
            text += await self._describe_blocked()
        document = {"job_id": None, "status": status, "result": None, "running": len(running)}
        return ToolAnswer(document=document, texts=(text,))

    async def _describe_blocked(self) -> str:
        rows = await self._session.list_rows(0)
        names = [
            answer_text.quote_on_one_line(row["subagent_id"])
            for row in rows
            if row["status"] == "blocked"
        ]
        many = ", ".join(names[:MOST_NAMED])
        return f"; blocked until you answer with continue_subagent: {many}" if names else ""

    def _answer_end(self, settled: Mapping[str, Any], offset: int = 0, **more: Any) -> ToolAnswer:
        """Return the answer that delivers the result of one subagent."""
        view = self._make_budget().shape_result(settled["result"], offset)
        document = {"job_id": settled["agentInstance"], "status": settled["status"], "result": view}
        texts = (answer_text.format_result(view),)
        return ToolAnswer(document=document | more, texts=texts, delivered=list_delivered(settled))

    def _name(self, tool: str) -> str:
        return tool_definitions.use_names(tool, plain=self._limits().plain_names)


def _spawn_params(request: Request, given: dict[str, Any]) -> dict[str, Any]:
    refine = given.get("refine", True)
    return {
        "tasks": [task | {"refine": refine} for task in given["tasks"]],
        "key": given.get("idempotency_key") or f"mcp-{secrets.token_hex(8)}",
        "caller": dict(request.caller) or None,
    }


def _add_merge_warning(result: Mapping[str, Any], error: RetinueError) -> dict[str, Any]:
    """Return the result of output that could not be merged.

    It was taken, so it must be delivered; the merge can be tried again.
    """
    return {**result, "warning": f"its output was not merged yet: {error.message}"}


def _left_out(found: Mapping[str, Any], further: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields and the text that report a shortened list; empty if it is complete."""
    total = found["total"]
    shown = found["shown"]
    if total <= shown:
        return {}, ()
    text = f"{shown} of {total} subagents are listed; older ones that ended are left out: {further}"
    return {"total": total, "shown": shown}, (text,)


def _answer_called_away() -> ToolAnswer:
    text = "interrupted: there is a message for you, which follows; the subagents keep running"
    document = {"job_id": None, "status": "timed_out", "result": None}
    return ToolAnswer(
        document=document | {"interrupted": True, "injected_content": text}, texts=(text,)
    )
