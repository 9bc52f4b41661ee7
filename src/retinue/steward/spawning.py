"""Spawning and continuing subagents. A call is admitted as a whole or leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from retinue.core.errors import BadInput, NotFound, Refused, RetinueError
from retinue.core.gate_notes import parse_answers
from retinue.core.ids import SubagentId, TaskId
from retinue.core.lifecycle import State
from retinue.core.prompts import format_answer
from retinue.core.result import Result
from retinue.core.subagent import (
    LEFT,
    SUCCESSOR_PREFIX,
    Draft,
    Subagent,
    Task,
    list_answers,
    task_closed,
)
from retinue.core.task_config import require_duration
from retinue.ports import Admission, Tasks
from retinue.steward import event_factory
from retinue.steward.agent_staffing import AgentSelector
from retinue.steward.contract_factory import (
    ContractFactory,
    SpawnRequest,
    list_program_folders,
    require_background,
)
from retinue.steward.journal import Journal
from retinue.steward.scheduler import Supervisor
from retinue.steward.task_service import NewTask, TaskService
from retinue.store.reads import Records

GONE = "its caller is gone"
RECORDED_DENIALS = 16  # denials per subagent that are recorded one by one


class SpawnService:
    """Verbs that start subagents or continue them."""

    def __init__(
        self,
        *,
        journal: Journal,
        records: Records,
        folders: Tasks,
        supervisor: Supervisor,
        contracts: ContractFactory,
        tasks: TaskService,
    ) -> None:
        self._journal = journal
        self._records = records
        self._folders = folders
        self._supervisor = supervisor
        self._contracts = contracts
        self._tasks = tasks
        self._attended: Counter[tuple[TaskId, SubagentId]] = Counter()  # calls awaiting each
        self._denied: Counter[tuple[TaskId, SubagentId]] = Counter()

    async def wait_up(self, subagents: Sequence[Subagent]) -> list[Subagent]:
        """Wait until each subagent executes, queues or has ended; return their records."""
        await asyncio.gather(*(self._supervisor.wait_up(subagent) for subagent in subagents))
        return [self._records.get_subagent(subagent.task, subagent.id) for subagent in subagents]

    async def wait_results(
        self, subagents: Sequence[Subagent], when_gone: Callable[[], None] = lambda: None
    ) -> list[Result]:
        """Wait for the results. If the caller disconnects first, cancel the subagents.

        They go on if the caller left them behind on purpose (LEFT), or if a repeated call awaits
        them as well.

        Args:
            when_gone: called when the caller has disconnected, before the subagents are cancelled.
        """
        names = [(subagent.task, subagent.id) for subagent in subagents]
        self._attended.update(names)
        gone = False
        try:
            return [await self._wait_result(subagent) for subagent in subagents]
        except asyncio.CancelledError as end:
            gone = LEFT not in end.args
            raise
        finally:
            self._attended -= Counter(names)
            if gone:
                when_gone()
                alone = [s for s in subagents if (s.task, s.id) not in self._attended]
                # Shielded: a second cancellation of this call must not stop the clean-up.
                cancelling = self._supervisor.cancel_all(alone, by="parent", reason=GONE)
                await asyncio.shield(cancelling)

    async def admit(
        self, task: TaskId, request: SpawnRequest, new: NewTask | None = None
    ) -> list[Subagent]:
        """Record all subagents of the call and start them as slots allow.

        Args:
            new: how to create the task if it does not exist. A refused call does not create it.

        Raises:
            BadInput, LimitExceeded: the call is refused; nothing was created.
        """
        if new is not None and not self.has_task(task):
            return await self._admit_first(task, request, new)
        task_record = self._records.get_task(task)
        self._folders.require_writable(task_record.id)
        try:
            admission = await self._make_admission(task_record, request)
            if request.parent is not None:
                # Making the admission awaits: the parent may have ended meanwhile.
                self._require_at_work(request.parent)
                granted = event_factory.make_delegated(request.parent, len(request.briefs))
                admission = replace(admission, preface=(granted,))
            subagents = self._journal.admit(task_record.id, admission)
        except RetinueError as error:
            if request.parent is not None:
                self.deny(request.parent, error.message)
            raise
        self._supervisor.pump(task_record.id)
        return subagents

    async def _admit_first(
        self, name: TaskId, request: SpawnRequest, new: NewTask
    ) -> list[Subagent]:
        """Create the task and admit its first call; a refused call creates nothing."""
        task = self._tasks.make_draft(title=new.title, name=name)
        admission = await self._contracts.make_admission(task, request, new.task_config)
        if refusal := next(filter(None, (draft.refusal for draft in admission.drafts)), None):
            raise refusal
        # That waited for the isolation check: another caller may have created the task meanwhile.
        if self.has_task(name):
            return await self.admit(name, request)
        self._tasks.record(task, new.config)
        try:
            self._folders.require_writable(task.id)
            subagents = self._journal.admit(task.id, admission)
        except RetinueError:
            await self._tasks.close(task.id, by=request.by)
            raise
        self._supervisor.pump(task.id)
        return subagents

    async def _make_admission(self, task: Task, request: SpawnRequest) -> Admission:
        """Return the admission of the call; in a closed task, report any refusal as "task closed".

        Raises:
            Refused: the task is closed and its configuration does not allow this call. Repeated
                calls pass, so that they find their subagents.
        """
        try:
            return await self._contracts.make_admission(task, request)
        except RetinueError:
            if task.state == "open":
                raise
            raise task_closed(task.id) from None

    def has_task(self, task: TaskId) -> bool:
        try:
            self._records.get_task(task)
        except NotFound:
            return False
        return True

    def _require_at_work(self, parent: Subagent) -> None:
        """Raises:
        Refused: the parent has ended, which ends its subagents as well.
        """
        if not self._records.get_subagent(parent.task, parent.id).standing.in_attempt:
            raise Refused(f"{parent.id} has ended", code="parent_ended")

    @property
    def agents(self) -> AgentSelector:
        return self._contracts.workers.agents

    def list_unmet(self, task: TaskId) -> tuple[str, ...]:
        """Return what the task's configuration asks for and this machine cannot provide."""
        return self._contracts.workers.list_unmet(self._folders.read_config(task))

    def deny(self, parent: Subagent, reason: str) -> None:
        """Record that a subagent asked for more than its contract allows."""
        self._denied[parent.task, parent.id] += 1
        times = self._denied[parent.task, parent.id]
        # After the first few, record only at powers of two: a subagent that keeps asking must
        # not fill the event log, which is never pruned.
        if times <= RECORDED_DENIALS or times.bit_count() == 1:
            self._journal.record(
                parent.task, [event_factory.make_delegation_denied(parent, reason, times=times)]
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
        """Answer a blocked subagent, or start a successor of a closed one.

        The successor is a new subagent with the same brief in the same workspace. Any id of a
        lineage stands for its newest subagent, because the workspace and the conversation are as
        that one left them.

        Raises:
            Refused: it is still running, no node is there that could run it, or background work is
                disabled and the call asks for it.
        """
        if not message.strip():
            raise BadInput("the message is empty", code="invalid_request")
        named = self._records.get_subagent(task, subagent)
        record = self._records.list_lineage(named)[-1]
        if background:
            require_background(self._folders.read_config(record.task))
        if record.standing.blocked:
            self.answer(record, message, by=by)
            await self._supervisor.wait_up(record)
            return self._records.get_subagent(task, record.id)
        if record.id != named.id:
            self._require_sole_worker(record.task, record.contract.continues)
        if record.standing.state != "closed":
            raise Refused(
                f"{record.id} is {record.standing.status}",
                code="not_settled",
                hint="close it, then continue it"
                if record.standing.settled
                else "wait for its end, or cancel it; then continue it",
            )
        self._require_continuable(record)
        placed = [record.contract.placement]
        await self._contracts.require_nodes(placed, record.contract.boundary, queue=False)
        return await self._start_successor(record, message, by, timeout)

    def answer(self, subagent: Subagent, message: str, *, by: str) -> None:
        """Answer a blocked subagent and start its next attempt.

        Raises:
            Refused: it is not blocked, or its workspace was removed.
            LimitExceeded: no slot is free.
        """
        self._require_continuable(subagent)
        self._supervisor.answer(subagent, message, by=by)

    def _require_continuable(self, subagent: Subagent) -> None:
        self._folders.require_writable(subagent.task)
        origin = subagent.contract.continues or subagent.id
        if not self._folders.has_workspace(subagent.task, origin):
            raise Refused(
                f"the workspace of {subagent.id} was removed",
                code="workspace_gone",
                hint="it cannot be continued; spawn a new subagent",
            )

    async def _start_successor(
        self, subagent: Subagent, message: str, by: str, timeout: float | None
    ) -> Subagent:
        task = self._records.get_task(subagent.task)
        config = self._folders.read_config(task.id)
        contract = subagent.contract
        lent = (*contract.context.paths, *list_program_folders(contract.team, contract.python))
        if lent:
            # Roots that were created since the first spawn must be hidden as well.
            context = await asyncio.to_thread(self._folders.rescan_context, contract.context, lent)
            contract = replace(contract, context=context)
        if timeout is not None:
            limit = config.clamp_timeout_ms(require_duration(timeout, "timeout_seconds"))
            terms = replace(contract.execution, attempt_timeout_ms=limit)
            contract = replace(contract, execution=terms)
        if contract.delegated_by:
            # The parent may have less budget and time left than at the first spawn.
            parent = self._records.get_subagent(task.id, contract.delegated_by)
            if parent.standing.in_attempt:
                contract = self._contracts.narrow_successor(contract, parent)
        origin = contract.continues or subagent.id
        self._require_sole_worker(task.id, origin)
        step = replace(contract.step, description=self._build_preamble(subagent) + f"\n\n{message}")
        outputs = replace(contract.outputs, in_order=False)
        contract = replace(
            contract, step=step, continues=origin, resumes=subagent.id, outputs=outputs
        )
        draft = Draft(id=self._choose_successor_id(task, origin), contract=contract)
        admission = Admission(drafts=(draft,), by=by, limit=config.max_concurrent)
        (successor,) = self._journal.admit(task.id, admission)
        self._supervisor.pump(task.id)
        await self._supervisor.wait_up(successor)
        return self._records.get_subagent(task.id, successor.id)

    def _build_preamble(self, subagent: Subagent) -> str:
        """Return the brief and the answers so far, to precede a message to the successor.

        A team has the answers in its conversation already.
        """
        contract = subagent.contract
        gates = (
            []
            if contract.team
            else list_answers(self._records.list_gates(subagent.task), subagent.id)
        )
        answers = [format_answer(gate.questions, gate.answer).rstrip() for gate in gates]
        return "".join([contract.step.description, *answers, "\n\n## Message" if answers else ""])

    def _require_sole_worker(self, task: TaskId, origin: str) -> None:
        for other in self._records.list_unclosed(task):
            waits = other.standing.state is State.WAITING_FOR_MERGE
            if other.contract.continues == origin and (waits or not other.standing.ended):
                does = "waits to be joined" if waits else f"is {other.standing.status}"
                raise Refused(
                    f"{other.id} {does} in the workspace of {origin}",
                    code="workspace_busy",
                    hint=f"join {other.id}, or close it"
                    if waits
                    else f"wait for the end of {other.id}, or cancel it; then continue {origin}",
                )

    def _choose_successor_id(self, task: Task, origin: str) -> SubagentId:
        for number in count(task.next_step + 1):
            name = f"{origin[:SUCCESSOR_PREFIX]}-{number}"
            try:
                self._records.get_subagent(task.id, name)
            except NotFound:
                return SubagentId(name)
        raise AssertionError("count() does not end")

    async def _wait_result(self, subagent: Subagent) -> Result:

        def look() -> Result | None:
            record = self._records.get_subagent(subagent.task, subagent.id)
            if not record.standing.settled:
                return None
            result = self._records.get_result(record)
            assert result is not None, "a settled subagent has its result"
            return result

        return await self._journal.wait_until(subagent.task, look)


class NoteAnswers:
    """Reads the notes of tasks with open gates and continues answered subagents."""

    def __init__(
        self,
        records: Records,
        spawning: SpawnService,
        read: Callable[[TaskId], str],
        complain: Callable[[str], None],
    ) -> None:
        self._records = records
        self._spawning = spawning
        self._read = read
        self._complain = complain

    def look(self, task: TaskId) -> bool:
        """Continue the subagents whose gates are answered; return whether to go on watching."""
        waiting = [gate for gate in self._records.list_gates(task) if gate.state == "open"]
        if not waiting:
            return False
        answers = parse_answers(self._read(task))
        for gate in waiting:
            if gate.id not in answers:
                continue
            subagent = self._records.get_subagent(task, gate.subagent)
            try:
                self._spawning.answer(subagent, answers[gate.id], by="user")
            except RetinueError as error:
                # Usually no slot is free. The next change of the notes or the task tries again.
                self._complain(f"{task}: the answer to {gate.id} waits: {error.message}")
        return True
