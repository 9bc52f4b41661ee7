"""Tasks of one parent: its newest open task takes new subagents, in every server of the root.

Closed tasks of the parent are still searched for their subagents and undelivered results. Tasks
that depend on each other run as a plan, in a task of its own whose id says whose plan it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from retinue.core.errors import (
    NotFound,
    NothingToWaitFor,
    Refused,
    RetinueError,
    WaitTimedOut,
)

PARENT = "mcp"  # the consumer name (each result is delivered once to it) and the first task's id
TITLE = "Delegated by agents"
GONE = ("unknown_task", "unknown_root")
PLAN = "-plan-"  # in the id of a plan's task, after the name of the parent
MOST_RUNS = 5  # newest plans, whose results are looked for

Call = Callable[..., Awaitable[Any]]  # sends a verb and its parameters to the steward


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Options the server was started with."""

    folder: Path  # base of relative context paths
    task: str = ""  # use only the task of this id
    config_text: str = ""
    config_name: str = ""
    plain_names: bool = False  # list the lifecycle tools by their short names

    @property
    def names(self) -> Iterator[str]:
        """Ids for the parent's tasks, oldest first; each is used once the one before is closed."""
        if self.task:
            return iter([self.task])
        return (PARENT if number == 1 else f"{PARENT}-{number}" for number in count(1))


