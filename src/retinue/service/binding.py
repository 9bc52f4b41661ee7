"""Binding: what a parent asks for becomes contracts, checked in every way that needs no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retinue.domain.boundary import ISOLATED, Boundary, resolve_mode
from retinue.domain.brief import Brief
from retinue.domain.budget import Budget
from retinue.domain.contract import (
    NO_DELEGATION,
    Caller,
    Contract,
    Execution,
    Outputs,
    Parent,
    Permissions,
    Step,
    Team,
)
from retinue.domain.errors import BadInput, Refused
from retinue.domain.event import shorten
from retinue.domain.ids import SubagentId, require_id
from retinue.domain.join import Source
from retinue.domain.plan import INTEGRATIONS
from retinue.domain.policy import TaskConfig
from retinue.domain.soundness import require_narrower, require_reachable, require_sound
from retinue.domain.subagent import Draft, Subagent, Task
from retinue.ports import Admission, Runtime, Tasks
from retinue.service.crew import Crew, tools_of
from retinue.service.sources import branch_of, merged_into

MAX_QUEUED_PER_CALL = 1000
MAX_GOAL = 1000


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call to spawn, with where it comes from."""

    briefs: Sequence[Brief]
    base: Path  # what relative context paths are relative to
    by: str = "user"
    parent: Subagent | None = None  # the subagent that delegates in its turn
    member: str = ""  # which of its team does, as far as it is known
    key: str = ""
    sha256: str = ""
    queue: bool = False
    caller: Caller | None = None  # the program that asks, as far as it is known
    again: bool = False  # an id that exists, with the same work, is that subagent
    background: bool = False  # nobody waits for the results

    @property
    def goal(self) -> str:
        """What the call is for, as far as its own words tell."""
        return shorten("; ".join(brief.heading for brief in self.briefs), MAX_GOAL)


def require_background(config: TaskConfig) -> None:
    """Raises:
    Refused: somebody has to wait for whatever works.
    """
    if not config.background_enabled:
        raise Refused(
            "background work is disabled by the configuration",
            code="background_disabled",
            hint="wait for the results (at a shell --wait, over MCP leave background out, in"
            " Python run()), or set background_subagents.enabled to true",
        )


class Binder:
    def __init__(
        self,
        tasks: Tasks,
        runtime: Runtime,
        crew: Crew,
        *,
        in_container: bool,
        left: Callable[[Subagent], Budget],
        source: Callable[[], Awaitable[Source]],
    ) -> None:
        self._tasks = tasks
        self._runtime = runtime
        self.crew = crew
        self._in_container = in_container
        self._left = left  # of what a subagent may spend
        self._source = source  # what is merged starts from, where there is no plan

    async def bind(self, task: Task, request: Request) -> Admission:
        """The whole call as contracts that are sound, and no wider than their parent's.

        Raises:
            BadInput, Refused, IsolationUnavailable: why not; nothing exists.
        """
        if (
            request.parent is not None
            and not request.parent.contract.permissions.can_spawn_children
        ):
            raise Refused(NO_DELEGATION, code="delegation_disabled")
        config = self._tasks.config(task.id)
        if request.background:
            require_background(config)
        queue = request.queue or config.admission == "queue"
        _require_fitting(request, MAX_QUEUED_PER_CALL if queue else config.max_concurrent)
        boundary = await self.boundary(config)
        request = replace(request, base=_where(request))
        drafts = [self._draft(task, config, brief, request, boundary) for brief in request.briefs]
        if any(brief.integration == "merge" for brief in request.briefs):
            source = await self._source()
            drafts = [merged_into(draft, source, branch_of(task.id)) for draft in drafts]
        return Admission(
            drafts=tuple(drafts),
            by=request.by,
            limit=config.max_concurrent,
            queue=queue,
            key=request.key,
            request_sha256=request.sha256,
            again=request.again,
        )

    def again(self, contract: Contract, parent: Subagent) -> Contract:
        """That of a successor, whose parent may have less left than when it was first bound."""
        return _delegated(contract, parent, self._left(parent).shared(2))

    async def boundary(self, config: TaskConfig) -> Boundary:
        """What is in force for the children of this call.

        Raises:
            IsolationUnavailable: less than was asked for.
        """
        missing = None
        if config.runtime_mode == ISOLATED:
            missing = await self._runtime.isolation_missing(config.launch_prefix)
        mode, warning = resolve_mode(
            config.runtime_mode,
            config.runtime_fallback,
            missing,
            contained_codex=config.codex and self._in_container,
        )
        return Boundary(
            mode=mode,
            network=config.network,
            workspaces=config.workspaces,
            limits=config.limits,
            launch_prefix=config.launch_prefix if mode == config.runtime_mode else (),
            warning=warning,
        )

    def _draft(
        self, task: Task, config: TaskConfig, brief: Brief, request: Request, boundary: Boundary
    ) -> Draft:
        name = None if brief.id is None else SubagentId(require_id(brief.id, "subagent id"))
        staffed = self.crew.staffed(brief, config, _spawner(request))
        _require_joinable(brief, request)
        if staffed.team is not None:
            require_reachable(staffed.team, boundary)
        contract = Contract(
            parent=_parent(task, request),
            step=Step(
                title=brief.heading,
                description=brief.text or " ".join(brief.argv),
                success_criteria=tuple(brief.success_criteria),
            ),
            permissions=_permissions(brief, staffed.team, request.parent),
            execution=_terms(brief, config),
            outputs=Outputs(
                report_path_pattern=brief.report_path_pattern, integration=brief.integration
            ),
            context=self._tasks.contexts(brief, request.base, config, request.parent),
            boundary=boundary,
            budget=config.budget,
            agent=brief.type or ("command" if staffed.team is None else "team"),
            command=staffed.command,
            foreword=staffed.foreword,
            team=staffed.team,
            remark=staffed.remark,
            skills=staffed.skills,
        )
        require_sound(contract)
        if request.parent is not None:
            # The parent keeps as much as it gives to each.
            share = self._left(request.parent).shared(len(request.briefs) + 1)
            contract = _delegated(contract, request.parent, share)
            contract = replace(contract, sent_by=request.member)
        return Draft(id=name, contract=contract, refusal=staffed.refusal)


