"""Team runs: a root team works on a prompt, delegates and answers; then the task is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
from retinue.core.ids import SubagentId, TaskId
from retinue.core.safe_text import shorten
from retinue.core.subagent import Draft, Subagent, Task
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.ports import Admission, Tasks
from retinue.steward.agent_staffing import require_agents_reach_models
from retinue.steward.contract_factory import ContractFactory, list_program_folders
from retinue.steward.journal import ActiveRuns, Journal, run_to_end
from retinue.steward.plan_service import PlanService
from retinue.steward.scheduler import Supervisor
from retinue.steward.task_service import JoinedTask, TaskService
from retinue.steward.team_staffing import list_default_tools
from retinue.store.reads import Records

HERE = "./"


@dataclass(frozen=True, kw_only=True)
class TeamRunRequest:
    """A call to start a team run."""

    prompt: str
    config: NewConfig
    task_config: TaskConfig  # parsed from `config`
    base: Path  # the caller's folder, which the team may read
    by: str = "user"


class TeamRunService:
    """Team runs of the root: at most one in each task."""

    def __init__(
        self,
        *,
        journal: Journal,
        records: Records,
        folders: Tasks,
        supervisor: Supervisor,
        contracts: ContractFactory,
        tasks: TaskService,
        plans: PlanService,
        complain: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._records = records
        self._folders = folders
        self._supervisor = supervisor
        self._contracts = contracts
        self._tasks = tasks
        self._plans = plans
        self._complain = complain
        self._active = ActiveRuns(journal, complain)

    async def start(self, request: TeamRunRequest) -> Task:
        """Create a task and start its team; the task closes at the end of the run.

        Raises:
            BadInput, Refused, IsolationUnavailable: the run is refused; nothing was created.
        """
        if not request.prompt.strip():
            raise BadInput("a run needs a prompt", code="invalid_request")
        config = request.task_config
        team, remark = self._contracts.workers.select_root_team(config)
        boundary = await self._contracts.decide_boundary(config)
        require_reachable(team, boundary)
        require_agents_reach_models(team.members, boundary)
        # The scan of a large folder would block the event loop: use a thread.
        brief = Brief(context_paths=[HERE])
        context = await asyncio.to_thread(
            self._folders.resolve_contexts, brief, request.base, config, None
        )
        context = await self._contracts.hide_in_programs(context, list_program_folders(team))
        title = shorten(request.prompt, 80)
        task = self._tasks.create(title=title, description=request.prompt, config=request.config)
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
            self._journal.admit(task.id, Admission(drafts=(draft,), by=request.by, limit=1))
        except RetinueError:
            # Leave no open task behind that nothing would ever close.
            await self._tasks.close(task.id, by=request.by)
            raise
        self._supervisor.pump(task.id)
        self._begin(task.id)
        return task

    def resume(self, task: TaskId) -> None:
        """Go on with the task's team run, if it has one."""
        if self.find_root_team(task) is not None:
            self._begin(task)

    async def detach(self) -> None:
        """Stop driving runs; the next steward resumes them."""
        await self._active.detach()

    def find_root_team(self, task: TaskId) -> Subagent | None:
        """Return the root team of the task, or None if the task has none."""
        try:
            subagent = self._records.get_subagent(task, ROOT)
        except NotFound:
            return None
        return subagent if subagent.contract.is_root else None

    async def wait(self, task: TaskId) -> JoinedTask:
        """Wait until the run is closed or its team has questions; return all results.

        Raises:
            Refused: the task has no team run, or its run failed to reach an end.
        """

        def look() -> JoinedTask | None:
            root = self.find_root_team(task)
            asks = root is not None and root.standing.blocked
            if asks or self._records.get_task(task).state == "closed":
                joined = self._tasks.join(task)
                if asks:
                    details = self._plans.find_last_end(task)
                    joined = replace(joined, outcome="blocked", details=details)
                return joined
            if root is None or task not in self._active:
                why = "was not started with a team" if root is None else "has no active run"
                raise Refused(f"{task} {why}", code="no_run")
            return None

        return await self._journal.wait_until(task, look)

    def _begin(self, task: TaskId) -> None:
        course = run_to_end(task, partial(self._advance, task), self._journal, self._complain)
        self._active.begin(task, course, over=lambda: None)

    async def _advance(self, task: TaskId) -> bool:
        """Close the run once no subagent works and the team asks nothing; return whether it is."""
        records = self._records
        if records.get_task(task).state == "closed":
            return True
        root = records.get_subagent(task, ROOT)
        if root.standing.blocked or root.standing.holds_slot:
            return False
        if self._plans.get_run(task) is not None:
            return False
        if any(each.standing.holds_slot for each in records.list_unclosed(task)):
            return False
        try:
            await self._tasks.close(task, by="steward", details=self._plans.find_last_end(task))
        except Refused:
            # A subagent was spawned meanwhile: wait for its end first.
            return False
        return True


def _make_permissions(config: TaskConfig, team: Team) -> Permissions:
    return Permissions(
        allowed_tools=list_default_tools(config.crew.servers),
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
