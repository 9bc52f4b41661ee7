"""Verbs on plans: start, wait, stop, close, resume after a crash, and plans of teams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from retinue.core import events
from retinue.core.brief import Brief
from retinue.core.command_variables import parse_secrets
from retinue.core.contract import MAX_FILE_MB, require_known_tools
from retinue.core.errors import PYTHON, BadInput, NotFound, Refused, RetinueError
from retinue.core.events import Event
from retinue.core.ids import SubagentId, TaskId
from retinue.core.join_result import Source
from retinue.core.lifecycle import State
from retinue.core.plan import Plan, PlanStep, order_for_integration, select_unfinished, to_brief
from retinue.core.result import Result
from retinue.core.safe_text import shorten
from retinue.core.subagent import Subagent, Task
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.ports import Tasks
from retinue.steward.contract_factory import ContractFactory, name_branch
from retinue.steward.journal import ActiveRuns, Journal
from retinue.steward.plan_run import PlanAssignment, PlanRun
from retinue.steward.scheduler import Supervisor
from retinue.steward.task_service import FOR_PLAN, JoinedTask, TaskService
from retinue.store.reads import Records
from retinue.workspaces.git.repository_location import make_unfit_error
from retinue.workspaces.git.user_repository import GitSources

MERGED = "merged"  # close reason of a step whose output is on the branch
FIRST_EVENTS = 10  # a run's assignment is among these

PlanReader = Callable[[object], Plan]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A call to carry out a plan."""

    plan: Plan
    text: str  # of the plan, as it was written
    document: Mapping[str, object]  # the plan as it is recorded
    folders: tuple[Path, ...]  # tried in order as the base of the plan's repository
    config: NewConfig
    task_config: TaskConfig  # parsed from `config`
    by: str = "user"
    apply: bool = False
    include_dirty: bool = False
    retry_of: str = ""  # the task whose run this one continues
    name: str = ""  # id of the new task; empty: made from the goal


