"""Contract of a subagent: its terms, set before it starts and never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from retinue.core.budget import Budget
from retinue.core.command_variables import SecretSource
from retinue.core.default_models import LOCAL, LOCAL_NOTE
from retinue.core.errors import BadInput
from retinue.core.ids import MemberId
from retinue.core.placement import Placement
from retinue.core.task_config import ISOLATED, Boundary
from retinue.core.tool_servers import ToolServer, find_server, is_tool_granted, is_wanted
from retinue.core.voting import OURS

TOOLS = frozenset(
    {
        "read_file",
        "write_file",
        "edit_file",
        "list_files",
        "search_files",
        "run_command",
        "copy_files_batch",
        "ask",
    }
)
ROOT = "root"
NO_DELEGATION = "delegation disabled by contract"
MAX_RETRIES = 10
MAX_DEPTH = 8
MAX_FILE_MB = 50.0  # default size limit of one changed file; a plan may set another
REPORT_PATTERN = ".retinue/step-<idx>-result.md"
READ, WRITE = "read", "write"
ACCESSES = (READ, WRITE)
STALL_SECONDS = 120.0  # of silence, after which a coding agent counts as stalled
OWN_LOGIN = (
    "a coding agent used its own login: its tokens are its own word, and no budget was enforced"
)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The program that delegated, as it described itself."""

    client: str = ""  # name and version
    session: str = ""  # id of its conversation
    call: str = ""  # id of the tool call
    trace: str = ""  # W3C trace context of that call


@dataclass(frozen=True, kw_only=True)
class Parent:
    run_id: str
    step_idx: int
    task_prompt: str
    goal_summary: str
    caller: Caller | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    title: str
    description: str
    success_criteria: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Permissions:
    allowed_tools: tuple[str, ...] = ()
    can_spawn_children: bool = False
    max_delegation_depth: int = 0
    access: str = "write"  # or read: the workspace is mounted read-only


@dataclass(frozen=True, kw_only=True)
class Execution:
    attempt_timeout_ms: int
    max_retries: int = 1
    close_on_completion: bool = True
    retry_on_timeout: bool = False
    cancel_grace_ms: tuple[int, int] = (3000, 2000)
    output_limit_bytes: int = 16 * 1024 * 1024
    grace_turn_ms: int = 5000  # time to answer after the budget is used up
    retries_on_node_loss: int = 1  # besides max_retries, after the machine it ran on was lost
    checkpoint_ms: int = 0  # how often a node copies its workspace to the hub; 0: never


@dataclass(frozen=True, kw_only=True)
class Outputs:
    report_format: str = "markdown"
    report_path_pattern: str = REPORT_PATTERN
    integration: str = "none"  # or merge, copy
    in_order: bool = False  # True: the run joins it in step order; False: the parent asks for it
    owns: tuple[str, ...] = ()  # patterns of paths it may change; empty: every path
    verify: tuple[str, ...] = ()  # command that must pass on the joined tree
    allow: tuple[str, ...] = ()  # what a merge may contain besides plain files
    inspect: tuple[str, ...] = ()  # command that must pass on the changed files
    max_file_mb: float = MAX_FILE_MB  # size limit of one changed file
    repository: str = ""  # git directory of the repository it is merged into
    base: str = ""  # commit that the workspace starts from
    branch: str = ""  # full name of the branch it is merged into
    destination: str = ""  # folder it is copied to
    approve: bool = False  # a person approves the output before it is joined

    @property
    def joined_later(self) -> bool:
        """Whether the output is merged, copied, verified or approved before it is accepted."""
        return self.integration != "none" or bool(self.verify) or self.approve


@dataclass(frozen=True, kw_only=True)
class PathIdentity:
    """Identity of a context path when the contract was made.

    A path that is replaced later has another device or inode and is refused.
    """

    device: int
    inode: int
    uid: int  # owner; the subagent may read this owner's files like its own
    gid: int


