"""Team runs: a root team works on a prompt, delegates and answers; then the task is closed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from retinue.core.brief import Brief
from retinue.core.contract import (
    ROOT,
    Contract,
    Execution,
    Parent,
    Permissions,
    Step,
    Team,
    require_reachable,
    require_sound,
)
from retinue.core.errors import BadInput, NotFound, Refused, RetinueError
from retinue.core.events import shorten
from retinue.core.ids import SubagentId, TaskId
from retinue.core.policy import NewConfig, TaskConfig
from retinue.core.subagent import Draft, Subagent, Task
from retinue.ports import Admission, Tasks
from retinue.steward.plan_run import RunServices
from retinue.steward.plan_service import SubmittedPlans
from retinue.steward.run_loop import ActiveRuns, run_to_end
from retinue.steward.task_service import JoinedTask, TaskService
from retinue.steward.team_staffing import list_usual_tools

HERE = "./"


@dataclass(frozen=True, kw_only=True)
class TeamRunRequest:
    """A call to start a team run."""

    prompt: str
    config: NewConfig
    policy: TaskConfig  # parsed from `config`
    base: Path  # the caller's folder, which the team may read
    by: str = "user"


class TeamRunService:
    """Team runs of the root: at most one in each task."""

    def __init__(
        self, hands: RunServices, verbs: TaskService, tasks: Tasks, submitted: SubmittedPlans
    ) -> None:
        self.submitted = submitted
        self._hands = hands
        self._verbs = verbs
        self._tasks = tasks
        self._driven = ActiveRuns(hands.journal, hands.complain)

    async def start(self, request: TeamRunRequest) -> Task:
        """Create a task and start its team; the task closes at the end of the run.

        Raises:
            BadInput, Refused, IsolationUnavailable: the run is refused; nothing was created.
        """
        if not request.prompt.strip():
            raise BadInput("a run needs a prompt", code="invalid_request")
        hands = self._hands
        config = request.policy
        team, remark = hands.binder.crew.select_root_team(config)
        boundary = await hands.binder.decide_boundary(config)
        require_reachable(team, boundary)
        # The scan of a large folder would block the event loop: use a thread.
        around = Brief(context_paths=[HERE])
        context = await asyncio.to_thread(
            self._tasks.resolve_contexts, around, request.base, config, None
        )
        context = await hands.binder.hide_server_paths(context, team.servers)
        title = shorten(request.prompt, 80)
        task = self._verbs.create(title=title, description=request.prompt, config=request.config)
        contract = Contract(
            parent=Parent(run_id=task.run, step_idx=0, task_prompt=title, goal_summary=title),
            step=Step(title=title, description=request.prompt),
            permissions=_make_permissions(config, team),
            execution=_make_execution(config),
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
            # Leave no open task behind that nothing would ever close.
            await self._verbs.close(task.id, by=request.by)
            raise
        hands.supervisor.pump(task.id)
        self._begin(task.id)
        return task

    def resume(self, task: TaskId) -> None:
        """Go on with the task's team run, if it has one."""
        if self.find_root_team(task) is not None:
            self._begin(task)

    async def detach(self) -> None:
        """Stop driving runs; the next steward resumes them."""
        await self._driven.detach()

    def find_root_team(self, task: TaskId) -> Subagent | None:
        """Return the root team of the task, or None if the task has none."""
        try:
            known = self._hands.records.get_subagent(task, ROOT)
        except NotFound:
            return None
        return known if known.contract.is_root else None

    async def wait(self, task: TaskId) -> JoinedTask:
        """Wait until the run is closed or its team has questions; return all results.

        Raises:
            Refused: the task has no team run, or its run failed to reach an end.
        """

        def look() -> JoinedTask | None:
            root = self.find_root_team(task)
            asks = root is not None and root.standing.blocked
            if asks or self._hands.records.get_task(task).state == "closed":
                joined = self._verbs.join(task)
                if asks:
                    details = self.submitted.find_last_end(task)
                    joined = replace(joined, outcome="blocked", details=details)
                return joined
            if root is None or task not in self._driven:
                why = "was not started with a team" if root is None else "has no active run"
                raise Refused(f"{task} {why}", code="no_run")
            return None

        return await self._hands.journal.wait_until(task, look)

    def _begin(self, task: TaskId) -> None:
        hands = self._hands
        course = run_to_end(task, partial(self._advance, task), hands.journal, hands.complain)
        self._driven.begin(task, course, over=lambda: None)

    async def _advance(self, task: TaskId) -> bool:
        """Close the run once no subagent works and the team asks nothing; return whether it is."""
        records = self._hands.records
        if records.get_task(task).state == "closed":
            return True
        root = records.get_subagent(task, ROOT)
        if root.standing.blocked or root.standing.holds_slot or self.submitted.is_busy(task):
            return False
        if any(each.standing.holds_slot for each in records.list_unclosed(task)):
            return False
        try:
            await self._verbs.close(task, by="steward", details=self.submitted.find_last_end(task))
        except Refused:
            # A subagent was spawned meanwhile: wait for its end first.
            return False
        return True


def _make_permissions(config: TaskConfig, team: Team) -> Permissions:
    return Permissions(
        allowed_tools=list_usual_tools(config.crew.servers),
        can_spawn_children=team.delegation is not None,
        max_delegation_depth=int(team.delegation is not None),
    )


def _make_execution(config: TaskConfig) -> Execution:
    # The team may work as long as a caller waits for its run.
    return Execution(
        attempt_timeout_ms=round(config.wait_timeout_seconds * 1000),
        max_retries=0,
        cancel_grace_ms=config.graces_ms,
        output_limit_bytes=config.output_limit_bytes,
        grace_turn_ms=config.grace_turn_ms,
    )
