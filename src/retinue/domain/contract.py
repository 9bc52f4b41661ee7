"""The terms of a delegation: fixed at its creation, binding until its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from retinue.domain.boundary import Boundary
from retinue.domain.budget import Budget
from retinue.domain.defaults import LOCAL, LOCAL_NOTE
from retinue.domain.ids import MemberId
from retinue.domain.team import OURS
from retinue.domain.toolserver import ToolServer, grants, is_wanted

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
REPORT_PATTERN = ".retinue/step-<idx>-result.md"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The program that delegated, as far as it said who it is."""

    client: str = ""  # its name and version
    session: str = ""  # its conversation
    call: str = ""  # the tool call within it
    trace: str = ""  # where that call stands in a trace, as W3C writes it


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


@dataclass(frozen=True, kw_only=True)
class Execution:
    attempt_timeout_ms: int
    max_retries: int = 1
    close_on_completion: bool = True
    retry_on_timeout: bool = False
    cancel_grace_ms: tuple[int, int] = (3000, 2000)
    output_limit_bytes: int = 16 * 1024 * 1024
    grace_turn_ms: int = 5000  # to answer, after its budget is used up


@dataclass(frozen=True, kw_only=True)
class Outputs:
    report_format: str = "markdown"
    report_path_pattern: str = REPORT_PATTERN
    integration: str = "none"  # or merge, copy
    in_order: bool = False  # joined by its run, in step order; else when its parent asks
    owns: tuple[str, ...] = ()  # what it may change; nothing named: anything
    verify: tuple[str, ...] = ()  # a command that must pass on the joined tree
    allow: tuple[str, ...] = ()  # what a merge may bring beyond plain files
    inspect: tuple[str, ...] = ()  # a command that must pass on the changed files
    max_file_mb: float = 50.0  # that one changed file may have
    repository: str = ""  # git's own folder of what it is merged into
    base: str = ""  # the commit that its workspace starts from
    branch: str = ""  # the full name of the branch that it is merged into
    destination: str = ""  # the folder that it is copied to

    @property
    def joined_later(self) -> bool:
        """Whether more has to happen to the output than to be accepted."""
        return self.integration != "none" or bool(self.verify)


@dataclass(frozen=True, kw_only=True)
class Context:
    base: str = ""  # what relative names are relative to
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TeamMember:
    """Who answers: a model, reached by a name that the gateway knows."""

    id: str  # empty: named after the subagent
    route: str
    wire: str  # the vendor's format that its model speaks, or local
    model: str
    system_message: str = ""
    servers: tuple[ToolServer, ...] = ()  # whose tools it is given, too


@dataclass(frozen=True, kw_only=True)
class Delegation:
    """What the tools by which a member delegates say of the limits in force."""

    most: int  # in one call
    default_seconds: float
    least_seconds: float
    most_seconds: float
    background: bool = True
    planning: bool = False  # it may have a whole plan carried out
    types: tuple[str, ...] = ()  # of subagents that it is shown


@dataclass(frozen=True, kw_only=True)
class Team:
    """Who works inside the subagent, in registration order, and how."""

    members: tuple[TeamMember, ...]
    refine: bool = True
    first_round_ms: int = 0  # 0: no limit but the attempt's own
    later_round_ms: int = 0
    round_grace_ms: int = 0
    instructions: str = ""  # what its type asks of it
    delegation: Delegation | None = None  # how it may delegate, where its permissions let it

    @property
    def servers(self) -> tuple[ToolServer, ...]:
        """Of all its members."""
        return tuple(server for member in self.members for server in member.servers)


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Everything a subagent is bound by, and everything it is given."""

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
    foreword: str = ""  # what a command is told before its brief: its role, as a team's members are
    team: Team | None = None  # instead of a command
    remark: str = ""  # what its brief seems to lack, for whoever wrote that
    skills: tuple[str, ...] = ()  # that its type should use, where they are available
    continues: str = ""  # whose workspace it works in, when not its own
    resumes: str = ""  # whose conversation it goes on with
    delegated_by: str = ""  # the subagent that is its parent, when that is one itself
    sent_by: str = ""  # the member of that subagent's team, as far as it is known
    depth: int = 0  # how many subagents are above it

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever receives its result should know of how it was made."""
        members = self.team.members if self.team is not None else ()
        small = any(member.wire == LOCAL for member in members)
        local = LOCAL_NOTE if small else ""
        return tuple(filter(None, (self.boundary.warning, local, self.remark)))

    def named_members(self, subagent: str) -> list[tuple[MemberId, TeamMember]]:
        """In registration order. Who has no name of its own is named after the subagent.

        After the first one in this workspace: who goes on with its conversation is the same.
        """
        owner = (self.continues or subagent)[:48]
        members = self.team.members if self.team is not None else ()
        return [
            (MemberId(member.id or f"{owner}_agent_{number}"), member)
            for number, member in enumerate(members, start=1)
        ]

    @property
    def homes(self) -> str:
        """Where in the workspace the members of a larger team have folders of their own.

        What is merged or copied out of the workspace must not take them along, and among files
        that were there before them a name could be taken.
        """
        plain = self.outputs.integration == "none" and not self.outputs.base
        return "" if plain else OURS

    def home_of(self, member: str) -> str:
        """Where in the workspace a member works: alone in all of it, else in its own folder."""
        several = self.team is not None and len(self.team.members) > 1
        return f"{self.homes}/{member}".lstrip("/") if several and member else ""

    @property
    def words(self) -> str:
        """All that it is told to do."""
        task = self.step.description
        return f"{self.foreword}\n\n# Task\n\n{task}" if self.foreword else task

    @property
    def is_root(self) -> bool:
        """Whether it is the team that a run was started with, above all others."""
        return self.agent == ROOT

    def permits(self, tool: str) -> bool:
        """Whether the subagent may use this tool. What is not granted is denied."""
        return grants(self.permissions.allowed_tools, tool)

    def servers_of(self, member: TeamMember) -> tuple[ToolServer, ...]:
        """Its servers, as far as it may use any of their tools."""
        allowed = self.permissions.allowed_tools
        return tuple(server for server in member.servers if is_wanted(allowed, server))

    @property
    def servers(self) -> tuple[ToolServer, ...]:
        """The same of its whole team."""
        members = self.team.members if self.team is not None else ()
        return tuple(server for member in members for server in self.servers_of(member))

    @property
    def report_path(self) -> str:
        """Where in its workspace the subagent leaves its report."""
        return self.outputs.report_path_pattern.replace("<idx>", str(self.parent.step_idx))