@dataclass(frozen=True, kw_only=True)
class Context:
    base: str = ""  # folder that relative paths start from
    # Resolved once, when the contract is made. A later resolution could follow a new symlink.
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    identities: tuple[PathIdentity, ...] = ()  # of each path, in the same order
    hidden: tuple[str, ...] = ()  # Retinue folders and named pipes within the paths
    searched: bool = True  # False: too large to search completely for what to hide

    @property
    def warning(self) -> str:
        if self.searched:
            return ""
        return (
            "the context is too large to search for other Retinue folders: only those near its top "
            "are hidden from the subagent"
        )


@dataclass(frozen=True, kw_only=True)
class AgentProgram:
    """A coding agent that works as a member: its program as it was found at the spawn."""

    type: str  # its profile, or acp for an agent by configuration
    name: str  # as users type it
    version: str = ""
    program: tuple[str, ...] = ()  # the native program, or node and its script
    lent: tuple[str, ...] = ()  # paths that the child may read to run it
    wire: str = ""  # of its requests: anthropic, responses, chat, gemini
    argv: tuple[str, ...] = ()  # further words of an agent by configuration
    environment: tuple[tuple[str, str], ...] = ()  # its variables, with fields to be filled in
    masks: tuple[str, ...] = ()  # paths of the workspace that it must not see
    native_tools: bool = False  # the vendor's own subagents, web access and schedules
    stall_seconds: float = STALL_SECONDS
    login: str = "gateway"  # or own: the user's login with the vendor
    credentials: tuple[tuple[str, str], ...] = ()  # file of that login, and its place in the home
    remark: str = ""  # for the result, for example that this version was not tested

    @property
    def metered(self) -> bool:
        """Whether the gateway carries and counts its requests."""
        return self.login == "gateway"


@dataclass(frozen=True, kw_only=True)
class TeamMember:
    """A member of a team: a model that the gateway reaches by `route`, or a coding agent."""

    id: str  # empty: named after the subagent
    route: str
    wire: str  # the vendor's API format, or local
    model: str
    system_message: str = ""
    servers: tuple[ToolServer, ...] = ()  # MCP servers whose tools it may use
    agent: AgentProgram | None = None  # None: the team itself runs the model's loop


@dataclass(frozen=True, kw_only=True)
class Delegation:
    """Limits that the delegation tools of a member state in their descriptions."""

    most: int  # subagents in one call
    default_seconds: float
    least_seconds: float
    most_seconds: float
    background: bool = True
    planning: bool = False  # it may submit a plan
    types: tuple[str, ...] = ()  # subagent types that it is shown


