"""Contracts from spawn requests, with every check that needs no database row."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from retinue.core.brief import Brief
from retinue.core.budget import Budget
from retinue.core.command_variables import SecretSource, complete_paths, parse_secrets
from retinue.core.contract import (
    NO_DELEGATION,
    Caller,
    Context,
    Contract,
    Execution,
    Interpreter,
    Outputs,
    Parent,
    Permissions,
    Step,
    Team,
    require_narrower,
    require_reachable,
    require_sound,
)
from retinue.core.errors import AGENT, PYTHON, BadInput, Refused
from retinue.core.globs import require_glob
from retinue.core.ids import SubagentId, TaskId, require_id
from retinue.core.join_result import Source
from retinue.core.placement import Placement, parse_placement, require_node
from retinue.core.plan import INTEGRATIONS
from retinue.core.safe_text import shorten
from retinue.core.subagent import Draft, Subagent, Task
from retinue.core.task_config import ISOLATED, Boundary, TaskConfig, resolve_mode
from retinue.ports import Admission, Nodes, Runtime, Tasks
from retinue.processes import finish_work
from retinue.steward.agent_staffing import require_agents_fit
from retinue.steward.team_staffing import WorkerSelector, list_default_tools

MAX_QUEUED_PER_CALL = 1000
MAX_QUEUED_PER_CHILD = 200  # queued subagents of one subagent
DRAFTS_AT_ONCE = 16  # made before the event loop serves other callers
MAX_GOAL = 1000
BRANCH = "refs/heads/retinue/{task}"


@dataclass(frozen=True, kw_only=True)
class SpawnRequest:
    """A call to spawn subagents, and its origin."""

    briefs: Sequence[Brief]
    base: Path  # folder that relative context paths start from
    by: str = "user"
    parent: Subagent | None = None  # the subagent that delegates; None: the user
    member: str = ""  # the member of its team, if known
    key: str = ""  # idempotency key
    sha256: str = ""  # of the briefs
    queue: bool = False
    caller: Caller | None = None  # the calling program, if known
    again: bool = False  # an existing id with the same work stands for that subagent
    background: bool = False  # the caller does not wait for the results

    @property
    def goal(self) -> str:
        """The headings of the briefs, as a summary of the call."""
        return shorten("; ".join(brief.heading for brief in self.briefs), MAX_GOAL)


ENABLE = "set background_subagents.enabled to true in the configuration"


def require_background(config: TaskConfig) -> None:
    """Raises:
    Refused: the configuration forbids background work.
    """
    if not config.background_enabled:
        raise Refused(
            "background work is disabled by the configuration",
            code="background_disabled",
            hint=f"wait for the results with --wait, or {ENABLE}",
            hints={
                AGENT: f"leave background out and wait for the results, or {ENABLE}",
                PYTHON: f"await run() instead of spawn(), or {ENABLE}",
            },
        )


class ContractFactory:
    """Makes contracts: sound, staffed, and no wider than the parent's."""

    def __init__(
        self,
        tasks: Tasks,
        runtime: Runtime,
        workers: WorkerSelector,
        *,
        in_container: bool,
        get_remaining_budget: Callable[[Subagent], Budget],
        find_source: Callable[[], Awaitable[Source]],
        require_secrets: Callable[[Sequence[SecretSource], bool], None],
        find_interpreter: Callable[[str], Interpreter],
        nodes: Nodes | None = None,
    ) -> None:
        """Args:
        find_source: returns what merged work starts from outside of a plan.
        require_secrets: raises Refused if a secret cannot be read, or cannot be redacted.
        find_interpreter: returns what is lent with the Python at a path.
        """
        self._tasks = tasks
        self._runtime = runtime
        self.workers = workers
        self._in_container = in_container
        self._get_remaining_budget = get_remaining_budget
        self._find_source = find_source
        self.require_secrets = require_secrets
        self._find_interpreter = find_interpreter
        self._nodes = nodes
        self._threads: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def make_admission(
        self, task: Task, request: SpawnRequest, config: TaskConfig | None = None
    ) -> Admission:
        """Return the admission of a whole call, with one contract per brief.

        Args:
            config: the configuration of a task that is not created yet; None: the stored one.

        Raises:
            BadInput, Refused, IsolationUnavailable: the call is refused; nothing was created.
        """
        if (
            request.parent is not None
            and not request.parent.contract.permissions.can_spawn_children
        ):
            raise Refused(NO_DELEGATION, code="delegation_disabled")
        if config is None:
            config = self._tasks.read_config(task.id)
        if request.background:
            require_background(config)
        # Security: a subagent cannot lift the concurrency limit by asking for a queue.
        queue = config.admission == "queue" or (request.queue and request.parent is None)
        _require_fitting(request, _get_call_limit(request, config, queue=queue))
        placements = [_find_placement(brief, config) for brief in request.briefs]
        boundary = await self.decide_boundary(config, elsewhere=all(placements))
        await self.require_nodes(placements, boundary, queue=queue)
        request = replace(request, base=_resolve_base(request))
        contexts = await self._check_contexts(request, config)
        drafts = await self._make_drafts(task, config, request, boundary, contexts)
        drafts = await self._hide_draft_paths(drafts)
        if any(brief.integration == "merge" for brief in request.briefs):
            source = await self._find_source()
            drafts = [_set_merge_target(draft, source, name_branch(task.id)) for draft in drafts]
        return Admission(
            drafts=tuple(drafts),
            by=request.by,
            limit=config.max_concurrent,
            queue=queue,
            max_waiting=None if request.parent is None else MAX_QUEUED_PER_CHILD,
            parent="" if request.parent is None else request.parent.id,
            key=request.key,
            request_sha256=_hash_request(request, drafts) if request.key else "",
            briefs_sha256=request.sha256,
            again=request.again,
        )

    def narrow_successor(self, contract: Contract, parent: Subagent) -> Contract:
        """Narrow a successor's contract to what its parent has left now."""
        return _narrow_to_parent(contract, parent, self._get_remaining_budget(parent).split(2))

    async def require_nodes(
        self, placements: Sequence[Placement | None], boundary: Boundary, *, queue: bool
    ) -> None:
        """Check that each subagent of a call that is to run on a node can.

        Raises:
            Refused: no node is there that could run one, and the call does not queue.
        """
        wanted = [each for each in dict.fromkeys(placements) if each is not None]
        if not wanted:
            return
        if self._nodes is None:
            raise Refused(
                "this root is not connected to a hub, so it has no nodes",
                code="no_such_node",
                hint="connect it with 'retinue cluster connect INVITATION', or run it here: "
                "leave out --on and subagent_runtime",
                hints={AGENT: "leave on out; the user can connect nodes"},
            )
        if not queue:
            known = await self._nodes.list_now()
            if not known and (outage := self._nodes.find_outage()):
                raise Refused(
                    f"{outage}, so no node is known",
                    code="no_such_node",
                    hint="'retinue cluster status' shows whether it answers; with --queue it waits",
                    hints={AGENT: "leave on out; the user can start the hub"},
                )
            for needs in wanted:
                require_node(
                    known,
                    needs,
                    isolated=boundary.mode == ISOLATED,
                    memory_mb=boundary.limits.memory_mb,
                )

    async def decide_boundary(self, config: TaskConfig, *, elsewhere: bool = False) -> Boundary:
        """Return the boundary that is in force for children.

        Args:
            elsewhere: all of them run on nodes, which say themselves what they can provide.

        Raises:
            IsolationUnavailable: the machine cannot provide the configured isolation.
        """
        missing = None
        if config.runtime_mode == ISOLATED and not elsewhere:
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

    async def _check_contexts(self, request: SpawnRequest, config: TaskConfig) -> list[Context]:
        """Return the checked context of each brief."""
        # Briefs of one call often share their context: check each set of paths once.
        known: dict[tuple[tuple[str, ...], ...], Context] = {}
        found = []
        for brief in request.briefs:
            given = tuple(brief.context_paths), tuple(brief.context_files)
            if given not in known:
                check = partial(
                    self._tasks.resolve_contexts, brief, request.base, config, request.parent
                )
                walks = any(given) or config.context_paths
                known[given] = (
                    await self._run_in_thread(check, request.parent) if walks else check()
                )
            found.append(known[given])
        return found

    async def _run_in_thread(
        self, check: Callable[[], Context], parent: Subagent | None
    ) -> Context:
        """Run a check in a thread, because a folder may hold a million files.

        Each parent has one thread at a time: there are few, and other callers need them.
        """
        lock = asyncio.Lock()
        if parent is not None:
            lock = self._threads.setdefault((parent.task, parent.id), lock)
        async with lock:
            # A thread cannot be stopped: if this call is cancelled, keep the lock until it ends.
            return await finish_work(asyncio.to_thread(check))

    async def _make_drafts(
        self,
        task: Task,
        config: TaskConfig,
        request: SpawnRequest,
        boundary: Boundary,
        contexts: Sequence[Context],
    ) -> list[Draft]:
        """Return the drafts of a call; other callers are served in between."""
        share = Budget()
        if request.parent is not None:
            # Computed once per call, because it sums over all subagents of the parent. The parent
            # keeps as large a share as each subagent gets.
            share = self._get_remaining_budget(request.parent).split(len(request.briefs) + 1)
        drafts: list[Draft] = []
        for brief, context in zip(request.briefs, contexts, strict=True):
            drafts.append(self._make_draft(task, config, brief, request, boundary, context, share))
            if len(drafts) % DRAFTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return drafts

    async def _hide_draft_paths(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts with private files hidden in all that their programs need."""
        # Drafts of one call often need the same programs: search each set of paths once.
        known: dict[tuple[Context, tuple[str, ...]], Context] = {}
        found = []
        for draft in drafts:
            contract = draft.contract
            key = contract.context, list_program_folders(contract.team, contract.python)
            if key not in known:
                known[key] = await self.hide_in_programs(*key)
            found.append(replace(draft, contract=replace(contract, context=known[key])))
        return found

    async def hide_in_programs(self, context: Context, folders: Sequence[str]) -> Context:
        """Return the context with private files in the lent folders of programs hidden, too."""
        if not folders:
            return context
        return await asyncio.to_thread(self._tasks.rescan_context, context, tuple(folders))

    def _make_draft(
        self,
        task: Task,
        config: TaskConfig,
        brief: Brief,
        request: SpawnRequest,
        boundary: Boundary,
        context: Context,
        share: Budget,
    ) -> Draft:
        name = None if brief.id is None else SubagentId(require_id(brief.id, "subagent id"))
        staffed = self.workers.select_workers(brief, config, _find_spawner(request))
        _require_joinable(brief, request)
        if staffed.team is not None:
            require_reachable(staffed.team, boundary)
        python = _take_python(brief, request)
        placement = _find_placement(brief, config)
        unreadable = ""
        if placement is None and boundary.mode == ISOLATED:
            unreadable = _remark_on_unreadable(self._tasks.list_unreadable(context))
        contract = Contract(
            parent=_make_parent(task, request),
            step=Step(
                title=brief.heading,
                description=brief.text or " ".join(brief.argv),
                success_criteria=tuple(brief.success_criteria),
            ),
            permissions=_make_permissions(brief, staffed.team, request.parent),
            execution=_make_execution(brief, config, team=staffed.team),
            outputs=Outputs(
                report_path_pattern=brief.report_path_pattern,
                integration=brief.integration,
                owns=tuple(brief.owns),
            ),
            context=context,
            boundary=boundary,
            budget=_make_budget(brief, config),
            answer_schema=_encode_schema(brief),
            agent=brief.type or ("command" if staffed.team is None else "team"),
            command=staffed.command,
            foreword=staffed.foreword,
            team=staffed.team,
            remark="; ".join(filter(None, (staffed.remark, unreadable))),
            skills=staffed.skills,
            placement=placement,
            variables=tuple((brief.env or {}).items()),
            stdin=brief.stdin,
            secrets=_find_secrets(brief, request),
            redact=brief.redact,
            python=self._find_interpreter(python) if python else None,
        )
        require_sound(contract)
        if staffed.team is not None:
            require_agents_fit(contract, brief.tools)
        if contract.secrets:
            self.require_secrets(contract.secrets, contract.redact)
        if request.parent is not None:
            contract = _narrow_to_parent(contract, request.parent, share)
            contract = replace(contract, sent_by=request.member)
        if brief.limits:
            # After the parent's boundary is inherited: its limits are the ones to narrow.
            limits = contract.boundary.limits.narrow(brief.limits)
            contract = replace(contract, boundary=replace(contract.boundary, limits=limits))
        return Draft(id=name, contract=contract, refusal=staffed.refusal)


def list_program_folders(team: Team | None, python: Interpreter | None = None) -> tuple[str, ...]:
    """Return what a child may read because its servers, coding agents or Python need it."""
    members = () if team is None else team.members
    lent = [path for server in (team.servers if team else ()) for path in server.paths]
    lent += [path for each in members if each.agent is not None for path in each.agent.lent]
    return (*lent, *(python.lent if python is not None else ()))


def _find_spawner(request: SpawnRequest) -> str:
    """Return the route of the delegating member, if it named itself or is alone in its team."""
    if request.parent is None:
        return ""
    members = request.parent.contract.list_members(request.parent.id)
    known = [who for name, who in members if request.member in (name, "")]
    return known[0].route if len(known) == 1 else ""


def _require_joinable(brief: Brief, request: SpawnRequest) -> None:
    if brief.integration not in INTEGRATIONS:
        raise BadInput(
            f"unknown integration {brief.integration[:40]!a}",
            code="unknown_integration",
            hint=f"known: {', '.join(INTEGRATIONS)}",
        )
    if brief.integration != "none" and request.parent is not None:
        raise Refused("a subagent joins the output of its own subagents itself")
    if brief.owns and brief.integration == "none":
        raise BadInput(
            "owns applies only to output that is merged or copied",
            code="invalid_owns",
            hint="choose integration merge or copy, or leave owns out",
        )
    for pattern in brief.owns:
        require_glob(pattern, "owns", code="invalid_owns")


def _remark_on_unreadable(paths: Sequence[str]) -> str:
    if not paths:
        return ""
    return (
        f"{', '.join(paths)}: only its owner may read this, so the subagent cannot; "
        "make it readable for all, or give the steward CAP_SYS_ADMIN"
    )


def _get_call_limit(request: SpawnRequest, config: TaskConfig, *, queue: bool) -> int:
    if not queue:
        return config.max_concurrent
    return MAX_QUEUED_PER_CALL if request.parent is None else MAX_QUEUED_PER_CHILD


def _hash_request(request: SpawnRequest, drafts: Sequence[Draft]) -> str:
    """Return the identity of a request: its briefs and the files its paths resolved to."""
    contexts = [draft.contract.context for draft in drafts]
    resolved = [[each.base, list(each.paths), list(each.files)] for each in contexts]
    text = json.dumps([request.sha256, str(request.base), resolved])
    return hashlib.sha256(text.encode()).hexdigest()


def _require_fitting(request: SpawnRequest, most: int) -> None:
    if len(request.briefs) > most:
        raise BadInput(
            f"Too many tasks: {len(request.briefs)} requested but maximum is {most}",
            code="too_many_tasks",
            hint="spawn fewer at once, or raise subagent_max_concurrent in the configuration"
            " (maxConcurrentAgents in task.yaml)",
        )
    names = Counter(brief.id.lower() for brief in request.briefs if brief.id is not None)
    if twice := [name for name, number in names.items() if number > 1]:
        raise BadInput(
            f"duplicate id within one call: {twice[0][:80]!a}",
            code="duplicate_id",
            hint="give each subagent its own id; case does not count",
        )


def _resolve_base(request: SpawnRequest) -> Path:
    """Return where relative paths start: for a member of a team, its own folder."""
    base = request.base
    return (
        base / request.parent.contract.find_member_folder(request.member)
        if request.parent
        else base
    )


def _make_parent(task: Task, request: SpawnRequest) -> Parent:
    """Return the parent section of a contract; admission fills in the step index."""
    # The task of a calling program serves many calls, so the goal names this call as well.
    goal = task.title if request.caller is None else f"{task.title}: {request.goal}"
    return Parent(
        run_id=task.run,
        step_idx=0,
        task_prompt=task.description or goal,
        goal_summary=shorten(goal),
        caller=request.caller,
    )


def _narrow_to_parent(contract: Contract, parent: Subagent, share: Budget) -> Contract:
    """Return the contract with time and budget cut to what the parent may give.

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
        budget=contract.budget.narrow(share),
        delegated_by=parent.id,
        depth=parent.contract.depth + 1,
    )
    require_narrower(contract, parent.contract)
    return contract


