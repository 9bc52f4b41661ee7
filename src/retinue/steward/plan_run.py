"""One run of a plan: start steps, join their outputs in order, decide the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from retinue.core import events
from retinue.core.errors import (
    BadInput,
    IsolationUnavailable,
    LimitExceeded,
    NotFound,
    Refused,
    RetinueError,
)
from retinue.core.events import Event
from retinue.core.ids import SubagentId, TaskId
from retinue.core.join_result import Source
from retinue.core.lifecycle import State
from retinue.core.plan import (
    COPY,
    MERGE,
    STOP,
    Plan,
    PlanStep,
    RunOutcome,
    decide_outcome,
    decide_run_outcome,
    find_prerequisites,
    order_for_integration,
    to_brief,
)
from retinue.core.policy import to_milliseconds
from retinue.core.subagent import Draft, Subagent
from retinue.ports import Admission, Records, Tasks
from retinue.steward.contract_factory import ContractFactory, SpawnRequest, name_branch
from retinue.steward.journal import RETRY_SECONDS, Journal, run_to_end
from retinue.steward.scheduler import Supervisor
from retinue.steward.task_service import make_run_ended
from retinue.workspaces.git.user_repository import GitSources


@dataclass
class PlanProgress:
    """A plan and the progress of its subagents. It can be rebuilt from the records."""

    plan: Plan
    base: str  # the commit the run starts from; empty if nothing is merged
    over: dict[str, Subagent] = field(default_factory=dict)  # closed, by step
    active: dict[str, Subagent] = field(default_factory=dict)  # started, not closed
    refused: dict[str, str] = field(default_factory=dict)  # why a step could not be started
    commits: dict[str, str] = field(default_factory=dict)  # merge commit by step
    stopped: bool = False  # a stop was requested

    def __post_init__(self) -> None:
        self.order = order_for_integration(self.plan)
        self.place = {step.id: number for number, step in enumerate(self.order)}
        self._before = find_prerequisites(self.order)

    @property
    def stopping(self) -> bool:
        """Whether no further step is started."""
        failed = bool(self.refused) or any(_is_failed(each) for each in self.over.values())
        return self.stopped or (failed and self.plan.on_failure == STOP)

    @property
    def ended(self) -> bool:
        return not self.active and len(self.over) + len(self.list_unstartable()) == len(self.order)

    @property
    def asks(self) -> bool:
        """Whether the run can continue only after a blocked step is answered."""
        asking = any(each.standing.blocked for each in self.active.values())
        return asking and not self.list_startable()

    def list_unstartable(self) -> dict[str, str]:
        """Return the steps that will never start, each with the reason."""
        dead: dict[str, str] = {}
        stopping = self.stopping
        # Steps come after their dependencies, so one pass is enough.
        for step in self.order:
            if step.id in self.over or step.id in self.active:
                continue
            lacking = [name for name in step.depends_on if name in dead or self._has_failed(name)]
            if step.id in self.refused:
                dead[step.id] = self.refused[step.id]
            elif lacking:
                dead[step.id] = f"{lacking[0]}, which it depends on, did not complete"
            elif stopping:
                dead[step.id] = "the run was stopped before"
        return dead

    def list_startable(self) -> list[PlanStep]:
        """Return the steps that only need a free slot, in order."""
        dead = self.list_unstartable()
        gone = self.over.keys() | dead.keys()
        return [
            step
            for step in self.order
            if step.id not in gone and step.id not in self.active and self._before[step.id] <= gone
        ]

    def find_next_to_join(self) -> Subagent | None:
        """Return the next step to join: its output waits and all steps before it are over."""
        gone = self.over.keys() | self.list_unstartable().keys()
        for step in self.order:
            if step.id not in gone:
                subagent = self.active.get(step.id)
                if subagent is None or subagent.standing.in_review:
                    return None
                waits = subagent.standing.state is State.WAITING_FOR_MERGE
                return subagent if waits else None
        return None

    def list_reviews(self) -> list[Subagent]:
        """Return the subagents whose output waits for approval."""
        return [each for each in self.active.values() if each.standing.in_review]

    def list_stuck(self) -> list[Subagent]:
        """Return blocked subagents that are all that keeps a stopping run from its end.

        Not those in review: their work is done, and a person can still approve it.
        """
        if not self.stopping:
            return []
        waiting = (State.WAITING_FOR_MERGE, State.COMPLETED, State.FAILED)
        moving = [
            each
            for each in self.active.values()
            if not each.standing.blocked and each.standing.state not in waiting
        ]
        asking = [e for e in self.active.values() if e.standing.blocked]
        return [] if moving else [each for each in asking if not each.standing.in_review]

    def find_base(self, step: PlanStep) -> str:
        """Return the commit that a step starts from: the last merge up to its prerequisites.

        All steps up to there are over when it starts, so the result does not depend on timing.
        """
        built_on = [
            place
            for name in self._before[step.id]
            if self.order[place := self.place[name]].integration == MERGE
        ]
        for earlier in reversed(self.order[: max(built_on, default=-1) + 1]):
            if earlier.id in self.commits:
                return self.commits[earlier.id]
        return self.base

    def _has_failed(self, name: str) -> bool:
        return name in self.over and _is_failed(self.over[name])


def _is_failed(subagent: Subagent) -> bool:
    return subagent.standing.final_status != "completed"


@dataclass(frozen=True, kw_only=True)
class PlanAssignment:
    """What a run was asked to do; recorded as an event, so that it survives a restart."""

    plan: Plan
    project: Path
    source: Source | None = None
    apply: bool = False
    parent: SubagentId | None = None  # the team that submitted the plan; None: the user did
    member: str = ""  # the member of that team
    first: int = 0  # index of the first step among all subagents of the task


class PlanRun:
    """Execution of one plan."""

    def __init__(
        self,
        task: TaskId,
        assignment: PlanAssignment,
        *,
        journal: Journal,
        records: Records,
        folders: Tasks,
        supervisor: Supervisor,
        contracts: ContractFactory,
        sources: GitSources,
        complain: Callable[[str], None],
    ) -> None:
        self._task = task
        self.assignment = assignment
        self.over = asyncio.Event()  # the run has ended or is no longer driven
        self.details: dict[str, object] = {}  # of its end
        self._journal = journal
        self._records = records
        self._folders = folders
        self._supervisor = supervisor
        self._contracts = contracts
        self._sources = sources
        self._complain = complain
        base = assignment.source.commit if assignment.source else ""
        self._progress = PlanProgress(plan=assignment.plan, base=base)
        self._joining: asyncio.Task[None] | None = None
        self._faults: dict[str, BaseException] = {}  # unexpected errors of joins, by step

    def stop(self) -> None:
        """Start no further steps."""
        self._progress.stopped = True

    def get_progress(self) -> PlanProgress:
        self._look()
        return self._progress

    async def run(self) -> None:
        """Drive the run until every step is closed or unstartable and the outcome is recorded."""
        self._load_progress()
        await run_to_end(self._task, self._advance, self._journal, self._complain)

    async def _advance(self) -> bool:
        """Start what can happen now; return whether the run is over."""
        self._look()
        if self._records.get_task(self._task).state == "closed":
            return True
        if self._is_orphaned():
            self.stop()
        if self._progress.ended and self._joining is None:
            return await self._end()
        self._join_next()
        # A stopping run waits for no answer: close what is blocked.
        for subagent in self._progress.list_stuck():
            self._supervisor.closing.close(subagent, by="steward")
        # A cancelled run joins nothing that was not approved before.
        for subagent in self._progress.list_reviews() if self._progress.stopped else ():
            await self._supervisor.joiner.reject(subagent, by="steward", reason="run cancelled")
        await self._start()
        return False

    def _is_orphaned(self) -> bool:
        """Return whether the team that submitted the plan has ended."""
        parent = self.assignment.parent
        if parent is None:
            return False
        return not self._records.get_subagent(self._task, parent).standing.in_attempt

    def _load_progress(self) -> None:
        """Load the steps that an earlier steward had started."""
        for step in self._progress.order:
            try:
                subagent = self._records.get_subagent(self._task, step.id)
            except NotFound:
                continue
            self._progress.active[step.id] = subagent
            if subagent.standing.final_status:
                self._note_end(subagent)

    def _look(self) -> None:
        progress = self._progress
        now = {each.id: each for each in self._records.list_unclosed(self._task)}
        for name in list(progress.active):
            if name in now:
                progress.active[name] = now[SubagentId(name)]
            else:
                self._note_end(self._records.get_subagent(self._task, name))

    def _note_end(self, subagent: Subagent) -> None:
        progress = self._progress
        progress.active.pop(subagent.id, None)
        progress.over[subagent.id] = subagent
        result = self._records.get_result(subagent)
        joined = result.integration if result else None
        if joined and joined.get("reason") == "merged":
            progress.commits[subagent.id] = str(joined["commit"])

    def _join_next(self) -> None:
        # One join at a time: each merge builds on the previous one.
        if self._joining is not None or (subagent := self._progress.find_next_to_join()) is None:
            return
        joiner = self._supervisor.joiner
        fault = self._faults.get(subagent.id)
        kind = "join" if fault is None else "failure"
        coroutine = joiner.join(subagent) if fault is None else joiner.give_up(subagent, fault)
        self._joining = task = asyncio.create_task(coroutine, name=f"{kind} of {subagent.id}")
        self._supervisor.joins.add(task)
        task.add_done_callback(partial(self._on_joined, subagent))

    def _on_joined(self, subagent: Subagent, task: asyncio.Task[None]) -> None:
        """Retry a join that the disk or git refused; after an unexpected error, fail the step."""
        self._joining = None
        supervisor = self._supervisor
        supervisor.joins.discard(task)
        delay = 0.0
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._complain(f"{task.get_name()}: {type(fault).__name__}: {fault}")
            if isinstance(fault, RetinueError) or subagent.id in self._faults:
                delay = RETRY_SECONDS
            else:
                # The next `_join_next` records this error as the step's failure.
                self._faults[subagent.id] = fault
        asyncio.get_running_loop().call_later(delay, self._journal.wake, self._task)
        if not supervisor.alive:
            supervisor.on_idle()

    async def _start(self) -> None:
        for step in list(self._progress.list_startable()):
            working = [s for s in self._progress.active.values() if s.standing.holds_slot]
            if len(working) >= self._folders.read_config(self._task).max_concurrent:
                break
            try:
                admission = await self._bind_step(step)
                # Binding awaits: the run may have been stopped meanwhile. `_advance` ends it.
                if self._progress.stopping or self._is_orphaned():
                    return
                (self._progress.active[step.id],) = self._journal.admit(self._task, admission)
                self._supervisor.pump(self._task)
            except LimitExceeded:
                break
            except (BadInput, Refused, IsolationUnavailable) as error:
                self._complain(f"{self._task}/{step.id}: {error.message}")
                self._progress.refused[step.id] = error.message
                self._journal.wake(self._task)
        else:
            return
        # Steps are left for lack of a slot. If the watch on task.yaml is new, the limit may have
        # been raised just before: look again.
        if self._supervisor.queue.watch(self._task):
            self._journal.wake(self._task)

    async def _bind_step(self, step: PlanStep) -> Admission:
        task = self._records.get_task(self._task)
        assignment = self.assignment
        parent = assignment.parent and self._records.get_subagent(self._task, assignment.parent)
        request = SpawnRequest(
            briefs=[to_brief(step)],
            base=assignment.project,
            by="parent",
            parent=parent or None,
            member=assignment.member,
        )
        admission = await self._contracts.bind(task, request)
        (draft,) = admission.drafts
        return replace(admission, drafts=(self._apply_plan(step, draft),), queue=False)

    def _apply_plan(self, step: PlanStep, draft: Draft) -> Draft:
        """Return the draft with its step index and the terms that the plan sets."""
        contract = draft.contract
        source = self.assignment.source
        outputs = replace(
            contract.outputs,
            report_path_pattern=self.assignment.plan.report_path_pattern,
            integration=step.integration,
            in_order=True,
            owns=step.owns,
            verify=step.verify,
            allow=step.allow,
            inspect=self.assignment.plan.inspect if step.integration == MERGE else (),
            approve=step.approve,
        )
        if self.assignment.plan.max_file_mb is not None:
            outputs = replace(outputs, max_file_mb=self.assignment.plan.max_file_mb)
        if source is not None and step.integration != COPY:
            outputs = replace(
                outputs, base=self._progress.find_base(step), repository=source.repository
            )
        if step.integration == MERGE:
            outputs = replace(outputs, branch=name_branch(self._task))
        if step.destination:
            destination = self.assignment.project / step.destination
            outputs = replace(outputs, destination=str(destination))
        terms = contract.execution
        if step.timeout_seconds is not None and self.assignment.parent is None:
            # A user's plan may exceed the configured timeout; a team's plan may not.
            terms = replace(terms, attempt_timeout_ms=to_milliseconds(step.timeout_seconds))
        contract = replace(contract, outputs=outputs, execution=terms)
        place = self.assignment.first + self._progress.place[step.id]
        return replace(draft, contract=contract, step_idx=place)

    async def _end(self) -> bool:
        """Record the outcome once all subagents of the task are closed; return whether it is."""
        progress = self._progress
        source = self.assignment.source
        if self.assignment.parent is None and not await self._close_others():
            return False
        not_started = progress.list_unstartable()
        verdict = self._decide_outcome()
        if verdict is RunOutcome.SUCCEEDED and not_started:
            verdict = RunOutcome.FAILED
        details: dict[str, object] = {"outcome": verdict.value, "not_started": not_started}
        if source is not None:
            details |= await self._deliver_branch(source, apply=verdict is RunOutcome.SUCCEEDED)
        self.details = details
        task = self._records.get_task(self._task)
        if self.assignment.parent is not None:
            summary = f"the plan of {self.assignment.parent} {verdict}"
            done = Event(type=events.PLAN_ENDED, summary=summary, payload=details)
            self._journal.record(task.id, [done])
            return True
        # Delivering the branch awaits: subagents may have been spawned meanwhile.
        if self._records.list_unclosed(task.id):
            return False
        ended = make_run_ended(task, verdict, details)
        closed = Event(type=events.TASK_CLOSED, summary=f"task {task.id} closed")
        self._journal.record(task.id, [ended, closed])
        return True

    async def _close_others(self) -> bool:
        """Close all other subagents of the task; return False if one still works."""
        supervisor = self._supervisor
        unclosed = self._records.list_unclosed
        if any(each.standing.holds_slot for each in unclosed(self._task)):
            return False
        async with supervisor.joiner.suspend_joins(self._task):
            # Taking the lock may have waited for a join: look again.
            others = unclosed(self._task)
            if any(each.standing.holds_slot for each in others):
                return False
            for each in others:
                supervisor.closing.close(each, by="steward")
        return True

    def _decide_outcome(self) -> RunOutcome:
        """Return the outcome by all subagents of the run, or by the steps of a submitted plan."""
        if self.assignment.parent is None:
            return decide_run_outcome(self._records.count_by_status(self._task))
        ends = [each.standing.final_status for each in self._progress.over.values()]
        return decide_outcome(unclosed=0, failed=sum(end != "completed" for end in ends))

    async def _deliver_branch(self, source: Source, *, apply: bool) -> dict[str, object]:
        """Return where the joined work is; fast-forward the user's branch if asked.

        A missing repository is logged: it must not keep the run from its end.
        """
        branch = name_branch(self._task)
        details: dict[str, object] = {"branch": None, "head": ""}
        details["repository"] = source.top or source.git_dir
        asked = {"applied": True} if apply and self.assignment.apply else {}
        if self.assignment.apply and not apply:
            said = "not applied: the run did not succeed"
            details |= {"applied": False, "apply_error": said}
        try:
            if tip := await self._sources.find_tip(self._task, source.repository, branch):
                details |= {"branch": branch.removeprefix("refs/heads/"), "head": tip}
                if asked:
                    await self._sources.fast_forward(source, branch)
        except RetinueError as error:
            self._complain(f"run of {self._task}: {error.message}")
            return details | ({"applied": False, "apply_error": error.message} if asked else {})
        return details | asked
