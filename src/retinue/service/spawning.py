"""Spawning: a whole call is bound into contracts and admitted, or nothing exists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from retinue.domain.boundary import ISOLATED, Boundary, resolve_mode
from retinue.domain.brief import Brief
from retinue.domain.contract import (
    Contract,
    Execution,
    Outputs,
    Parent,
    Permissions,
    Step,
    require_sound,
)
from retinue.domain.errors import BadInput, NotFound, Refused
from retinue.domain.event import shorten
from retinue.domain.ids import SubagentId, TaskId, require_id
from retinue.domain.lifecycle import State
from retinue.domain.policy import TaskConfig, require_duration
from retinue.domain.result import Result
from retinue.domain.subagent import Draft, Subagent, Task
from retinue.ports import Admission, Records, Runtime, Tasks
from retinue.supervisor.journal import Journal
from retinue.supervisor.supervisor import Supervisor

INTEGRATIONS = ("none",)
MAX_QUEUED_PER_CALL = 1000
GONE = "its caller is gone"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call to spawn, with where it comes from."""

    briefs: Sequence[Brief]
    base: Path  # what relative context paths are relative to
    by: str = "user"
    key: str = ""
    sha256: str = ""
    queue: bool = False


class Spawning:
    def __init__(
        self,
        journal: Journal,
        records: Records,
        tasks: Tasks,
        supervisor: Supervisor,
        runtime: Runtime,
    ) -> None:
        self._runtime = runtime
        self._journal = journal
        self._records = records
        self._tasks = tasks
        self._supervisor = supervisor

    async def spawn(self, task: TaskId, request: Request) -> list[Subagent]:
        """Every subagent of the call exists and executes, or waits its turn.

        Raises:
            BadInput, LimitExceeded: nothing exists.
        """
        subagents = await self._admit(task, request)
        await asyncio.gather(*(self._supervisor.up(subagent) for subagent in subagents))
        return [self._records.subagent(subagent.task, subagent.id) for subagent in subagents]

    async def spawn_and_wait(self, task: TaskId, request: Request) -> list[Result]:
        """The results of a whole call. If the caller is gone before, so are its children."""
        subagents = await self._admit(task, request)
        try:
            return [await self._result(subagent) for subagent in subagents]
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(subagents))
            raise

    async def _admit(self, task: TaskId, request: Request) -> list[Subagent]:
        """The whole call is on record, and on its way."""
        known = self._records.task(task)
        config = self._tasks.config(known.id)
        boundary = await self._boundary(config)
        admission = self._admission(known, config, request, boundary)
        subagents = self._journal.admit(known.id, admission)
        self._supervisor.pump(known.id)
        return subagents

    async def continue_(
        self, task: TaskId, subagent: str, message: str, *, by: str, timeout: float | None = None
    ) -> Subagent:
        """A blocked subagent is in its next attempt; a closed one has a successor.

        The successor is a new subagent with the same work, in the same workspace.

        Raises:
            Refused: it still works.
        """
        if not message.strip():
            raise BadInput("an empty message continues nothing", code="invalid_request")
        known = self._records.subagent(task, subagent)
        if known.standing.blocked or known.standing.state == "closed":
            self._require_workspace(known)
        if known.standing.blocked:
            self._supervisor.answer(known, message, by=by)
            await self._supervisor.up(known)
            return self._records.subagent(task, known.id)
        if known.standing.state != "closed":
            raise Refused(
                f"{known.id} is {known.standing.status}",
                code="not_settled",
                hint="wait for it, close it, or send it a message",
            )
        return await self._succeed(known, message, by, timeout)

    def _require_workspace(self, known: Subagent) -> None:
        origin = known.contract.continues or known.id
        if not self._tasks.has_workspace(known.task, origin):
            raise Refused(
                f"the workspace of {known.id} is gone",
                code="workspace_gone",
                hint="nothing is left to continue from; spawn a new subagent",
            )

    async def _succeed(
        self, known: Subagent, message: str, by: str, timeout: float | None
    ) -> Subagent:
        task = self._records.task(known.task)
        config = self._tasks.config(task.id)
        contract = known.contract
        if timeout is not None:
            limit = config.attempt_timeout_ms(require_duration(timeout, "timeout_seconds"))
            terms = replace(contract.execution, attempt_timeout_ms=limit)
            contract = replace(contract, execution=terms)
        origin = contract.continues or known.id
        self._require_alone(task, origin)
        step = replace(contract.step, description=f"{contract.step.description}\n\n{message}")
        contract = replace(contract, step=step, continues=origin)
        draft = Draft(id=self._successor_id(task, origin), contract=contract)
        admission = Admission(drafts=(draft,), by=by, limit=config.max_concurrent)
        (successor,) = self._journal.admit(task.id, admission)
        self._supervisor.pump(task.id)
        await self._supervisor.up(successor)
        return self._records.subagent(task.id, successor.id)

    def _require_alone(self, task: Task, origin: str) -> None:
        for other in self._records.unclosed(task.id):
            working = other.standing.state in (State.CREATED, State.RUNNING)
            if working and other.contract.continues == origin:
                raise Refused(
                    f"{other.id} is {other.standing.status} in the workspace of {origin}",
                    code="workspace_busy",
                    hint=f"continue {other.id}, or cancel it",
                )

    def _successor_id(self, task: Task, origin: str) -> SubagentId:
        for number in count(task.next_step + 1):
            name = f"{origin[:56]}-{number}"
            try:
                self._records.subagent(task.id, name)
            except NotFound:
                return SubagentId(name)
        raise AssertionError("count() does not end")

    async def _result(self, subagent: Subagent) -> Result:
        while True:
            change = self._journal.next_change(subagent.task)
            known = self._records.subagent(subagent.task, subagent.id)
            if known.standing.settled:
                change.cancel()
                result = self._records.result(known)
                assert result is not None, "a settled subagent has its result"
                return result
            await change

    async def _abandon(self, subagents: Sequence[Subagent]) -> None:
        """All of them at once; the last first, so that nobody is started to be stopped."""
        known = [self._records.subagent(each.task, each.id) for each in reversed(subagents)]
        ends = (self._supervisor.cancel(each, by="parent", reason=GONE) for each in known)
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Refused):
                raise outcome

    async def _boundary(self, config: TaskConfig) -> Boundary:
        """What is in force for the children of this call.

        Raises:
            IsolationUnavailable: less than was asked for.
        """
        missing = None
        if config.runtime_mode == ISOLATED and not config.launch_prefix:
            missing = await self._runtime.isolation_missing()
        mode, warning = resolve_mode(config.runtime_mode, config.runtime_fallback, missing)
        return Boundary(
            mode=mode,
            network=config.network,
            limits=config.limits,
            launch_prefix=config.launch_prefix,
            warning=warning,
        )

    def _admission(
        self, task: Task, config: TaskConfig, request: Request, boundary: Boundary
    ) -> Admission:
        queue = request.queue or config.admission == "queue"
        most = MAX_QUEUED_PER_CALL if queue else config.max_concurrent
        if len(request.briefs) > most:
            raise BadInput(
                f"Too many tasks: {len(request.briefs)} requested but maximum is {most}",
                code="too_many_tasks",
                hint="spawn fewer at once, or raise maxConcurrentAgents in task.yaml",
            )
        names = [brief.id.lower() for brief in request.briefs if brief.id is not None]
        if len(set(names)) != len(names):
            raise BadInput("duplicate id within one call", code="duplicate_id")
        return Admission(
            drafts=tuple(
                replace(draft, contract=replace(draft.contract, boundary=boundary))
                for draft in (self._draft(task, config, brief, request) for brief in request.briefs)
            ),
            by=request.by,
            limit=config.max_concurrent,
            queue=queue,
            key=request.key,
            request_sha256=request.sha256,
        )

    def _draft(self, task: Task, config: TaskConfig, brief: Brief, request: Request) -> Draft:
        name = None if brief.id is None else SubagentId(require_id(brief.id, "subagent id"))
        if not brief.argv:
            raise BadInput(
                "a brief without a command needs a model, and none is configured",
                code="no_backend",
                hint="give the command to run after '--'",
            )
        if brief.integration not in INTEGRATIONS:
            raise BadInput(
                f"unknown integration {brief.integration[:40]!a}",
                code="unknown_integration",
                hint=f"known: {', '.join(INTEGRATIONS)}",
            )
        contract = Contract(
            parent=Parent(
                run_id=task.run,
                step_idx=0,
                task_prompt=task.description or task.title,
                goal_summary=shorten(task.title),
            ),
            step=Step(
                title=brief.heading,
                description=brief.text or " ".join(brief.argv),
                success_criteria=tuple(brief.success_criteria),
            ),
            permissions=Permissions(allowed_tools=tuple(brief.tools)),
            execution=_terms(brief, config),
            outputs=Outputs(
                report_path_pattern=brief.report_path_pattern, integration=brief.integration
            ),
            context=self._tasks.contexts(brief, request.base, config),
            command=tuple(brief.argv),
        )
        require_sound(contract)
        return Draft(id=name, contract=contract)


def _terms(brief: Brief, config: TaskConfig) -> Execution:
    return Execution(
        attempt_timeout_ms=config.attempt_timeout_ms(brief.timeout_seconds),
        max_retries=brief.retries,
        close_on_completion=brief.close_on_completion,
        retry_on_timeout=brief.retry_on_timeout,
        cancel_grace_ms=config.graces_ms,
        output_limit_bytes=config.output_limit_bytes,
    )