@dataclass(frozen=True, kw_only=True)
class Team:
    """The members that work inside a subagent, in registration order."""

    members: tuple[TeamMember, ...]
    refine: bool = True
    first_round_ms: int = 0  # 0: only the attempt's own limit
    later_round_ms: int = 0
    round_grace_ms: int = 0
    instructions: str = ""  # of its subagent type
    delegation: Delegation | None = None  # set if its permissions allow delegation

    @property
    def servers(self) -> tuple[ToolServer, ...]:
        return tuple(server for member in self.members for server in member.servers)


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python of the user, which a child gets with the packages of its environment."""

    folder: str  # of its programs; the first on the child's PATH
    environment: str = ""  # virtual environment that it belongs to; empty: none
    lent: tuple[str, ...] = ()  # paths that a child would not see without it


@dataclass(frozen=True, kw_only=True)
class Contract:
    """All terms of one subagent and everything it is given."""

    parent: Parent
    step: Step
    permissions: Permissions = field(default_factory=Permissions)
    execution: Execution
    outputs: Outputs = field(default_factory=Outputs)
    context: Context = field(default_factory=Context)
    boundary: Boundary = field(default_factory=Boundary)
    budget: Budget = field(default_factory=Budget)
    agent: str = "command"
    command: tuple[str, ...] = ()
    foreword: str = ""  # role instructions that a command receives before its brief
    team: Team | None = None  # None: a command runs instead
    remark: str = ""  # what the brief seems to lack, for its author
    skills: tuple[str, ...] = ()  # that its type uses if they are available
    continues: str = ""  # first subagent of its line, whose workspace it works in
    resumes: str = ""  # subagent whose conversation it continues
    delegated_by: str = ""  # parent, if that is a subagent
    sent_by: str = ""  # member of the parent's team that delegated, if known
    depth: int = 0  # number of subagents above it
    answer_schema: str = ""  # JSON schema of the answer; empty: any text
    placement: Placement | None = None  # the nodes that may run it; None: this machine
    variables: tuple[tuple[str, str], ...] = ()  # that its brief gives to its command
    stdin: str = ""  # standard input of its command
    secrets: tuple[SecretSource, ...] = ()  # names and sources of its secrets, never values
    redact: bool = False  # the values of its secrets are replaced in its output
    python: Interpreter | None = None  # the user's own; None: the system's

    @property
    def agents(self) -> tuple[AgentProgram, ...]:
        """The coding agents among its members."""
        members = self.team.members if self.team is not None else ()
        return tuple(member.agent for member in members if member.agent is not None)

    @property
    def is_read_only(self) -> bool:
        return self.permissions.access == READ

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that go into every result of this contract."""
        members = self.team.members if self.team is not None else ()
        small = any(member.wire == LOCAL for member in members)
        local = LOCAL_NOTE if small else ""
        own = OWN_LOGIN if any(not each.metered for each in self.agents) else ""
        agents = dict.fromkeys(each.remark for each in self.agents)
        given = (self.boundary.warning, local, self.remark, self.context.warning, own, *agents)
        return tuple(filter(None, given))

    def list_members(self, subagent: str) -> list[tuple[MemberId, TeamMember]]:
        """Return the members with their ids, in registration order.

        A member without an id is named after the first subagent of the line. It keeps that
        name when a successor continues its conversation.
        """
        # 48 characters leave room for "_agent_<n>" within the 64 of an id.
        owner = (self.continues or subagent)[:48]
        members = self.team.members if self.team is not None else ()
        return [
            (MemberId(member.id or f"{owner}_agent_{number}"), member)
            for number, member in enumerate(members, start=1)
        ]

    @property
    def members_folder(self) -> str:
        """The folder of the workspace that holds the members' own folders."""
        # Merged or copied output must not contain them, and a name could clash with a file that
        # was checked out. OURS avoids both.
        plain = self.outputs.integration == "none" and not self.outputs.base
        return "" if plain else OURS

    def find_member_folder(self, member: str) -> str:
        """Return the member's folder in the workspace; empty (all of it) for a team of one."""
        several = self.team is not None and len(self.team.members) > 1
        # In a workspace that cannot be changed, all members read the same files.
        apart = several and member and not self.is_read_only
        return f"{self.members_folder}/{member}".lstrip("/") if apart else ""

    @property
    def words(self) -> str:
        """The foreword and the task, as the child reads them."""
        task = self.step.description
        return f"{self.foreword}\n\n# Task\n\n{task}" if self.foreword else task

    @property
    def is_root(self) -> bool:
        """Whether this is the team that a run was started with."""
        return self.agent == ROOT

    def allows_tool(self, tool: str) -> bool:
        """Return whether the subagent may use this tool; a tool that is not granted is denied."""
        return is_tool_granted(self.permissions.allowed_tools, tool)

    def list_tool_servers(self, member: TeamMember) -> tuple[ToolServer, ...]:
        """Return the member's servers that have at least one granted tool."""
        allowed = self.permissions.allowed_tools
        return tuple(server for server in member.servers if is_wanted(allowed, server))

    @property
    def servers(self) -> tuple[ToolServer, ...]:
        """Servers of all members that have at least one granted tool."""
        members = self.team.members if self.team is not None else ()
        return tuple(server for member in members for server in self.list_tool_servers(member))

    @property
    def report_path(self) -> str:
        """Path of the report, relative to the workspace."""
        return self.outputs.report_path_pattern.replace("<idx>", str(self.parent.step_idx))


def require_sound(contract: Contract) -> None:
    """Check the terms of one contract.

    Raises:
        BadInput: a term is unknown, out of range or contradicts another.
    """
    # The root team may grant tools that only its subagents have.
    if not contract.is_root:
        require_known_tools(contract.permissions.allowed_tools, contract.team)
    _require_numbers_in_range(contract)
    _require_enforceable_access(contract)
    _require_logins_here(contract)
    _require_usable_inputs(contract)
    require_report_inside(contract.outputs.report_path_pattern)


