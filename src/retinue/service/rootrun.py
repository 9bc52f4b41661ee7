"""A run that a team is started with: it works, delegates, and answers; then all is closed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from retinue.domain.brief import Brief
from retinue.domain.contract import ROOT, Contract, Execution, Parent, Permissions, Step, Team
from retinue.domain.errors import BadInput, NotFound, Refused, RetinueError
from retinue.domain.event import shorten
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.policy import NewConfig, TaskConfig
from retinue.domain.soundness import require_reachable, require_sound
from retinue.domain.subagent import Draft, Subagent, Task
from retinue.ports import Admission, Tasks
from retinue.service.crew import tools_of
from retinue.service.driving import Driven, drive
from retinue.service.planrun import Hands
from retinue.service.submitted import SubmittedPlans
from retinue.service.tasks import Joined, TaskVerbs

HERE = "./"


@dataclass(frozen=True, kw_only=True)
class RootRequest:
    prompt: str
    config: NewConfig
    policy: TaskConfig  # what that configuration decides
    base: Path  # the folder that it is asked in, which it may read
    by: str = "user"


class RootRuns:
    def __init__(
        self, hands: Hands, verbs: TaskVerbs, tasks: Tasks, submitted: SubmittedPlans
    ) -> None:
        self.submitted = submitted
        self._hands = hands
        self._verbs = verbs
        self._tasks = tasks
        self._driven = Driven(hands.journal, hands.complain)

    async def start(self, request: RootRequest) -> Task:
        """The run exists, and its team is on its way; it is closed at its end, awaited or not.

        Raises:
            BadInput, Refused, IsolationUnavailable: why not; nothing exists.
        """
        if not request.prompt.strip():
            raise BadInput("a run needs a prompt", code="invalid_request")
        hands, config = self._hands, request.policy
        team, remark = hands.binder.crew.root(config)
        boundary = await hands.binder.boundary(config)
        require_reachable(team, boundary)
        around = Brief(context_paths=[HERE])
        context = self._tasks.contexts(around, request.base.resolve(), config, None)
        title = shorten(request.prompt, 80)
        task = self._verbs.create(title=title, description=request.prompt, config=request.config)
        contract = Contract(
            parent=Parent(run_id=task.run, step_idx=0, task_prompt=title, goal_summary=title),
            step=Step(title=title, description=request.prompt),
            permissions=_permissions(config, team),
            execution=_terms(config),
            context=context,
            boundary=boundary,
            agent=ROOT,
            team=team,
            remark=remark,
        )
        require_sound(contract)
        draft = Draft(id=SubagentId(ROOT), contract=contract)
        try:
            hands.journal.admit(task.id, Admission(drafts=(draft,), by=request.by, limit=1))
        except RetinueError:
            await self._verbs.close(task.id, by=request.by)
            raise
        hands.supervisor.pump(task.id)
        self._begin(task.id)
        return task

    def resume(self, task: TaskId) -> None:
        """A run that an earlier holder left open goes on to its end; nothing if it was none."""
        if self.root_of(task) is not None:
            self._begin(task)

    async def detach(self) -> None:
        """No run is driven any more; the next holder of the root takes them up again."""
        await self._driven.detach()

    def root_of(self, task: TaskId) -> Subagent | None:
        """The team that the task's run was started with, if it was."""
        try:
            known = self._hands.records.subagent(task, ROOT)
        except NotFound:
            return None
        return known if known.contract.is_root else None

    async def wait(self, task: TaskId) -> Joined:
        """What became of the run. It is closed, unless its team has questions.

        Raises:
            Refused: the task was not started as one, or nobody drives it.
        """

        def look() -> Joined | None:
            root = self.root_of(task)
            asks = root is not None and root.standing.blocked
            if asks or self._hands.records.task(task).state == "closed":
                joined = self._verbs.join(task)
                if asks:
                    details = self.submitted.last(task)
                    joined = replace(joined, outcome="blocked", details=details)
                return joined
            if root is None or task not in self._driven:
                why = "was not started with a team" if root is None else "came to no end"
                raise Refused(f"{task} {why}", code="no_run")
            return None

        return await self._hands.journal.until(task, look)

    def _begin(self, task: TaskId) -> None:
        hands = self._hands
        course = drive(task, partial(self._advance, task), hands.journal, hands.complain)
        self._driven.begin(task, course, over=lambda: None)

    async def _advance(self, task: TaskId) -> bool:
        """Whether the run is closed: it is, once nobody works in it and its team asks nothing."""
        records = self._hands.records
        if records.task(task).state == "closed":
            return True
        root = records.subagent(task, ROOT)
        if root.standing.blocked or root.standing.holds_slot or self.submitted.is_busy(task):
            return False
        if any(each.standing.holds_slot for each in records.unclosed(task)):
            return False
        try:
            await self._verbs.close(task, by="steward", details=self.submitted.last(task))
        except Refused:  # somebody was spawned meanwhile, whose end comes first
            return False
        return True


def _permissions(config: TaskConfig, team: Team) -> Permissions:
    return Permissions(
        allowed_tools=tools_of(config.crew.servers),
        can_spawn_children=team.delegation is not None,
        max_delegation_depth=int(team.delegation is not None),
    )


def _terms(config: TaskConfig) -> Execution:
    """It has as much time as anybody would wait for it."""
    return Execution(
        attempt_timeout_ms=round(config.wait_timeout_seconds * 1000),
        max_retries=0,
        cancel_grace_ms=config.graces_ms,
        output_limit_bytes=config.output_limit_bytes,
        grace_turn_ms=config.grace_turn_ms,
    )
