"""Spawning: a whole call is bound into contracts and admitted, or nothing exists."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from retinue.domain.briefing import answer_of
from retinue.domain.errors import BadInput, NotFound, Refused, RetinueError
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.lifecycle import State
from retinue.domain.policy import require_duration
from retinue.domain.result import Result
from retinue.domain.subagent import LEFT, Draft, Subagent, Task, answered
from retinue.ports import Admission, Records, Tasks
from retinue.service.binding import Binder, Request, require_background
from retinue.supervisor import entries
from retinue.supervisor.journal import Journal
from retinue.supervisor.supervisor import Supervisor

GONE = "its caller is gone"
TOLD_EACH = 16  # refusals of one subagent


class Spawning:
    def __init__(
        self,
        journal: Journal,
        records: Records,
        tasks: Tasks,
        supervisor: Supervisor,
        binder: Binder,
    ) -> None:
        self._binder = binder
        self._journal = journal
        self._records = records
        self._tasks = tasks
        self._supervisor = supervisor
        self._attended: Counter[tuple[TaskId, SubagentId]] = Counter()
        self._denied: Counter[tuple[TaskId, SubagentId]] = Counter()

    async def up(self, subagents: Sequence[Subagent]) -> list[Subagent]:
        """Each of those that were admitted executes, waits its turn, or has ended."""
        await asyncio.gather(*(self._supervisor.up(subagent) for subagent in subagents))
        return [self._records.subagent(subagent.task, subagent.id) for subagent in subagents]

    async def attend(
        self, subagents: Sequence[Subagent], when_gone: Callable[[], None] = lambda: None
    ) -> list[Result]:
        """Their results. If the caller is gone before, so are they; unless it left them behind.

        Those that somebody else attends as well, by the same call made twice, go on.

        Args:
            when_gone: called when the caller is gone, before they are.
        """
        names = [(subagent.task, subagent.id) for subagent in subagents]
        self._attended.update(names)
        gone = False
        try:
            return [await self._result(subagent) for subagent in subagents]
        except asyncio.CancelledError as end:
            gone = LEFT not in end.args
            raise
        finally:
            self._attended -= Counter(names)
            if gone:
                when_gone()
                alone = [s for s in subagents if (s.task, s.id) not in self._attended]
                await asyncio.shield(self._abandon(alone))

    async def admit(self, task: TaskId, request: Request) -> list[Subagent]:
        """The whole call is on record, and on its way.

        Raises:
            BadInput, LimitExceeded: nothing exists.
        """
        known = self._records.task(task)
        self._tasks.require_writable(known.id)
        try:
            admission = await self._binder.bind(known, request)
            if request.parent is not None:
                self._require_at_work(request.parent)
                granted = entries.delegated(request.parent, len(request.briefs))
                admission = replace(admission, preface=(granted,))
            subagents = self._journal.admit(known.id, admission)
        except RetinueError as error:
            if request.parent is not None:
                self.deny(request.parent, error.message)
            raise
        self._supervisor.pump(known.id)
        return subagents

    def _require_at_work(self, parent: Subagent) -> None:
        """Raises:
        Refused: it came to its end meanwhile, and all it had delegated with it.
        """
        if not self._records.subagent(parent.task, parent.id).standing.in_attempt:
            raise Refused(f"{parent.id} has come to its end", code="parent_ended")

    def unmet(self, task: TaskId) -> tuple[str, ...]:
        """What the task's configuration asks for and cannot have, for whoever wrote it."""
        return self._binder.crew.unmet(self._tasks.config(task))

    def deny(self, parent: Subagent, reason: str) -> None:
        """It is on record that a subagent asked for more than its contract gives.

        One that goes on asking is told of whenever it has asked twice as often: a log that
        nothing is ever taken from is not its to fill.
        """
        self._denied[parent.task, parent.id] += 1
        times = self._denied[parent.task, parent.id]
        if times <= TOLD_EACH or times.bit_count() == 1:
            self._journal.record(
                parent.task, [entries.delegation_denied(parent, reason, times=times)]
            )

    async def continue_(
        self,
        task: TaskId,
        subagent: str,
        message: str,
        *,
        by: str,
        timeout: float | None = None,
        background: bool = False,
    ) -> Subagent:
        """A blocked subagent is in its next attempt; a closed one has a successor.

        The successor is a new subagent with the same work, in the same workspace.

        Raises:
            Refused: it still works, or nobody would wait for it and somebody must.
        """
        if not message.strip():
            raise BadInput("an empty message continues nothing", code="invalid_request")
        known = self._records.subagent(task, subagent)
        if background:
            require_background(self._tasks.config(known.task))
        if known.standing.blocked:
            self.answer(known, message, by=by)
            await self._supervisor.up(known)
            return self._records.subagent(task, known.id)
        if known.standing.state != "closed":
            raise Refused(
                f"{known.id} is {known.standing.status}",
                code="not_settled",
                hint="close it, then continue it"
                if known.standing.settled
                else "wait for its end, or cancel it; then continue it",
            )
        self._require_room(known)
        return await self._succeed(known, message, by, timeout)

    def answer(self, known: Subagent, message: str, *, by: str) -> None:
        """A blocked subagent has its answer, and is on its way into the next attempt.

        Raises:
            Refused: it is not blocked, or its workspace is gone.
            LimitExceeded: no slot is free.
        """
        self._require_room(known)
        self._supervisor.answer(known, message, by=by)

    def _require_room(self, known: Subagent) -> None:
        self._tasks.require_writable(known.task)
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
        if contract.delegated_by:
            parent = self._records.subagent(task.id, contract.delegated_by)
            if parent.standing.in_attempt:
                contract = self._binder.again(contract, parent)
        origin = contract.continues or known.id
        self._require_alone(task, origin)
        step = replace(contract.step, description=self._told(known) + f"\n\n{message}")
        outputs = replace(contract.outputs, in_order=False)
        contract = replace(contract, step=step, continues=origin, resumes=known.id, outputs=outputs)
        draft = Draft(id=self._successor_id(task, origin), contract=contract)
        admission = Admission(drafts=(draft,), by=by, limit=config.max_concurrent)
        (successor,) = self._journal.admit(task.id, admission)
        self._supervisor.pump(task.id)
        await self._supervisor.up(successor)
        return self._records.subagent(task.id, successor.id)

    def _told(self, known: Subagent) -> str:
        """What goes before a message to its successor: its brief, and the answers that it had.

        A team knows these by its conversation.
        """
        contract = known.contract
        gates = [] if contract.team else answered(self._records.gates(known.task), known.id)
        answers = [answer_of(gate.questions, gate.answer).rstrip() for gate in gates]
        return "".join([contract.step.description, *answers, "\n\n## Message" if answers else ""])

    def _require_alone(self, task: Task, origin: str) -> None:
        for other in self._records.unclosed(task.id):
            waits = other.standing.state is State.WAITING_FOR_MERGE
            if other.contract.continues == origin and (waits or not other.standing.ended):
                does = "waits to be joined" if waits else f"is {other.standing.status}"
                raise Refused(
                    f"{other.id} {does} in the workspace of {origin}",
                    code="workspace_busy",
                    hint=f"join {other.id}, or close it"
                    if waits
                    else f"continue {other.id}, or cancel it",
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

        def look() -> Result | None:
            known = self._records.subagent(subagent.task, subagent.id)
            if not known.standing.settled:
                return None
            result = self._records.result(known)
            assert result is not None, "a settled subagent has its result"
            return result

        return await self._journal.until(subagent.task, look)

    async def _abandon(self, subagents: Sequence[Subagent]) -> None:
        """All of them at once; the last first, so that nobody is started to be stopped."""
        known = [self._records.subagent(each.task, each.id) for each in reversed(subagents)]
        ends = (self._supervisor.cancel(each, by="parent", reason=GONE) for each in known)
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Refused):
                raise outcome