def _make_permissions(brief: Brief, team: Team | None, parent: Subagent | None) -> Permissions:
    """Return the permissions; without named tools, a team gets the default ones of its parent."""
    default = () if team is None else list_default_tools(team.servers)
    if parent is not None:
        default = tuple(tool for tool in default if parent.contract.allows_tool(tool))
    return Permissions(
        allowed_tools=default if brief.tools is None else tuple(brief.tools),
        can_spawn_children=brief.delegation_depth > 0,
        max_delegation_depth=brief.delegation_depth,
        access=brief.access,
    )


def _encode_schema(brief: Brief) -> str:
    schema = brief.answer_schema
    return "" if schema is None else json.dumps(schema, separators=(",", ":"))


def _make_budget(brief: Brief, config: TaskConfig) -> Budget:
    """Return the configured budget, with the turns that the brief allows at most."""
    return config.budget if brief.turns is None else config.budget.narrow(Budget(turns=brief.turns))


def _make_execution(brief: Brief, config: TaskConfig, *, team: Team | None) -> Execution:
    agents = team is not None and any(member.agent for member in team.members)
    default = brief.default_retries(command=team is None or agents)
    return Execution(
        attempt_timeout_ms=config.clamp_timeout_ms(brief.timeout_seconds),
        max_retries=default if brief.retries is None else brief.retries,
        close_on_completion=brief.close_on_completion,
        retry_on_timeout=brief.retry_on_timeout,
        cancel_grace_ms=config.graces_ms,
        output_limit_bytes=config.output_limit_bytes,
        grace_turn_ms=config.grace_turn_ms,
        retries_on_node_loss=config.retries_on_node_loss,
        checkpoint_ms=config.checkpoint_ms,
    )


