"""A run that a team is started with: it works, delegates, and answers; then all is closed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retinue.domain.brief import Brief
from retinue.domain.contract import (
    ROOT,
    Contract,
    Execution,
    Parent,
    Permissions,
    Step,
    require_reachable,
    require_sound,
)
from retinue.domain.errors import BadInput, NotFound, Refused
from retinue.domain.event import shorten
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.policy import TaskConfig
from retinue.domain.subagent import Draft, Subagent, Task
from retinue.ports import Admission, NewConfig, Tasks
from retinue.service.crew import tools_of
from retinue.service.planrun import Hands
from retinue.service.plans import RunEnd
from retinue.service.submitted import SubmittedPlans
from retinue.service.tasks import TaskVerbs

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

    async def start(self, request: RootRequest) -> Task:
        """The run exists, and its team is on its way.

        Raises:
            BadInput, IsolationUnavailable: why not; nothing exists.
        """
        if not request.prompt.strip():
            raise BadInput("a run needs a prompt", code="invalid_request")
        hands, config = self._hands, request.policy
        team = hands.binder.crew.root(config)
        boundary = await hands.binder.boundary(config)
        require_reachable(team, boundary)
        around = Brief(context_paths=[HERE])
        context = self._tasks.contexts(around, request.base.resolve(), config, None)
        title = shorten(request.prompt, 80)
        task = self._verbs.create(title=title, description=request.prompt, config=request.config)
        contract = Contract(
            parent=Parent(run_id=task.run, step_idx=0, task_prompt=title, goal_summary=title),
            step=Step(title=title, description=request.prompt),
            permissions=Permissions(
                allowed_tools=tools_of(config.crew.servers),
                can_spawn_children=team.delegation is not None,
                max_delegation_depth=int(team.delegation is not None),
            ),
            execution=_terms(config),
            context=context,
            boundary=boundary,
            agent=ROOT,
            team=team,
        )
        require_sound(contract)
        draft = Draft(id=SubagentId(ROOT), contract=contract)
        hands.journal.admit(task.id, Admission(drafts=(draft,), by=request.by, limit=1))
        hands.supervisor.pump(task.id)
        return task

    def root_of(self, task: TaskId) -> Subagent | None:
        """The team that the task's run was started with, if it was."""
        try:
            known = self._hands.records.subagent(task, ROOT)
        except NotFound:
            return None
        return known if known.contract.is_root else None

    async def wait(self, task: TaskId) -> RunEnd:
        """What became of the run. It is closed, unless its team has questions.

        Raises:
            Refused: the task was not started as one.
        """
        hands = self._hands
        while True:
            change = hands.journal.next_change(task)
            root = self.root_of(task)
            if root is None:
                change.cancel()
                raise Refused(f"{task} was not started with a team", code="no_run")
            open_ones = hands.records.unclosed(task)
            working = any(each.standing.holds_slot for each in open_ones)
            if root.standing.blocked or not (working or self.submitted.is_busy(task)):
                change.cancel()
                break
            await change
        known = hands.records.task(task)
        if not root.standing.blocked:
            known = await self._verbs.close(task, by="steward")
        joined = self._verbs.join(task)
        return RunEnd(
            task=known,
            outcome="blocked" if root.standing.blocked else str(known.outcome),
            details=self.submitted.last(task),
            parts=joined.parts,
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