def _spawner(request: Request) -> str:
    """Which of the configured ones delegates: it has said so, or is alone in its team."""
    if request.parent is None:
        return ""
    members = request.parent.contract.named_members(request.parent.id)
    known = [who for name, who in members if request.member in (name, "")]
    return known[0].route if len(known) == 1 else ""


def _require_joinable(brief: Brief, request: Request) -> None:
    if brief.integration not in INTEGRATIONS:
        raise BadInput(
            f"unknown integration {brief.integration[:40]!a}",
            code="unknown_integration",
            hint=f"known: {', '.join(INTEGRATIONS)}",
        )
    if brief.integration != "none" and request.parent is not None:
        raise Refused("a subagent joins the output of its own subagents itself")


def _require_fitting(request: Request, most: int) -> None:
    if len(request.briefs) > most:
        raise BadInput(
            f"Too many tasks: {len(request.briefs)} requested but maximum is {most}",
            code="too_many_tasks",
            hint="spawn fewer at once, or have maxConcurrentAgents raised in task.yaml",
        )
    names = Counter(brief.id.lower() for brief in request.briefs if brief.id is not None)
    if twice := [name for name, number in names.items() if number > 1]:
        raise BadInput(
            f"duplicate id within one call: {twice[0][:80]!a}",
            code="duplicate_id",
            hint="name each apart; case does not count",
        )


def _where(request: Request) -> Path:
    """Where relative paths of the call begin: of one of a team, in its own folder."""
    base = request.base.resolve()
    return base / request.parent.contract.home_of(request.member) if request.parent else base


def _parent(task: Task, request: Request) -> Parent:
    """Whose work it is; the step is the next free one, once it is known.

    A program's task is there for whatever it will ever ask, so this call says what it is for.
    """
    goal = task.title if request.caller is None else f"{task.title}: {request.goal}"
    return Parent(
        run_id=task.run,
        step_idx=0,
        task_prompt=task.description or goal,
        goal_summary=shorten(goal),
        caller=request.caller,
    )


def _delegated(contract: Contract, parent: Subagent, share: Budget) -> Contract:
    """The contract of a subagent's own subagent: its time and budget are at most its parent's.

    Raises:
        BadInput: some other term is wider than the parent's.
    """
    most = parent.contract.execution.attempt_timeout_ms
    terms = contract.execution
    bounded = replace(terms, attempt_timeout_ms=min(terms.attempt_timeout_ms, most))
    contract = replace(
        contract,
        execution=bounded,
        boundary=parent.contract.boundary,
        budget=contract.budget.narrowed(share),
        delegated_by=parent.id,
        depth=parent.contract.depth + 1,
    )
    require_narrower(contract, parent.contract)
    return contract


def _permissions(brief: Brief, team: Team | None, parent: Subagent | None) -> Permissions:
    """Of a team to which no tools were named, the usual ones, as far as its parent has them."""
    usual = () if team is None else tools_of(team.servers)
    if parent is not None:
        usual = tuple(tool for tool in usual if parent.contract.permits(tool))
    return Permissions(
        allowed_tools=usual if brief.tools is None else tuple(brief.tools),
        can_spawn_children=brief.delegation_depth > 0,
        max_delegation_depth=brief.delegation_depth,
    )


def _terms(brief: Brief, config: TaskConfig) -> Execution:
    return Execution(
        attempt_timeout_ms=config.attempt_timeout_ms(brief.timeout_seconds),
        max_retries=brief.retries,
        close_on_completion=brief.close_on_completion,
        retry_on_timeout=brief.retry_on_timeout,
        cancel_grace_ms=config.graces_ms,
        output_limit_bytes=config.output_limit_bytes,
        grace_turn_ms=config.grace_turn_ms,
    )