def _require_numbers_in_range(contract: Contract) -> None:
    granted = contract.permissions
    if not 0 <= granted.max_delegation_depth <= MAX_DEPTH:
        raise BadInput(
            f"max_delegation_depth {granted.max_delegation_depth} is out of range",
            code="invalid_contract",
            hint=f"0 to {MAX_DEPTH}",
        )
    if granted.can_spawn_children != (granted.max_delegation_depth > 0):
        raise BadInput(
            "can_spawn_children and max_delegation_depth contradict each other",
            code="invalid_contract",
            hint="allow children with a depth of at least 1, or neither",
        )
    if not 0 <= contract.execution.max_retries <= MAX_RETRIES:
        raise BadInput(
            f"max_retries {contract.execution.max_retries} is out of range",
            code="invalid_contract",
            hint=f"0 to {MAX_RETRIES}",
        )


def _require_logins_here(contract: Contract) -> None:
    own = next((each.name for each in contract.agents if not each.metered), "")
    if own and contract.placement is not None:
        raise BadInput(
            f"{own} with its own login cannot run on a node: the login stays on this machine",
            code="no_login_on_nodes",
            hint="let it run here (subagent_runtime: here, without --on), or use login: gateway",
        )


def _require_enforceable_access(contract: Contract) -> None:
    access = contract.permissions.access
    if access not in ACCESSES:
        raise BadInput(
            f"unknown access {access[:40]!a}",
            code="invalid_contract",
            hint=f"known: {', '.join(ACCESSES)}",
        )
    if contract.is_read_only and contract.boundary.mode != ISOLATED:
        raise BadInput(
            "the access read needs isolated subagents, whose workspace the kernel protects",
            code="access_not_enforced",
            hint="set subagent_runtime_mode to isolated, or leave access out",
        )
    if contract.is_read_only and contract.outputs.integration != "none":
        raise BadInput(
            "a subagent that may only read has no changes to merge or copy",
            code="invalid_contract",
            hint="leave integration out, or give it access write",
        )


def _require_usable_inputs(contract: Contract) -> None:
    """Check variables, standard input and secrets."""
    if contract.team is not None and (contract.variables or contract.stdin or contract.secrets):
        raise BadInput(
            "env, stdin and secrets apply only to commands, and models do this work",
            code="not_a_command",
            hint="tell the subagent in its brief, or give it a command",
        )
    if contract.secrets and contract.placement is not None:
        raise BadInput(
            "secrets are not sent to nodes",
            code="no_secrets_on_nodes",
            hint="let it run here: leave out --on, or set subagent_runtime: here",
        )
    if contract.python is not None and contract.placement is not None:
        raise BadInput(
            "a Python of this machine is not on a node",
            code="no_python_on_nodes",
            hint="let it run here: leave out --on, or install what it needs on the nodes",
        )
    if contract.redact and not contract.secrets:
        raise BadInput(
            "there is nothing to redact without secrets",
            code="invalid_secret",
            hint="name the secrets, or leave redact out",
        )


def require_narrower(child: Contract, parent: Contract) -> None:
    """Check that a subagent grants its own subagent no more than it has.

    Raises:
        BadInput: a term is wider than the parent's.
    """
    mine = parent.permissions
    # Each condition with the reason that is shown. A depth that shrinks at every level also
    # bounds the height of the tree.
    theirs = child.permissions
    extra = [tool for tool in theirs.allowed_tools if not parent.allows_tool(tool)]
    wider = [
        (not mine.can_spawn_children, "its parent may not delegate"),
        (
            theirs.max_delegation_depth >= mine.max_delegation_depth,
            "max_delegation_depth must be lower than the parent's",
        ),
        (bool(extra), f"its parent lacks these tools: {', '.join(sorted(extra))}"),
        (
            child.execution.attempt_timeout_ms > parent.execution.attempt_timeout_ms,
            "it has more time than its parent",
        ),
    ]
    for is_wider, why in wider:
        if is_wider:
            raise BadInput(
                f"a delegated contract cannot be wider than its parent's: {why}",
                code="contract_too_wide",
            )


