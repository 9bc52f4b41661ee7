"""One run of a plan, from its first step to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from retinue.domain import event as events
from retinue.domain.errors import (
    BadInput,
    IsolationUnavailable,
    LimitExceeded,
    NotFound,
    Refused,
    RetinueError,
)
from retinue.domain.event import Event
from retinue.domain.gate import RunOutcome, outcome, outcome_of
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.join import Source
from retinue.domain.plan import COPY, MERGE, Plan, PlanStep, brief_of
from retinue.domain.policy import milliseconds
from retinue.domain.subagent import Draft, Subagent
from retinue.ports import Admission, Records
from retinue.service.binding import Binder, Request
from retinue.service.course import Course
from retinue.service.driving import RETRY_SECONDS, drive
from retinue.service.sources import Sources, branch_of
from retinue.service.tasks import run_ended
from retinue.supervisor.journal import Journal
from retinue.supervisor.supervisor import Supervisor


@dataclass(frozen=True, kw_only=True)
class Hands:
    """What a run works with."""

    journal: Journal
    records: Records
    supervisor: Supervisor
    binder: Binder
    sources: Sources
    limit: Callable[[TaskId], int]  # how many may work at once
    complain: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Commission:
    """What a run was asked to do; kept in the run's first event, so that it survives us."""

    plan: Plan
    project: Path
    source: Source | None = None
    apply: bool = False
    parent: SubagentId | None = None  # the team that submitted it; else it is the run itself
    member: str = ""  # who of that team
    first: int = 0  # the place of its first step among all subagents of the task


