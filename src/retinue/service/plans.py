"""Plans: runs that are started, awaited, stopped, and taken up again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from retinue.domain import event as events
from retinue.domain.errors import BadInput, Refused, RetinueError
from retinue.domain.event import Event, shorten
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.join import Source
from retinue.domain.lifecycle import State
from retinue.domain.plan import Plan, brief_of, integration_order
from retinue.domain.policy import NewConfig, TaskConfig
from retinue.domain.soundness import require_known_tools
from retinue.domain.subagent import Subagent, Task
from retinue.ports import Tasks
from retinue.service.driving import Driven
from retinue.service.planrun import Commission, Hands, PlanRun
from retinue.service.sources import branch_of
from retinue.service.tasks import Joined, TaskVerbs, every_event

FIRST_EVENTS = 10  # among which a run's commission is

PlanReader = Callable[[object], Plan]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A call to carry out a plan."""

    plan: Plan
    document: Mapping[str, object]  # the plan as it is kept
    folders: tuple[Path, ...]  # what its repository is relative to: the first that has one
    config: NewConfig
    policy: TaskConfig  # what that configuration decides
    by: str = "user"
    apply: bool = False
    include_dirty: bool = False


class Plans:
    def __init__(self, hands: Hands, verbs: TaskVerbs, tasks: Tasks, project: Path) -> None:
        self._hands = hands
        self._verbs = verbs
        self._tasks = tasks
        self._project = project
        self._runs: dict[TaskId, PlanRun] = {}
        self._driven = Driven(hands.journal, hands.complain)

    async def start(self, request: RunRequest) -> Task:
        """The run exists and is under way.

        Raises:
            BadInput, IsolationUnavailable: why not; nothing exists.
        """
        plan = request.plan
        self.require_staffed(plan, request.policy)
        self._require_inside(plan)
        await self._hands.binder.boundary(request.policy)
        source = await self._source(request) if plan.repository else None
        task = self._verbs.create(title=shorten(plan.goal, 500), config=request.config)
        try:
            if source is not None:
                source = await self._hands.sources.open(
                    task.id, source, dirty=request.include_dirty
                )
            kept = _kept(request, source, branch_of(task.id))
            self._hands.journal.record(task.id, [kept])
        except (RetinueError, asyncio.CancelledError):  # or whoever asked is gone
            await self._verbs.close(task.id, by=request.by)
            raise
        self.begin(task.id, self._commission(plan, kept.payload))
        return task

    def resume(self, task: TaskId, plan_of: PlanReader, left: Sequence[Subagent]) -> None:
        """A run that was under way goes on; nothing where there was none, or where only another
        version could go on with it.

        Args:
            left: who was open in the task when it was taken up again.
        """
        kept = self._unfinished(task, left)
        if kept is None:
            return
        try:
            plan = plan_of(kept["plan"])
        except BadInput as error:
            self._hands.complain(f"run of {task}: left as it is: {error.message}")
            return
        run = self.begin(task, self._commission(plan, kept))
        told = every_event(self._hands.records, task)
        if any(each.event.type == events.STOP_REQUESTED for each in told):
            run.stop()

    def under_way(self, task: TaskId) -> PlanRun | None:
        return self._runs.get(task)

    def _unfinished(self, task: TaskId, left: Sequence[Subagent]) -> Mapping[str, object] | None:
        """What the plan of the task, or one that a team submitted in it, was asked to do."""
        records = self._hands.records
        first = records.events(task, after=0, limit=FIRST_EVENTS)
        found = [e.event.payload for e in first if _is_commission(e.event)]
        if found and "parent" not in found[0]:
            return found[0]
        above = [e.id for e in left if e.contract.is_root or e.contract.delegated_by]
        if all(records.subagent(task, name).standing.state is State.CLOSED for name in above):
            return None
        newest: Mapping[str, object] | None = None
        for each in every_event(records, task):
            if _is_commission(each.event):
                newest = each.event.payload
            elif each.event.type == events.PLAN_ENDED:
                newest = None
        return newest

    async def wait(self, task: TaskId) -> Joined:
        """What became of a run.

        Raises:
            Refused: the task has no run of a plan that is under way or has ended.
        """

        def look() -> Joined | None:
            known = self._hands.records.task(task)
            if known.state == "closed":
                return self._verbs.join(known.id)
            if known.id not in self._runs:
                raise Refused(f"{known.id} runs no plan", code="no_plan")
            return None

        return await self._hands.journal.until(task, look)

    def stop(self, task: TaskId, *, by: str, reason: str) -> None:
        """A run starts nobody new; nothing where there is none."""
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
        self._hands.journal.record(task, [asked])

    async def close(self, task: TaskId, *, by: str) -> Task:
        """The task is closed; by its run, where that is about to end by itself.

        Raises:
            Refused: some of its subagents still work, or are about to.
        """
        known = self._hands.records.task(task).id
        run = self._runs.get(known)
        if run is not None and not run.course().asks:
            self._verbs.require_idle(known)
            if not run.course().ended:
                raise Refused(
                    f"the plan of {known} is not carried out yet",
                    code="task_running",
                    hint=f"wait for its end, or 'retinue task cancel {known}'",
                )
            await run.over.wait()
        return await self._verbs.close(known, by=by)

    async def integrate(self, task: TaskId, name: str) -> Subagent:
        """Output that waited for its parent is joined, or its subagent has failed by that.

        Raises:
            Refused: there is nothing to join, or it is joined by its run.
        """
        known = self._hands.records.subagent(task, name)
        outputs, state = known.contract.outputs, known.standing.state
        if state in (State.COMPLETED, State.CLOSED) and known.standing.status == "completed":
            return known
        if state is not State.WAITING_FOR_MERGE or outputs.in_order:
            why = "joined by its run" if outputs.in_order else known.standing.status
            raise Refused(
                f"{known.id} is {why}: there is nothing to join now",
                code="not_waiting",
                hint="only output that waits for its parent can be joined",
            )
        summary = f"order of integration: {known.id}"
        order = Event(type=events.INTEGRATION_ORDER, summary=summary, payload={"order": [known.id]})
        self._hands.journal.record(task, [order])
        await self._hands.supervisor.joiner.join(known)
        return self._hands.records.subagent(task, name)

    async def detach(self) -> None:
        """No run is driven any more; the next holder of the root takes them up again."""
        await self._driven.detach(self._hands.supervisor.errands)

    def begin(self, task: TaskId, commission: Commission) -> PlanRun:
        run = self._runs[task] = PlanRun(task, commission, self._hands)
        self._driven.begin(task, run.run(), over=lambda: self._over(task))
        return run

    def _over(self, task: TaskId) -> None:
        if (run := self._runs.pop(task, None)) is not None:
            run.over.set()

    def _commission(self, plan: Plan, kept: Mapping[str, object]) -> Commission:
        source = kept.get("source")
        return Commission(
            plan=plan,
            project=self._project,
            source=Source(**source) if isinstance(source, dict) else None,
            apply=kept.get("apply") is True,
            parent=SubagentId(str(kept["parent"])) if "parent" in kept else None,
            member=str(kept.get("member", "")),
            first=int(str(kept.get("first", 0))),
        )

    async def _source(self, request: RunRequest) -> Source:
        """Raises:
        BadInput: no folder has a repository that the run could start from.
        """
        wanted = {"dirty": request.include_dirty, "apply": request.apply}
        first: BadInput | None = None
        for folder in dict.fromkeys(request.folders):
            try:
                place = folder / request.plan.repository
                return await self._hands.sources.find(place, request.plan.ref, **wanted)
            except BadInput as error:
                first = first or error
                if "not in a git repository" not in error.message:
                    raise
        raise first or BadInput("the plan names no folder", code="invalid_plan")

    def require_staffed(self, plan: Plan, policy: TaskConfig) -> None:
        """Raises:
        BadInput, Refused: nobody is there to do a step, or it asks for what is not known.
        """
        for step in plan.steps:
            try:
                staffed = self._hands.binder.crew.staffed(brief_of(step), policy)
                require_known_tools(step.tools or (), staffed.team)
                if staffed.refusal is not None:
                    raise staffed.refusal
            except (BadInput, Refused) as error:
                told = f"step {step.id}: {error.message}"
                raise type(error)(told, code=error.code, hint=error.hint) from None

    def _require_inside(self, plan: Plan) -> None:
        private = {".git", self._tasks.folder(TaskId("x")).parents[1].name}
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


def _is_commission(event: Event) -> bool:
    return event.type == events.INTEGRATION_ORDER and "plan" in event.payload


def _kept(request: RunRequest, source: Source | None, branch: str) -> Event:
    order = [step.id for step in integration_order(request.plan)]
    payload: dict[str, object] = {
        "order": order,
        "reserved": len(order),
        "plan": dict(request.document),
        "apply": request.apply,
    }
    if source is not None:
        payload |= {"source": asdict(source), "base": source.commit, "branch": branch}
    return Event(
        type=events.INTEGRATION_ORDER,
        by=request.by,
        summary=shorten(f"order of integration: {', '.join(order)}"),
        payload=payload,
    )