def _take_python(brief: Brief, request: SpawnRequest) -> str:
    """Return the path of the Python that the brief asks for; empty if it asks for none.

    Raises:
        Refused: an agent asks for it.
    """
    # Security: it shows folders of the user, which only the user may do. As for secrets.
    if brief.python and (request.parent is not None or request.again):
        raise Refused(
            "only a user or a program can lend a Python to a subagent",
            code="python_not_allowed",
            hint="spawn it with 'retinue subagent spawn --with-python', or from Python",
            hints={AGENT: "leave python out, or ask the user to spawn this subagent"},
        )
    return str(brief.python or "")


def _find_secrets(brief: Brief, request: SpawnRequest) -> tuple[SecretSource, ...]:
    """Return where the secrets of a brief are read, with complete paths.

    Raises:
        Refused: an agent asks for them.
    """
    # Security: variables and files of the steward belong to the user, who alone may hand them out.
    # A caller that repeats requests by their ids is an agent's MCP server.
    if not brief.secrets:
        return ()
    if request.parent is not None or request.again:
        raise Refused(
            "only a user or a program can give secrets to a subagent",
            code="secrets_not_allowed",
            hint="spawn it with 'retinue subagent spawn --secret', or from Python",
            hints={AGENT: "leave secrets out, or ask the user to spawn this subagent"},
        )
    return complete_paths(parse_secrets(brief.secrets, brief.env or {}, "secrets"), request.base)


def _find_placement(brief: Brief, config: TaskConfig) -> Placement | None:
    """Return which nodes may run a brief; None if this machine runs it.

    Raises:
        BadInput: its place is invalid, or it cannot run on a node.
    """
    placement = parse_placement(brief.on) if brief.on else config.placement
    if placement is not None and brief.delegation_depth > 0:
        raise BadInput(
            "a subagent on a node cannot have subagents of its own",
            code="no_delegation_on_nodes",
            hint="let it run here (subagent_runtime: here, without --on), or forbid it to delegate",
        )
    return placement


def name_branch(task: TaskId) -> str:
    """Return the branch on which the merged output of a task is joined."""
    return BRANCH.format(task=task)


def _set_merge_target(draft: Draft, source: Source, branch: str) -> Draft:
    """Return the draft with repository, base and branch set if its output is merged."""
    outputs = draft.contract.outputs
    if outputs.integration != "merge":
        return draft
    outputs = replace(outputs, repository=source.repository, base=source.commit, branch=branch)
    return replace(draft, contract=replace(draft.contract, outputs=outputs))