def require_reachable(team: Team, boundary: Boundary) -> None:
    """Check that the team's MCP servers can be reached from behind this boundary.

    Raises:
        BadInput: a server has a URL, and the boundary allows no network.
    """
    far = [server for server in team.servers if server.url]
    if far and boundary.mode == ISOLATED and boundary.network != "on":
        raise BadInput(
            f"the MCP server {far[0].name} is at an address, and subagents have no network",
            code="server_unreachable",
            hint="set subagent_network to on, or run the server with type stdio",
        )


def require_known_tools(tools: Sequence[str], team: Team | None) -> None:
    """Check that each tool is built in or belongs to a server of the team.

    Raises:
        BadInput: a tool is unknown.
    """
    servers = team.servers if team is not None else ()
    names = {server.name for server in servers}
    for tool in tools:
        if tool in TOOLS or find_server(tool) in names:
            continue
        known = [*sorted(TOOLS), *sorted({server.every_tool for server in servers})]
        raise BadInput(
            f"unknown tool {tool[:40]!a}",
            code="unknown_tool",
            hint=f"known tools: {', '.join(known)}",
        )


def require_report_inside(pattern: str) -> None:
    """Check that the report path stays inside the workspace.

    Raises:
        BadInput: it is absolute, has an empty part or a "..", or contains NUL.
    """
    parts = pattern.split("/")
    if pattern.startswith("/") or ".." in parts or "" in parts or "\0" in pattern:
        raise BadInput(
            f"report path {pattern[:80]!a} does not stay inside the workspace",
            code="invalid_contract",
            hint="use a relative path such as " + REPORT_PATTERN,
        )


FILES, PATHS, OUTSIDE = "files", "paths", "outside"
# Where an isolated child finds its context. It lies outside of every project: inside a project that
# is itself part of the context, a search would find every file twice.
ISOLATED_PLACE = "/var/retinue/context"
# Folders that every isolated child sees.
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt")


def list_context_places(context: Context) -> list[tuple[str, str]]:
    """Return each context path with its place; a path inside another one has no own place."""
    base = PurePosixPath(context.base or "/")
    paths = list(dict.fromkeys(map(PurePosixPath, context.paths)))
    inside = [path for path in paths if path.is_relative_to(base)]
    outside = [path for path in paths if path not in inside]
    places = [
        (str(path), str(PurePosixPath(PATHS) / path.relative_to(base)))
        for path in _outermost(inside, context)
    ]
    taken: set[str] = set()
    for path in _outermost(outside, context):
        # The path "/" has no name. Paths with the same name are numbered in the order given.
        name = path.name or "root"
        names = (name, *(f"{name}-{number}" for number in range(2, len(paths) + 1)))
        own = next(each for each in names if each not in taken)
        taken.add(own)
        places.append((str(path), f"{OUTSIDE}/{own}"))
    return places


def find_original_path(context: Context, place: str) -> str:
    """Return the original path of a place below RETINUE_CONTEXT; empty if there is none."""
    # Places may be nested. The most specific one is right.
    asked = PurePosixPath(place)
    found = ""
    longest = -1
    for path, own in list_context_places(context):
        top = PurePosixPath(own)
        if asked.is_relative_to(top) and len(top.parts) > longest:
            found = str(PurePosixPath(path) / asked.relative_to(top))
            longest = len(top.parts)
    return found


def _outermost(paths: Sequence[PurePosixPath], context: Context) -> list[PurePosixPath]:
    """Return the paths that are not reached through another one."""
    return [
        path
        for path in paths
        if not any(
            other in path.parents and not _is_hidden_between(other, path, context)
            for other in paths
        )
    ]


def _is_hidden_between(outer: PurePosixPath, inner: PurePosixPath, context: Context) -> bool:
    """Return whether a hidden folder lies between them, so `inner` is not visible in `outer`."""
    hidden = map(PurePosixPath, context.hidden)
    return any(each in inner.parents and outer in (each, *each.parents) for each in hidden)