class PlanRun:
    def __init__(self, task: TaskId, commission: Commission, hands: Hands) -> None:
        self._task = task
        self.commission = commission
        self.over = asyncio.Event()  # nobody drives it any more
        self.details: dict[str, object] = {}  # how it ended
        self._hands = hands
        base = commission.source.commit if commission.source else ""
        self._course = Course(plan=commission.plan, base=base)
        self._joining: asyncio.Task[None] | None = None
        self._faults: dict[str, BaseException] = {}  # of joins, foreseen by nobody, by step

    def stop(self) -> None:
        """Nobody new is started."""
        self._course.stopped = True

    def course(self) -> Course:
        """Where it stands now."""
        self._look()
        return self._course

    async def run(self) -> None:
        """Every step is closed or will never be started, and the run has its outcome."""
        self._recall()
        await drive(self._task, self._advance, self._hands.journal, self._hands.complain)

    async def _advance(self) -> bool:
        """Whatever can happen now is under way; whether the run is over."""
        self._look()
        if self._hands.records.task(self._task).state == "closed":
            return True
        if self._is_orphaned():
            self.stop()
        if self._course.ended and self._joining is None:
            return await self._end()
        self._join_next()
        for subagent in self._course.stuck():
            self._hands.supervisor.closing.close(subagent, by="steward")
        await self._start()
        return False

    def _is_orphaned(self) -> bool:
        """Whether the team that wants it is at its end."""
        parent = self.commission.parent
        if parent is None:
            return False
        return not self._hands.records.subagent(self._task, parent).standing.in_attempt

    def _recall(self) -> None:
        """What an earlier supervisor had begun."""
        for step in self._course.order:
            try:
                known = self._hands.records.subagent(self._task, step.id)
            except NotFound:
                continue
            self._course.active[step.id] = known
            if known.standing.final_status:
                self._note_end(known)

    def _look(self) -> None:
        course = self._course
        now = {each.id: each for each in self._hands.records.unclosed(self._task)}
        for name in list(course.active):
            if name in now:
                course.active[name] = now[SubagentId(name)]
            else:
                self._note_end(self._hands.records.subagent(self._task, name))

    def _note_end(self, subagent: Subagent) -> None:
        course = self._course
        course.active.pop(subagent.id, None)
        course.over[subagent.id] = subagent
        result = self._hands.records.result(subagent)
        joined = result.integration if result else None
        if joined and joined.get("reason") == "merged":
            course.commits[subagent.id] = str(joined["commit"])

    def _join_next(self) -> None:
        if self._joining is not None or (subagent := self._course.next_to_join()) is None:
            return
        joiner, fault = self._hands.supervisor.joiner, self._faults.get(subagent.id)
        what = "join" if fault is None else "failure"
        errand = joiner.join(subagent) if fault is None else joiner.give_up(subagent, fault)
        self._joining = task = asyncio.create_task(errand, name=f"{what} of {subagent.id}")
        self._hands.supervisor.errands.add(task)
        task.add_done_callback(partial(self._joined, subagent))

    def _joined(self, subagent: Subagent, task: asyncio.Task[None]) -> None:
        """What the disk or git refuses can be tried again; a fault that nobody foresaw cannot."""
        self._joining = None
        supervisor = self._hands.supervisor
        supervisor.errands.discard(task)
        delay = 0.0
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._hands.complain(f"{task.get_name()}: {type(fault).__name__}: {fault}")
            if isinstance(fault, RetinueError) or subagent.id in self._faults:
                delay = RETRY_SECONDS
            else:
                self._faults[subagent.id] = fault  # by which it fails, next
        asyncio.get_running_loop().call_later(delay, self._hands.journal.wake, self._task)
        if not supervisor.alive:
            supervisor.on_idle()

    async def _start(self) -> None:
        for step in list(self._course.startable()):
            working = [s for s in self._course.active.values() if s.standing.holds_slot]
            if len(working) >= self._hands.limit(self._task):
                break
            try:
                admission = await self._bound(step)
                if self._course.stopping or self._is_orphaned():
                    return  # since then: the next look at the run ends it
                (self._course.active[step.id],) = self._hands.journal.admit(self._task, admission)
                self._hands.supervisor.pump(self._task)
            except LimitExceeded:
                break
            except (BadInput, Refused, IsolationUnavailable) as error:
                self._hands.complain(f"{self._task}/{step.id}: {error.message}")
                self._course.refused[step.id] = error.message
                self._hands.journal.wake(self._task)
        else:
            return
        if self._hands.supervisor.turns.watch(self._task):  # and raised before that, perhaps
            self._hands.journal.wake(self._task)

    async def _bound(self, step: PlanStep) -> Admission:
        known = self._hands.records.task(self._task)
        commission = self.commission
        parent = commission.parent and self._hands.records.subagent(self._task, commission.parent)
        request = Request(
            briefs=[brief_of(step)],
            base=commission.project,
            by="parent",
            parent=parent or None,
            member=commission.member,
        )
        admission = await self._hands.binder.bind(known, request)
        (draft,) = admission.drafts
        return replace(admission, drafts=(self._planned(step, draft),), queue=False)

    def _planned(self, step: PlanStep, draft: Draft) -> Draft:
        """The draft with its place in the plan, and what its plan alone decides."""
        contract, source = draft.contract, self.commission.source
        outputs = replace(
            contract.outputs,
            report_path_pattern=self.commission.plan.report_path_pattern,
            integration=step.integration,
            in_order=True,
            owns=step.owns,
            verify=step.verify,
            allow=step.allow,
            inspect=self.commission.plan.inspect if step.integration == MERGE else (),
        )
        if self.commission.plan.max_file_mb is not None:
            outputs = replace(outputs, max_file_mb=self.commission.plan.max_file_mb)
        if source is not None and step.integration != COPY:
            outputs = replace(
                outputs, base=self._course.base_of(step), repository=source.repository
            )
        if step.integration == MERGE:
            outputs = replace(outputs, branch=branch_of(self._task))
        if step.destination:
            destination = self.commission.project / step.destination
            outputs = replace(outputs, destination=str(destination))
        terms = contract.execution
        if step.timeout_seconds is not None and self.commission.parent is None:
            # The plan's own word, beyond the configuration's.
            terms = replace(terms, attempt_timeout_ms=milliseconds(step.timeout_seconds))
        contract = replace(contract, outputs=outputs, execution=terms)
        place = self.commission.first + self._course.place[step.id]
        return replace(draft, contract=contract, step_idx=place)

    async def _end(self) -> bool:
        """Whether the run has its outcome: not before everybody in its task is closed."""
        course, source = self._course, self.commission.source
        if self.commission.parent is None and not await self._close_others():
            return False
        not_started = course.never()
        verdict = self._verdict()
        if verdict is RunOutcome.SUCCEEDED and not_started:
            verdict = RunOutcome.FAILED
        about: dict[str, object] = {"outcome": verdict.value, "not_started": not_started}
        if source is not None:
            about |= await self._delivered(source, apply=verdict is RunOutcome.SUCCEEDED)
        self.details = about
        known = self._hands.records.task(self._task)
        if self.commission.parent is not None:
            said = f"the plan of {self.commission.parent} {verdict}"
            done = Event(type=events.PLAN_ENDED, summary=said, payload=about)
            self._hands.journal.record(known.id, [done])
            return True
        if self._hands.records.unclosed(known.id):  # spawned meanwhile
            return False
        ended = run_ended(known, verdict, about)
        closed = Event(type=events.TASK_CLOSED, summary=f"task {known.id} closed")
        self._hands.journal.record(known.id, [ended, closed])
        return True

    async def _close_others(self) -> bool:
        """Whoever is there beside the steps is closed; unless one works, whose end comes first."""
        supervisor, unclosed = self._hands.supervisor, self._hands.records.unclosed
        if any(each.standing.holds_slot for each in unclosed(self._task)):
            return False
        async with supervisor.joiner.left_out(self._task):
            others = unclosed(self._task)
            if any(each.standing.holds_slot for each in others):
                return False
            for each in others:
                supervisor.closing.close(each, by="steward")
        return True

    def _verdict(self) -> RunOutcome:
        """By the ends of all subagents of the run; of a submitted plan, by those of its steps."""
        if self.commission.parent is None:
            return outcome_of(self._hands.records.counts(self._task))
        ends = [each.standing.final_status for each in self._course.over.values()]
        return outcome(unclosed=0, failed=sum(end != "completed" for end in ends))

    async def _delivered(self, source: Source, *, apply: bool) -> dict[str, object]:
        """Where the joined work is; a repository that is gone keeps no run from its end."""
        branch, sources = branch_of(self._task), self._hands.sources
        about: dict[str, object] = {"branch": None, "head": ""}
        about["repository"] = source.top or source.git_dir
        asked = {"applied": True} if apply and self.commission.apply else {}
        try:
            if tip := await sources.tip(self._task, source.repository, branch):
                about |= {"branch": branch.removeprefix("refs/heads/"), "head": tip}
                if asked:
                    await sources.fast_forward(source, branch)
        except RetinueError as error:
            self._hands.complain(f"run of {self._task}: {error.message}")
            return about | ({"applied": False, "apply_error": error.message} if asked else {})
        return about | asked