class PlanService:
    """Plan runs of the root: at most one in each task."""

    def __init__(
        self,
        *,
        journal: Journal,
        records: Records,
        folders: Tasks,
        supervisor: Supervisor,
        contracts: ContractFactory,
        sources: GitSources,
        tasks: TaskService,
        project: Path,
        complain: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._records = records
        self._folders = folders
        self._supervisor = supervisor
        self._contracts = contracts
        self._sources = sources
        self._tasks = tasks
        self._project = project
        self._complain = complain
        self._make_run = partial(
            PlanRun,
            journal=journal,
            records=records,
            folders=folders,
            supervisor=supervisor,
            contracts=contracts,
            sources=sources,
            complain=complain,
        )
        self._runs: dict[TaskId, PlanRun] = {}
        self._active = ActiveRuns(journal, complain)
        self._submitting = asyncio.Lock()

    async def start(self, request: RunRequest) -> Task:
        """Create a task and start the run of its plan.

        Raises:
            BadInput, IsolationUnavailable: the plan is refused; nothing was created.
        """
        # All checks come before the task is created.
        plan = request.plan
        self._require_staffed(plan, request.task_config)
        self._require_secrets(plan)
        self._require_inside(plan)
        if request.task_config.context_paths:
            # Every step is lent these, so none could start without them.
            check = self._folders.resolve_contexts
            await asyncio.to_thread(check, Brief(), self._project, request.task_config, None)
        await self._contracts.decide_boundary(request.task_config)
        source = await self._find_source(request) if plan.repository else None
        task = self._tasks.create(
            title=shorten(plan.goal, 500),
            config=request.config,
            name=request.name,
            purpose=FOR_PLAN,
        )
        try:
            # Before the run begins: a run whose start was refused must not go on.
            self._folders.keep_plan(task.id, request.text)
            if source is not None:
                source = await self._sources.open(task.id, source, dirty=request.include_dirty)
            kept = _make_order_event(request, source, name_branch(task.id))
            self._journal.record(task.id, [kept])
        except (RetinueError, asyncio.CancelledError):
            # The disk or the repository failed, or the caller disconnected: leave no open task.
            await self._tasks.close(task.id, by=request.by)
            raise
        self._begin(task.id, self._make_assignment(plan, kept.payload))
        return task

    def resume(self, task: TaskId, plan_of: PlanReader, left: Sequence[Subagent]) -> None:
        """Go on with the task's unfinished run, if it has one.

        A plan that this version cannot read is logged and left as it is.

        Args:
            left: the subagents that were open when the task was resumed.
        """
        kept = self._find_unfinished(task, left)
        if kept is None:
            # The steward stopped after it created the task and before it recorded the plan. The
            # caller had no answer; without a plan the task would stay open for ever.
            first = self._records.list_events(task, after=0, limit=FIRST_EVENTS)
            for_plan = first[0].event.payload.get("purpose") == FOR_PLAN
            if for_plan and not left and not any(_is_assignment(e.event) for e in first):
                self._tasks.close_unstarted(task, "the steward stopped before the plan began")
            return
        try:
            plan = plan_of(kept["plan"])
        except BadInput as error:
            self._complain(f"run of {task}: left as it is: {error.message}")
            return
        run = self._begin(task, self._make_assignment(plan, kept))
        recorded = self._records.iter_events(task)
        if any(each.event.type == events.STOP_REQUESTED for each in recorded):
            run.stop()

    async def make_retry_plan(self, task: TaskId, plan_of: PlanReader) -> Plan:
        """Return the steps of an ended run that did not complete, as a plan of their own.

        It starts from the branch on which the completed steps were merged.

        Raises:
            BadInput: that branch, or the commit that the run began with, is no longer there.
            Refused: the task ran no plan, still runs it, or all of its steps completed.
        """
        record, kept = self._get_ended_plan(task)
        plan = plan_of(kept["plan"])
        completed = {step.id for step in plan.steps if self._has_completed(record.id, step)}
        left = select_unfinished(plan, completed)
        if not left.steps:
            raise Refused(
                f"all steps of {record.id} completed",
                code="nothing_to_retry",
                hint="run the plan again with 'retinue run --plan FILE'",
            )
        source = self._make_assignment(plan, kept).source
        if source is None:
            return left
        await self._require_merged(record.id, completed)
        tip = await self._sources.find_tip(record.id, source.repository, name_branch(record.id))
        if not tip and not await self._sources.has_commit(record.id, source):
            raise make_unfit_error(
                f"{record.id} began with uncommitted changes, and nothing of it was merged",
                "run the plan again with 'retinue run --plan FILE --include-dirty'",
            )
        place = source.top or source.git_dir
        return replace(left, repository=place, ref=tip or source.commit)

    async def _require_merged(self, task: TaskId, completed: AbstractSet[str]) -> None:
        """Require that the branch has the work of all completed steps: it is not done again.

        Raises:
            BadInput: it was removed, or rewritten without some of that work.
        """
        steps = [self._records.get_subagent(task, name) for name in sorted(completed)]
        merged = [each for each in steps if each.standing.close_reason == MERGED]
        lost = [e for e in merged if not await self._supervisor.joiner.is_merged(e)]
        if lost:
            results = [self._records.get_result(each) for each in lost]
            commits = [str((each.integration or {}).get("commit")) for each in results if each]
            branch = name_branch(task).removeprefix("refs/heads/")
            raise make_unfit_error(
                f"the branch {branch} lacks the work of {', '.join(each.id for each in lost[:5])}",
                f"make it again from what was merged (commit {', '.join(commits[:5])}), or run "
                "the whole plan again with 'retinue run --plan FILE'",
            )

    async def apply_branch(self, task: TaskId) -> dict[str, Any]:
        """Fast-forward the checked-out branch and its files to the branch of an ended plan.

        Raises:
            Refused: there is no such branch, the tree is not clean, or its branch has commits
                that the plan's has not. Nothing was changed.
        """
        record, kept = self._get_ended_plan(task)
        source = kept.get("source")
        branch = name_branch(record.id)
        found = Source(**source) if isinstance(source, dict) and source["top"] else None
        tip = None
        if found is not None:
            tip = await self._sources.find_tip(record.id, found.repository, branch)
        if found is None or not tip:
            raise Refused(
                f"{record.id} has no branch to apply",
                code="not_applied",
                hint="only work that was merged from a repository with a working tree is applied",
            )
        # What is checked out now is moved; git refuses what is not a fast-forward.
        await self._sources.fast_forward(replace(found, commit="HEAD", branch=""), branch)
        short = branch.removeprefix("refs/heads/")
        return {"task_id": record.id, "branch": short, "head": tip, "applied": True}

    def _get_ended_plan(self, task: TaskId) -> tuple[Task, Mapping[str, object]]:
        """Return the task and the recorded assignment of its ended plan.

        Raises:
            Refused: the task ran no plan, or still runs it.
        """
        record = self._records.get_task(task)
        first = self._records.list_events(record.id, after=0, limit=FIRST_EVENTS)
        kept = next((e.event.payload for e in first if _is_assignment(e.event)), None)
        if kept is None or "parent" in kept:
            raise Refused(
                f"{record.id} ran no plan",
                code="no_plan",
                hint="only the run of a plan has steps and a branch; see 'retinue task list'",
            )
        if record.state != "closed":
            raise Refused(
                f"the plan of {record.id} has not ended",
                code="task_running",
                hint=f"wait for its end, or 'retinue task cancel {record.id}'",
            )
        return record, kept

    def _has_completed(self, task: TaskId, step: PlanStep) -> bool:
        try:
            standing = self._records.get_subagent(task, step.id).standing
        except NotFound:
            return False
        # Of candidates, the one that was merged completes all of them.
        if step.candidate_of:
            return standing.close_reason == MERGED
        return standing.final_status == "completed"

    def get_run(self, task: TaskId) -> PlanRun | None:
        return self._runs.get(task)

    def _find_unfinished(
        self, task: TaskId, left: Sequence[Subagent]
    ) -> Mapping[str, object] | None:
        """Return the recorded assignment of the task's unfinished plan, if there is one."""
        first = self._records.list_events(task, after=0, limit=FIRST_EVENTS)
        found = [e.event.payload for e in first if _is_assignment(e.event)]
        if found and "parent" not in found[0]:
            return found[0]
        # A plan that a team submitted is worth resuming only while a subagent that can have
        # submitted it is open.
        above = [e.id for e in left if e.contract.is_root or e.contract.delegated_by]
        standings = [self._records.get_subagent(task, name).standing for name in above]
        if all(standing.state is State.CLOSED for standing in standings):
            return None
        # The newest submitted plan, unless its end is recorded.
        newest: Mapping[str, object] | None = None
        for each in self._records.iter_events(task):
            if _is_assignment(each.event):
                newest = each.event.payload
            elif each.event.type == events.PLAN_ENDED:
                newest = None
        return newest

    async def wait(self, task: TaskId) -> JoinedTask:
        """Wait for the end of the task's plan and return all results.

        Raises:
            Refused: the task is open and runs no plan.
        """

        def look() -> JoinedTask | None:
            task_record = self._records.get_task(task)
            if task_record.state == "closed":
                return self._tasks.join(task_record.id)
            if task_record.id not in self._runs:
                raise Refused(f"{task_record.id} runs no plan", code="no_plan")
            return None

        return await self._journal.wait_until(task, look)

    def stop(self, task: TaskId, *, by: str, reason: str) -> None:
        """Let the task's plan, if it runs one, start no further steps."""
        run = self._runs.get(task)
        if run is None:
            return
        run.stop()
        asked = Event(
            type=events.STOP_REQUESTED,
            by=by,
            summary=shorten(f"stop of the run requested by {by}: {reason}"),
            payload={"reason": reason},
        )
        self._journal.record(task, [asked])

    async def close(self, task: TaskId, *, by: str) -> Task:
        """Close the task; if its plan run is about to end, wait for that.

        Raises:
            Refused: some of its subagents are still working or yet to start.
        """
        task_id = self._records.get_task(task).id
        run = self._runs.get(task_id)
        if run is not None and not run.get_progress().waits_for_answer:
            self._tasks.require_idle(task_id)
            if not run.get_progress().ended:
                raise Refused(
                    f"the plan of {task_id} has not ended",
                    code="task_running",
                    hint=f"wait for its end, or 'retinue task cancel {task_id}'",
                    hints={PYTHON: "wait for its end, or cancel() its subagents"},
                )
            await run.over.wait()
        return await self._tasks.close(task_id, by=by)

    async def join_output(self, task: TaskId, name: str) -> Subagent:
        """Join output that waits for its parent; the subagent then completes or fails.

        The id of a subagent that was joined stands for the newest one that continues it.

        Raises:
            Refused: there is nothing to join, or the run joins it.
        """
        subagent = self._records.get_subagent(task, name)
        newest = self._records.list_lineage(subagent)[-1]
        if newest.standing.state is State.WAITING_FOR_MERGE:
            subagent = newest
        outputs = subagent.contract.outputs
        state = subagent.standing.state
        if state in (State.COMPLETED, State.CLOSED) and subagent.standing.status == "completed":
            return subagent
        if state is not State.WAITING_FOR_MERGE or outputs.in_order:
            why = "joined by its run" if outputs.in_order else subagent.standing.status
            raise Refused(
                f"{subagent.id} is {why}: there is nothing to join now",
                code="not_waiting",
                hint="only output that waits for its parent can be joined",
            )
        summary = f"order of integration: {subagent.id}"
        order = Event(
            type=events.INTEGRATION_ORDER, summary=summary, payload={"order": [subagent.id]}
        )
        self._journal.record(task, [order])
        await self._supervisor.joiner.join(subagent)
        return self._records.get_subagent(task, subagent.id)

    async def detach(self) -> None:
        """Stop driving runs; the next steward resumes them."""
        await self._active.detach(self._supervisor.joins)

    def _begin(self, task: TaskId, assignment: PlanAssignment) -> PlanRun:
        run = self._runs[task] = self._make_run(task, assignment)
        self._active.begin(task, run.run(), over=lambda: self._forget_run(task))
        return run

    def _forget_run(self, task: TaskId) -> None:
        if (run := self._runs.pop(task, None)) is not None:
            run.over.set()

    def _make_assignment(self, plan: Plan, kept: Mapping[str, object]) -> PlanAssignment:
        source = kept.get("source")
        return PlanAssignment(
            plan=plan,
            project=self._project,
            source=Source(**source) if isinstance(source, dict) else None,
            apply=kept.get("apply") is True,
            parent=SubagentId(str(kept["parent"])) if "parent" in kept else None,
            member=str(kept.get("member", "")),
            first=int(str(kept.get("first", 0))),
        )

    async def _find_source(self, request: RunRequest) -> Source:
        """Return the source in the first of the folders that is in a git repository.

        Raises:
            BadInput: none of them is, or the run cannot start from the one found.
        """
        named = request.plan.repository.rstrip("/") != "."
        wanted = {"dirty": request.include_dirty, "apply": request.apply, "named": named}
        first: BadInput | None = None
        for folder in dict.fromkeys(request.folders):
            try:
                place = folder / request.plan.repository
                return await self._sources.find(place, request.plan.ref, **wanted)
            except BadInput as error:
                first = first or error
                if "not in a git repository" not in error.message:
                    raise
        raise first or BadInput("the plan names no folder", code="invalid_plan")

    def _require_staffed(self, plan: Plan, task_config: TaskConfig) -> None:
        """Raises:
        BadInput, Refused: no command or model can do a step, or it names an unknown tool or type.
        """
        for step in plan.steps:
            try:
                staffed = self._contracts.workers.select_workers(to_brief(step), task_config)
                require_known_tools(step.tools or (), staffed.team)
                if staffed.refusal is not None:
                    raise staffed.refusal
            except (BadInput, Refused) as error:
                raise error.about(f"step {step.id}") from None

    def _require_secrets(self, plan: Plan) -> None:
        """Raises:
        Refused: a secret that was handed out to a step cannot be read.
        """
        for step in plan.steps:
            try:
                secrets = parse_secrets(step.secrets, step.env or {}, "secrets")
                self._contracts.require_secrets(secrets, step.redact)
            except Refused as error:
                raise error.about(f"step {step.id}") from None

    def _require_inside(self, plan: Plan) -> None:
        # Security: copied output must not reach outside of the project, nor git's or Retinue's
        # own files.
        private = {".git", self._folders.get_folder(TaskId("x")).parents[1].name}
        project = self._project.resolve()
        for step in (each for each in plan.steps if each.destination):
            place = (project / step.destination).resolve()
            inside = place.is_relative_to(project) and place != project
            if not inside or private & set(place.relative_to(project).parts):
                raise BadInput(
                    f"step {step.id}: destination {step.destination[:80]!a} is not a folder of "
                    "the project",
                    code="invalid_plan",
                )

    async def submit(
        self,
        parent: Subagent,
        plan: Plan,
        document: dict[str, Any],
        task_config: TaskConfig,
        member: str,
    ) -> PlanEnd:
        """Carry out the plan of a team and return its end; the same plan is not started twice.

        Raises:
            BadInput, Refused: the plan is refused; nothing was created.
        """
        # The lock keeps two plans that are submitted together from both starting.
        async with self._submitting:
            run = self.get_run(parent.task)
            if run is None and (before := self._find_ended(parent.task, document)) is not None:
                return self._collect_end(parent.task, plan, before)
            if run is None:
                assignment = await self._make_submitted_assignment(
                    parent, plan, task_config, member
                )
                self._journal.record(parent.task, [_make_submitted_event(assignment, document)])
                run = self._begin(parent.task, assignment)
            elif run.assignment.plan != plan:
                raise Refused(
                    "another plan is under way",
                    code="plan_running",
                    hint="submit this one when that has ended",
                )
        await run.over.wait()
        return self._collect_end(parent.task, plan, dict(run.details))

    def _collect_end(self, task: TaskId, plan: Plan, details: dict[str, Any]) -> PlanEnd:
        never = details.get("not_started") or {}
        started = [step.id for step in order_for_integration(plan) if step.id not in never]
        subagents = [self._records.get_subagent(task, name) for name in started]
        parts = tuple((each, self._records.get_result(each)) for each in subagents)
        return PlanEnd(details=details, parts=parts)

    def _find_ended(self, task: TaskId, document: dict[str, Any]) -> dict[str, Any] | None:
        """Return the recorded end of the same plan, for a team that lost its steward meanwhile."""
        asked = False
        for each in self._records.iter_events(task):
            if each.event.type == events.INTEGRATION_ORDER:
                asked = each.event.payload.get("plan") == document
            elif each.event.type == events.PLAN_ENDED and asked:
                return dict(each.event.payload)
        return None

    def find_last_end(self, task: TaskId) -> dict[str, Any]:
        """Return the end of the newest submitted plan of a task; empty if there was none."""
        found: dict[str, Any] = {}
        for each in self._records.iter_events(task):
            if each.event.type == events.PLAN_ENDED:
                found = dict(each.event.payload)
        return found

    async def _make_submitted_assignment(
        self, parent: Subagent, plan: Plan, task_config: TaskConfig, member: str
    ) -> PlanAssignment:
        team = parent.contract.team
        if team is None or team.delegation is None or not team.delegation.planning:
            raise Refused("planning is not granted by the contract", code="delegation_disabled")
        self._require_staffed(plan, task_config)
        self._require_allowed(parent.task, plan)
        source = await self._find_newest_source(parent.task, plan) if plan.repository else None
        first = self._records.get_task(parent.task).next_step
        return PlanAssignment(
            plan=plan,
            project=self._project,
            source=source,
            parent=parent.id,
            member=member,
            first=first,
        )

    def _require_allowed(self, task: TaskId, plan: Plan) -> None:
        """Raises:
        BadInput: a step's id is taken, or the plan asks for more than a team may decide.
        """
        place = (self._project / plan.repository).resolve()
        if plan.repository and not place.is_relative_to(self._project.resolve()):
            raise BadInput("base.repository is outside of the project", code="invalid_plan")
        if plan.repository:
            # Security: a subagent could have written any other repository, git configuration
            # included.
            self._sources.require_same_repository(place, self._project)
        _require_team_rights(plan)
        for step in plan.steps:
            if step.destination:
                hint = "leave destination out: it is copied to the task's shared output"
                raise BadInput(
                    f"step {step.id}: only a user can choose a destination",
                    code="invalid_plan",
                    hint=hint,
                )
            try:
                self._records.get_subagent(task, step.id)
            except NotFound:
                continue
            hint = "choose ids that no subagent of this run has had"
            raise BadInput(f"step id {step.id} is taken", code="duplicate_id", hint=hint)

    async def _find_newest_source(self, task: TaskId, plan: Plan) -> Source:
        """Return the project's commit as source, or the tip of what this run joined before."""
        place = self._project / plan.repository
        found = await self._sources.find(place, plan.ref, dirty=False, apply=False)
        source = await self._sources.open(task, found, dirty=False)
        tip = await self._sources.find_tip(task, source.repository, name_branch(task))
        return replace(source, commit=tip or source.commit)


def _is_assignment(event: Event) -> bool:
    return event.type == events.INTEGRATION_ORDER and "plan" in event.payload


def _make_order_event(request: RunRequest, source: Source | None, branch: str) -> Event:
    order = [step.id for step in order_for_integration(request.plan)]
    payload: dict[str, object] = {
        "order": order,
        "reserved": len(order),
        "plan": dict(request.document),
        "apply": request.apply,
    }
    if request.retry_of:
        payload["retry_of"] = request.retry_of
    if source is not None:
        payload |= {"source": asdict(source), "base": source.commit, "branch": branch}
    return Event(
        type=events.INTEGRATION_ORDER,
        by=request.by,
        summary=shorten(f"order of integration: {', '.join(order)}"),
        payload=payload,
    )


@dataclass(frozen=True, kw_only=True)
class PlanEnd:
    """The end of a submitted plan."""

    details: dict[str, Any]
    parts: tuple[tuple[Subagent, Result | None], ...]  # in plan order; only those that started


def _require_team_rights(plan: Plan) -> None:
    """Raises:
    BadInput: the plan lifts a restriction or asks for secrets, which only a user may do.
    """
    secret = next((step.id for step in plan.steps if step.secrets), None)
    if secret is not None:
        raise BadInput(
            f"step {secret}: only a user can give secrets",
            code="invalid_plan",
            hint="leave secrets out, or ask the user to run this plan",
        )
    lifted = next(((step.id, step.allow[0]) for step in plan.steps if step.allow), None)
    if lifted is not None:
        raise BadInput(
            f"step {lifted[0]}: only a user can allow {lifted[1]}",
            code="invalid_plan",
            hint="leave allow out: the plan of a team may deliver only plain files without secrets",
        )
    if plan.max_file_mb is not None and plan.max_file_mb > MAX_FILE_MB:
        raise BadInput(
            f"max_file_mb: only a user can allow more than {MAX_FILE_MB:g}",
            code="invalid_plan",
            hint=f"leave it out, or name at most {MAX_FILE_MB:g}",
        )


def _make_submitted_event(assignment: PlanAssignment, document: dict[str, Any]) -> Event:
    order = [step.id for step in order_for_integration(assignment.plan)]
    payload: dict[str, object] = {
        "order": order,
        "reserved": assignment.first + len(order),
        "plan": document,
        "parent": assignment.parent,
        "member": assignment.member,
        "first": assignment.first,
    }
    if assignment.source is not None:
        payload["source"] = asdict(assignment.source)
    summary = shorten(f"{assignment.parent} submits a plan, to be joined as {', '.join(order)}")
    return Event(type=events.INTEGRATION_ORDER, by="child", summary=summary, payload=payload)
