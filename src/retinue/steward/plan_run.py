"""One run of a plan: start steps, join their outputs in order, decide the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from retinue.core import events
from retinue.core.brief import Brief
from retinue.core.contract import Context
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
from retinue.core.plan import (
    COPY,
    MERGE,
    Plan,
    PlanStep,
    RunOutcome,
    decide_outcome,
    to_brief,
)
from retinue.core.plan_progress import PlanProgress, has_failed
from retinue.core.plan_review import (
    CheckedOutput,
    format_review_task,
    format_vote_task,
    make_ballot,
)
from retinue.core.subagent import Draft, Subagent
from retinue.core.task_config import to_milliseconds
from retinue.ports import Admission, Tasks
from retinue.steward.contract_factory import ContractFactory, SpawnRequest, name_branch
from retinue.steward.journal import RETRY_SECONDS, Journal, run_to_end
from retinue.steward.scheduler import Supervisor
from retinue.steward.task_service import make_run_ended
from retinue.store.reads import Records
from retinue.workspaces.git.user_repository import GitSources


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
            with suppress(NotFound):
                self._progress.active[step.id] = self._records.get_subagent(self._task, step.id)
        if any(self._progress.needs_check(step) for step in self._progress.order):
            self._load_checked()
        for subagent in list(self._progress.active.values()):
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
        progress.closed[subagent.id] = subagent
        result = self._records.get_result(subagent)
        joined = result.integration if result else None
        if joined and joined.get("reason") == "merged":
            progress.commits[subagent.id] = str(joined["commit"])
        if result and not has_failed(subagent):
            progress.answers[subagent.id] = result.structured_answer

    def _load_checked(self) -> None:
        """Load what `Joiner.check` recorded for an earlier steward."""
        for each in self._records.iter_events(self._task):
            event = each.event
            if event.type == events.OUTPUT_CHECKED and event.subagent in self._progress.active:
                names = ("commit", "content", "tree", "patch")
                known = CheckedOutput(**{name: str(event.payload[name]) for name in names})
                self._progress.checked[event.subagent] = known

    def _join_next(self) -> None:
        # One join at a time: each merge builds on the previous one.
        if self._joining is not None or (subagent := self._progress.find_next_to_join()) is None:
            return
        joiner = self._supervisor.joiner
        fault = self._faults.get(subagent.id)
        kind = "join" if fault is None else "failure"
        coroutine = self._decide(subagent) if fault is None else joiner.give_up(subagent, fault)
        self._joining = task = asyncio.create_task(coroutine, name=f"{kind} of {subagent.id}")
        self._supervisor.joins.add(task)
        task.add_done_callback(partial(self._on_joined, subagent))

    async def _decide(self, subagent: Subagent) -> None:
        """Join the output, or check it first; keep it if a review or the vote went against it."""
        progress = self._progress
        joiner = self._supervisor.joiner
        step = progress.get_step(subagent.id)
        checked = progress.checked.get(step.id)
        if progress.needs_check(step):
            if passed := await joiner.check(subagent):
                progress.checked[step.id] = passed
        elif step.candidate_of and (best := progress.choose(step.candidate_of).winner) != step.id:
            await joiner.set_aside(subagent, best)
        elif objection := progress.find_objection(step):
            await joiner.decline(subagent, objection)
        else:
            await joiner.join(subagent, checked)

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
                admission = await self._make_step_admission(step)
                # That awaits: the run may have been stopped meanwhile. `_advance` ends it.
                if step not in self._progress.list_startable() or self._is_orphaned():
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

    async def _make_step_admission(self, step: PlanStep) -> Admission:
        task = self._records.get_task(self._task)
        assignment = self.assignment
        parent = assignment.parent and self._records.get_subagent(self._task, assignment.parent)
        brief = to_brief(step)
        request = SpawnRequest(
            briefs=[replace(brief, **self._describe_judged(step)) if step.judges else brief],
            base=assignment.project,
            by="parent",
            parent=parent or None,
            member=assignment.member,
        )
        admission = await self._contracts.make_admission(task, request)
        (draft,) = admission.drafts
        return replace(admission, drafts=(self._apply_plan(step, draft),), queue=False)

    def _describe_judged(self, step: PlanStep) -> dict[str, Any]:
        """Return the terms of a reviewer or voter that depend on what it judges."""
        progress = self._progress
        if step.reviews:
            reviewed = progress.get_step(step.reviews)
            patch = progress.checked[step.reviews].patch
            return {"text": format_review_task(step, reviewed, patch)}
        passed = progress.list_passed(step.votes_on)
        patches = {name: progress.checked[name].patch for name in passed}
        first = progress.get_step(passed[0])
        text = format_vote_task(step, patches, first)
        return {"text": text, "answer_schema": make_ballot(passed)}

    def _lend_patches(self, step: PlanStep, context: Context) -> Context:
        """Return the context with the changes that the step judges.

        The steward lends them, not the parent: they are output of this plan.
        """
        judged = self._progress.list_passed(step.votes_on) if step.votes_on else [step.reviews]
        patches = [self._progress.checked[name].patch for name in judged]
        config = self._folders.read_config(self._task)
        brief = Brief(context_paths=patches)
        lent = self._folders.resolve_contexts(brief, self.assignment.project, config, None)
        return replace(lent, hidden=tuple(dict.fromkeys((*lent.hidden, *context.hidden))))

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
        context = self._lend_patches(step, contract.context) if step.judges else contract.context
        contract = replace(contract, outputs=outputs, execution=terms, context=context)
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
        details |= self._describe_decisions()
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
        progress = self._progress
        failed = progress.count_failed()
        if self.assignment.parent is not None:
            return decide_outcome(unclosed=0, failed=failed)
        counts = self._records.count_by_status(self._task)
        # Subagents that are no steps count, too.
        others = counts.failed + counts.cancelled - sum(map(has_failed, progress.closed.values()))
        return decide_outcome(unclosed=counts.unclosed, failed=failed + others)

    def _describe_decisions(self) -> dict[str, object]:
        """Return what was chosen among candidates, and what reviewers said."""
        progress = self._progress
        choices: dict[str, object] = {}
        for name, members in progress.candidates.items():
            choice = progress.choose(name)
            merged = choice.winner if choice.winner in progress.commits else ""
            choices[name] = {
                "winner": merged or None,
                "reason": choice.reason,
                "passed": progress.list_passed(name),
                "votes": dict(choice.votes),
                "candidates": {each: progress.get_step(each).agent for each in members},
            }
        reviews = {
            step.id: {"reviews": step.reviews, "verdict": progress.answers.get(step.id)}
            for step in progress.order
            if step.reviews and step.id in progress.closed
        }
        details: dict[str, object] = {"choices": choices} if choices else {}
        return details | ({"reviews": reviews} if reviews else {})

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