class TaskSession:
    """Verbs about one parent's subagents. The first spawn creates the task."""

    def __init__(self, call: Call, choice: Choice) -> None:
        self._steward = call
        self._choice = choice
        self._tasks: list[str] = []  # known tasks of this parent, oldest first
        self._all_delivered: set[str] = set()  # closed tasks whose results were all delivered
        self._runs: dict[str, str] = {}  # tasks of the newest plans and their states, oldest first
        self._unreported: set[str] = (
            set()
        )  # running plans, and ended ones whose end was not reported
        self._followed: set[str] = set()  # plans whose results a blocking call delivers

    async def spawn(self, **params: Any) -> Any:
        """Spawn in the parent's open task.

        Without one, the steward creates the next task together with its first subagents, or
        refuses and creates nothing.
        """
        folder = str(self._choice.folder)
        # First try the last known task; if it is closed or gone, look again and try once more.
        for fresh in (False, True):
            task, create = await self._open_or_next(fresh)
            try:
                answer = await self._call("spawn", task, cwd=folder, create=create, **params)
            except Refused as error:
                if error.code != "task_closed" or fresh:
                    raise
            except NotFound as error:
                if error.code not in GONE or fresh:
                    raise
                # The root was removed: forget its tasks.
                self._tasks.clear()
                self._runs.clear()
                self._unreported.clear()
                self._all_delivered.clear()
            else:
                self._enter(task)
                return answer
        raise AssertionError("the second try returns or raises")

    async def ask(self, verb: str, **params: Any) -> Any:
        """Send a verb about an existing subagent to the task that holds it, newest first.

        Raises:
            NotFound: no task of this parent has the subagent.
        """
        tasks = self._list_tasks()
        missing = NotFound(
            f"no subagent {str(params.get('subagent', ''))[:80]!a}: none has been spawned yet",
            code="unknown_subagent",
        )
        for task in tasks:
            try:
                return await self._call(verb, task, **params)
            except NotFound as error:
                if error.code != "unknown_subagent":
                    raise
                # If no task has it, report the error of the newest task.
                missing = error if task in self._tasks[-1:] else missing
        raise missing

    def _list_tasks(self) -> list[str]:
        """Return the tasks to search for a subagent: those of running plans first, then by age."""
        ended = [name for name in self._runs if name not in self._live_runs]
        return [*self._live_runs, *reversed([*ended, *self._tasks])]

    @property
    def newest_task(self) -> str:
        """The task of the newest subagents that are not part of a plan; empty without one."""
        return self._tasks[-1] if self._tasks else ""

    @property
    def _live_runs(self) -> list[str]:
        return [name for name, state in self._runs.items() if state == "open"]

    @property
    def has_live_run(self) -> bool:
        """Whether a plan is under way that no blocking call follows."""
        return any(name not in self._followed for name in self._live_runs)

    async def wait(self, timeout_seconds: float) -> dict[str, Any]:
        """Return the next undelivered result of any task.

        Raises:
            NothingToWaitFor: no subagent is running, and all results were delivered.
            WaitTimedOut: none settled in time, or all are reserved for another call.
        """
        # Undelivered results of closed tasks come first: no wait in the open task finds them.
        if (settled := await self._find_undelivered()) is not None:
            return settled
        live = [name for name in self._live_runs if name not in self._followed]
        waits = {
            asyncio.create_task(self._call("wait", task, timeout_seconds=timeout_seconds))
            for task in (*live, *self._tasks[-1:])
        }
        error: Exception = NothingToWaitFor("no subagent has been spawned yet")
        try:
            while waits:
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                found: list[dict[str, Any]] = []
                failed: RetinueError | None = None
                for each in done:
                    try:
                        found.append(each.result())
                    except NothingToWaitFor as nothing:
                        # A time-out says more: something is still running.
                        error = error if isinstance(error, WaitTimedOut) else nothing
                    except WaitTimedOut as late:
                        error = late
                    except RetinueError as other:
                        failed = other
                # One result per call: others that came at the same moment are delivered later.
                await self.take_back([each["agentInstance"] for each in found[1:]])
                if found:
                    # Also if another wait failed: the next call meets that error again.
                    return found[0]
                if failed is not None:
                    raise failed
        finally:
            await self._abandon(waits)
        raise error

    async def _abandon(self, waits: set[asyncio.Task[Any]]) -> None:
        """End the other waits; what they deliver at this moment is delivered again."""
        for each in waits:
            each.cancel()
        if waits:
            await asyncio.wait(waits)
        ended = [each for each in waits if not each.cancelled() and each.exception() is None]
        await self.take_back([each.result()["agentInstance"] for each in ended])

    async def integrate(self, name: str) -> None:
        """Merge the output of a subagent that waits for it; its result has the outcome."""
        for task in self._list_tasks():
            with suppress(NotFound):
                # Exact, where `subagent.integrate` would also take the beginning of an id.
                await self._call("look", task, subagent=name)
                await self._steward("subagent.integrate", task=task, subagent=name)
                return

    async def start_run(
        self, plan: str, names: Sequence[str], *, mark: str, apply: bool
    ) -> dict[str, Any]:
        """Start a plan in a task of its own, whose subagents are then found like the others.

        Args:
            names: ids that the plan's subagents will have.
            mark: ends the id of the new task.

        Returns:
            The new task, as `task.show` describes it.

        Raises:
            Refused: one of the names is taken.
        """
        await self.look()
        for name in names:
            await self._require_free(name)
        started: dict[str, Any] = await self._steward(
            "run.start",
            plan_text=plan,
            plan_name="tasks",
            task_id=f"{self._plan_prefix}{mark}",
            cwd=str(self._choice.folder),
            apply=apply,
            config_text=self._choice.config_text or None,
            config_name=self._choice.config_name or None,
            by="parent",
        )
        name = str(started["task_id"])
        self._runs[name] = "open"
        self._unreported.add(name)
        shown: dict[str, Any] = await self._show(name)
        return shown

    async def _require_free(self, name: str) -> None:
        """Raises:
        Refused: a subagent of this parent has the id, so answers to it would be ambiguous.
        """
        try:
            await self.ask("look", subagent=name)
        except NotFound:
            return
        raise Refused(
            f"there is a subagent {name[:80]!a} already",
            code="duplicate_id",
            hint="its result comes with your next call; for new work choose another subagent_id",
        )

    @property
    def _plan_prefix(self) -> str:
        return f"{self._choice.task or PARENT}{PLAN}"

    @contextmanager
    def follow_run(self, task: str) -> Iterator[None]:
        """Within the block, the results of this plan come with no other answer."""
        self._followed.add(task)
        try:
            yield
        finally:
            self._followed.discard(task)

    async def wait_run(self, task: str) -> dict[str, Any]:
        """Wait for the end of a plan; it then counts as reported."""
        end: dict[str, Any] = await self._steward("run.wait", task=task)
        self._runs[task] = "closed"
        self._unreported.discard(task)
        return end

    async def take_run_ends(self) -> list[dict[str, Any]]:
        """Return how plans ended that were under way before, each once."""
        over = self._unreported - set(self._live_runs) - self._followed
        ends: list[dict[str, Any]] = []
        for name in sorted(over & self._runs.keys()):
            try:
                ends.append(await self.wait_run(name))
            except RetinueError:
                # Those before it count as reported by now, and it comes with a later call.
                if not ends:
                    raise
                break
        return ends

    async def take_in_run(self, task: str) -> list[dict[str, Any]]:
        """Return the undelivered results of a plan, and mark them delivered."""
        taken: list[dict[str, Any]] = await self._call("take", task)
        return taken

    async def wait_in_run(self, task: str) -> dict[str, Any]:
        """Wait for the next end or question of a run's subagents."""
        settled: dict[str, Any] = await self._call("wait", task)
        return settled

    async def cancel_run(self, task: str) -> None:
        await self._steward("task.cancel", task=task, by="parent", reason="its call was cancelled")

    async def list_rows(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest `limit` subagents of the newest task, and every open one."""
        rows: list[dict[str, Any]] = []
        for task in (*self._runs, *self._tasks[-1:]):
            rows += await self._steward("subagent.list", task=task, limit=limit)
        return rows

    async def listing(self, limit: int) -> dict[str, Any]:
        """Return the same rows with the number of all subagents and of those shown."""
        whole: dict[str, Any] = {"subagents": [], "total": 0, "shown": 0}
        for task in (*self._runs, *self._tasks[-1:]):
            found = await self._steward("subagent.list", task=task, limit=limit, page=True)
            whole = {key: whole[key] + found[key] for key in whole}
        return whole

    async def take_unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return undelivered results except those of `but`, and mark them delivered."""
        taken: list[dict[str, Any]] = []
        for task in self._owing:
            # One task per call: if a later request failed, results taken before would be lost.
            taken = await self.take_in_run(task)
            if taken:
                return taken
        if (settled := await self._find_undelivered()) is not None:
            return [settled]
        if self._tasks:
            taken = await self._call("take", self._tasks[-1], but=list(but))
        return taken

    async def take_back(self, names: Sequence[str]) -> None:
        """Mark these results undelivered: the answer that carried them was lost."""
        for name in names:
            for task in self._list_tasks():
                with suppress(NotFound):
                    await self._call("take_back", task, subagents=[name])
                    self._all_delivered.discard(task)
                    break

    async def find_open_task(self) -> dict[str, Any] | None:
        """Return the task that would take the next subagent, or None if a spawn would create it.

        Raises:
            RetinueError: the steward could not answer.
        """
        await self.look()
        if not self._tasks:
            return None
        shown: dict[str, Any] = await self._show(self._tasks[-1])
        return shown if shown["state"] == "open" else None

    @property
    def _owing(self) -> list[str]:
        """Tasks other than the newest that may hold undelivered results."""
        left = self._all_delivered | self._followed
        return [each for each in (*self._runs, *self._tasks[:-1]) if each not in left]

    async def _find_undelivered(self) -> dict[str, Any] | None:
        """Return an undelivered result of a closed task, without waiting; None if there is none."""
        for task in self._owing:
            try:
                settled: dict[str, Any] = await self._call("wait", task, timeout_seconds=0)
                return settled
            except NothingToWaitFor:
                # A plan that asks has nothing to wait for, and later has again.
                if task not in self._live_runs:
                    self._all_delivered.add(task)
            except WaitTimedOut:
                # Its results are reserved for another call, and may be returned later.
                continue
        return None

    async def _call(self, verb: str, task: str, **params: Any) -> Any:
        if verb != "look":
            params["consumer"] = PARENT
        return await self._steward(f"parent.{verb}", task=task, by="parent", **params)

    async def _show(self, task: str) -> Any:
        return await self._steward("task.show", task=task, limit=0)

    async def look(self) -> None:
        """Find the parent's tasks; another server of the root may have created the newest."""
        for name in islice(self._choice.names, len(self._tasks), None):
            try:
                shown = await self._show(name)
            except NotFound:
                break
            # The beginning of another task's id stands for that task: of a plan, for example.
            if shown["task_id"] != name:
                break
            self._enter(name)
        # Plans of other servers, and of this one before it was started again.
        with suppress(NotFound):
            rows = await self._steward("task.list", text=self._plan_prefix, limit=MOST_RUNS)
            mine = [row for row in rows if row["task_id"].startswith(self._plan_prefix)]
            self._runs = {row["task_id"]: row["state"] for row in reversed(mine)}
            self._unreported |= set(self._live_runs)

    def _enter(self, name: str) -> None:
        # A concurrent call may have added it.
        if name not in self._tasks:
            self._tasks.append(name)

    async def _open_or_next(self, fresh: bool) -> tuple[str, dict[str, str] | None]:
        """Return the open task, or the next one with the parameters to create it.

        Args:
            fresh: ask the steward again, because the last known task is closed.
        """
        if self._tasks and not fresh:
            return self._tasks[-1], None
        if (standing := await self.find_open_task()) is not None:
            return str(standing["task_id"]), None
        if self._choice.task and self._tasks:
            raise Refused(
                f"task {self._choice.task} is closed",
                code="task_closed",
                hint="it takes no more work: the person who started this server can restart it "
                "with another --task",
            )
        name = next(islice(self._choice.names, len(self._tasks), None))
        create = {"title": TITLE}
        if self._choice.config_text:
            create |= {
                "config_text": self._choice.config_text,
                "config_name": self._choice.config_name or "configuration",
            }
        return name, create


class ChildSession:
    """Verbs about the subagents of the child that this process runs in.

    The steward knows the child's task by its connection.
    """

    newest_task = ""  # not known here

    def __init__(self, call: Call) -> None:
        self._steward = call

    async def look(self) -> None:
        """Do nothing: there is no task to find."""

    async def find_open_task(self) -> None:
        """Return None: a child may not see its task."""

    async def spawn(self, **params: Any) -> Any:
        return await self._steward("parent.spawn", **params)

    async def ask(self, verb: str, **params: Any) -> Any:
        return await self._steward(f"parent.{verb}", **params)

    async def integrate(self, name: str) -> None:
        """Do nothing: a child's subagents cannot ask to be merged."""

    async def start_run(
        self, plan: str, names: Sequence[str], *, mark: str, apply: bool
    ) -> dict[str, Any]:
        raise Refused(
            "a subagent cannot have the output of its subagents merged",
            code="not_allowed",
            hint="leave depends_on and apply out, and copy their files yourself",
        )

    @property
    def has_live_run(self) -> bool:
        return False

    async def wait(self, timeout_seconds: float) -> dict[str, Any]:
        settled: dict[str, Any] = await self.ask("wait", timeout_seconds=timeout_seconds)
        return settled

    def follow_run(self, task: str) -> AbstractContextManager[None]:
        raise AssertionError("a child starts no run")

    async def take_run_ends(self) -> list[dict[str, Any]]:
        return []

    async def take_in_run(self, task: str) -> list[dict[str, Any]]:
        raise AssertionError("a child starts no run")

    async def wait_run(self, task: str) -> dict[str, Any]:
        raise AssertionError("a child starts no run")

    async def wait_in_run(self, task: str) -> dict[str, Any]:
        raise AssertionError("a child starts no run")

    async def cancel_run(self, task: str) -> None:
        raise AssertionError("a child starts no run")

    async def list_rows(self, limit: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self._steward("subagent.list", limit=max(1, limit))
        return rows

    async def listing(self, limit: int) -> dict[str, Any]:
        found: dict[str, Any] = await self._steward("subagent.list", limit=limit, page=True)
        return found

    async def take_unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = await self._steward("parent.take", but=list(but))
        return taken

    async def take_back(self, names: Sequence[str]) -> None:
        await self._steward("parent.take_back", subagents=list(names))
