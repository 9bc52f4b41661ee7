"""Staffing: the command or the team of models that works on a brief."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from retinue.core.agent_cli_tools import restrict_command
from retinue.core.brief import Brief
from retinue.core.contract import ROOT, TOOLS, Delegation, Team, TeamMember, require_known_tools
from retinue.core.default_models import LOCAL, NOT_SET, SET_IT, get_model
from retinue.core.errors import AGENT, PYTHON, BadInput, Refused
from retinue.core.prompts import (
    check_brief,
    format_child_instructions,
    format_parent_briefing,
    format_success_criteria,
)
from retinue.core.staffing import Candidate, ModelBackend, select_members
from retinue.core.subagent_type import Catalogue, SubagentType
from retinue.core.task_config import TaskConfig
from retinue.core.tool_servers import ToolServer
from retinue.steward.agent_staffing import AgentSelector

LIST_ONE = "list a model under agents in the configuration"
DEFAULT_TOOLS = tuple(sorted(TOOLS))


@dataclass(frozen=True, kw_only=True)
class WorkerSelection:
    """The workers of a brief: either a command or a team."""

    command: tuple[str, ...] = ()
    foreword: str = ""  # text before a command's brief
    team: Team | None = None
    remark: str = ""  # a warning: what the brief or a member lacks
    skills: tuple[str, ...] = ()  # that the type should use
    refusal: Refused | None = None  # why a new subagent cannot start


class WorkerSelector:
    """Selects the workers of each brief by its configuration and type."""

    def __init__(
        self,
        *,
        load_catalogue: Callable[[], Catalogue],
        find_missing_local_model: Callable[[], str | None],
        find_missing_key: Callable[[ModelBackend], str],
        require_server_ready: Callable[[ToolServer], ToolServer],
        agents: AgentSelector,
    ) -> None:
        """Args:
        find_missing_local_model: returns why the local model cannot run, or None.
        find_missing_key: returns the unset variable for a backend's key, or "".
        require_server_ready: checks that an MCP server can be started.
        """
        self._load_catalogue = load_catalogue
        self._find_missing_local_model = find_missing_local_model
        self._find_missing_key = find_missing_key
        self._require_server_ready = require_server_ready
        self.agents = agents

    def select_workers(
        self, brief: Brief, config: TaskConfig, spawner: str = ""
    ) -> WorkerSelection:
        """Return the command or the team that works on the brief.

        Raises:
            BadInput: no worker is configured, or the type or a tool is unknown.
        """
        profile = self._get_profile(brief, config)
        remark = check_brief(profile, brief.text, brief.context_paths) if profile else ""
        staffed = WorkerSelection(remark=remark, skills=profile.skills if profile else ())
        if brief.argv:
            # A command without a brief text gets no warning about that text.
            lacking = staffed.remark if brief.text else ""
            command = _build_command(brief.argv, brief)
            foreword = _build_foreword("", profile, brief)
            return replace(staffed, command=command, foreword=foreword, remark=lacking)
        members = self._select_members(brief, config, spawner)
        if not members:
            raise BadInput(
                "a brief without a command needs a model, and none is configured",
                code="no_backend",
                hint=f"{LIST_ONE}, or give a command after '--'",
                hints={AGENT: LIST_ONE, PYTHON: f"{LIST_ONE}, or give Brief(argv=[...])"},
            )
        commands = [each for each in members if each.argv]
        if commands and len(members) > 1:
            raise BadInput(
                f"{commands[0].id or 'a member'} is a command, which cannot be in a team",
                code="invalid_team",
                hint="configure one member of type command, or only models",
            )
        if commands:
            foreword = _build_foreword(commands[0].system_message, profile, brief)
            command = _build_command(commands[0].argv, brief)
            unset, refusal = self._find_unset_keys(config)
            remark = "; ".join(filter(None, (remark, unset)))
            return replace(
                staffed, command=command, foreword=foreword, remark=remark, refusal=refusal
            )
        absent, refusal = self._find_absent_members(members, config)
        lists_files = brief.answer_schema is None and brief.access == "write"
        instructions = format_child_instructions(profile, lists_files=lists_files)
        team, missing = self._make_team(members, config, config.round_limits_ms, instructions)
        delegation = _make_delegation(config) if brief.delegation_depth else None
        team = replace(team, refine=brief.refine, delegation=delegation)
        remark = "; ".join(filter(None, (remark, absent, missing)))
        return replace(staffed, team=team, remark=remark, refusal=refusal)

    def _select_members(
        self, brief: Brief, config: TaskConfig, spawner: str
    ) -> tuple[Candidate, ...]:
        """Return the coding agent that the brief names, or the members by configuration."""
        if brief.agent:
            members: tuple[Candidate, ...] = (self.agents.find_candidate(brief.agent, config),)
        else:
            members = select_members(config.crew, brief.type, spawner)
        if not brief.model:
            return members
        agents = [each.agent for each in members if each.agent is not None]
        if len(agents) != 1 or len(members) != 1:
            raise BadInput(
                "a model can only be named for a single coding agent",
                code="invalid_request",
                hint="name the agent as well, or set its model in the configuration",
            )
        return (replace(members[0], agent=replace(agents[0], model=brief.model)),)

    def list_unmet(self, config: TaskConfig) -> tuple[str, ...]:
        """Return warnings about configured subagent types that do not exist."""
        # Usually no types are configured: skip reading the catalogue.
        if config.subagent_types is None:
            return ()
        return self._load_catalogue().list_active(config.subagent_types)[1]

    def select_root_team(self, config: TaskConfig) -> tuple[Team, str]:
        """Return the root team of a run, and a warning about members without a key.

        Raises:
            BadInput: no member is configured, or one is a command.
            Refused: the keys of all members are missing.
        """
        members = config.crew.spawners
        if not members or any(each.argv for each in members):
            raise BadInput(
                "a run needs a team of models, and the configuration names none",
                code="no_backend",
                hint="list them under agents, or use --config @local",
            )
        absent, refusal = self._find_absent_members(members, config)
        if refusal is not None:
            raise refusal
        if not config.subagents_enabled:
            team, missing = self._make_team(members, config, config.own_round_limits_ms, "")
            return team, "; ".join(filter(None, (absent, missing)))
        # `list_unmet` reports types that do not exist.
        types, _ = self._load_catalogue().list_active(config.subagent_types)
        briefing = format_parent_briefing(types, background=config.background_enabled)
        team, missing = self._make_team(members, config, config.own_round_limits_ms, briefing)
        absent = "; ".join(filter(None, (absent, missing)))
        shown = tuple(each.name for each in types)
        limits = _make_delegation(config)
        delegation = replace(limits, planning=config.planning_enabled, types=shown)
        return replace(team, delegation=delegation), absent

    def _find_absent_members(
        self, members: Sequence[Candidate], config: TaskConfig
    ) -> tuple[str, Refused | None]:
        """Return a warning about members without a key; if all lack one, a refusal."""
        # A replay sends no requests, so it needs no keys.
        if config.traffic.mode == "replay":
            return "", None
        models = [(each.id or each.backend.name, each.backend) for each in members if each.backend]
        absent = [(name, key) for name, model in models if (key := self._find_missing_key(model))]
        if absent and len(absent) == len(members):
            keys = " or ".join(dict.fromkeys(key for _, key in absent))
            return "", Refused(f"{keys} {NOT_SET}", code="no_key", hint=SET_IT)
        return "; ".join(f"{name} takes no part: {key} {NOT_SET}" for name, key in absent), None

    def _find_unset_keys(self, config: TaskConfig) -> tuple[str, Refused | None]:
        """Return a warning about providers without a key; if all lack one, a refusal.

        A configured command reaches the configured providers through the gateway. Without any
        key it would only meet errors.
        """
        if config.network == "off" or config.traffic.mode == "replay":
            return "", None
        missing = [(each.name, self._find_missing_key(each)) for each in config.backends]
        unset = [(name, key) for name, key in missing if key]
        if unset and len(unset) == len(config.backends):
            keys = " or ".join(dict.fromkeys(key for _, key in unset))
            return "", Refused(f"{keys} {NOT_SET}", code="no_key", hint=SET_IT)
        return "; ".join(f"{name} does not answer: {key} {NOT_SET}" for name, key in unset), None

    def _get_profile(self, brief: Brief, config: TaskConfig) -> SubagentType | None:
        if brief.type == ROOT:
            raise BadInput(
                f"the type {ROOT} is reserved for the team of a run", code="unknown_type"
            )
        if brief.type is None:
            return None
        return self._load_catalogue().narrow(config.subagent_types).require(brief.type)

    def _make_team(
        self,
        members: Sequence[Candidate],
        config: TaskConfig,
        limits_ms: tuple[int, int, int],
        instructions: str,
    ) -> tuple[Team, str]:
        """Return the team, and a warning about coding agents that cannot take part.

        Raises:
            BadInput, Refused: no member can.
        """
        local = any(each.backend and each.backend.type == LOCAL for each in members)
        if local and (no_model := self._find_missing_local_model()):
            raise BadInput(no_model, code="no_backend", hint=f"or {LIST_ONE}")
        first, later, grace = limits_ms
        made: list[TeamMember] = []
        refused: list[tuple[Candidate, BadInput | Refused]] = []
        for each in members:
            try:
                made.append(self._make_member(each, config))
            except (BadInput, Refused) as why:
                if each.agent is None:
                    raise
                refused.append((each, why))
        if not made:
            raise refused[0][1]
        team = Team(
            members=tuple(made),
            first_round_ms=first,
            later_round_ms=later,
            round_grace_ms=grace,
            instructions=instructions,
        )
        named = [f"{each.id or 'an agent'} takes no part: {why.message}" for each, why in refused]
        return team, "; ".join(named)

    def _make_member(self, candidate: Candidate, config: TaskConfig) -> TeamMember:
        if candidate.agent is not None:
            # A replay sends no requests, so it needs no keys.
            needs_key = config.traffic.mode != "replay"
            ready = tuple(map(self._require_server_ready, candidate.servers))
            given = replace(candidate, servers=ready)
            return self.agents.make_member(given, config, needs_key=needs_key)
        assert candidate.backend is not None, "a member that is not a command has a model"
        return TeamMember(
            id=candidate.id,
            route=candidate.backend.name,
            wire=candidate.backend.type,
            model=get_model(candidate.backend),
            system_message=candidate.system_message,
            servers=tuple(map(self._require_server_ready, candidate.servers)),
        )


def list_default_tools(servers: Sequence[ToolServer]) -> tuple[str, ...]:
    """Return the tools of members for which none are named: all of them."""
    return (*DEFAULT_TOOLS, *dict.fromkeys(server.every_tool for server in servers))


def _build_command(argv: Sequence[str], brief: Brief) -> tuple[str, ...]:
    """Return the command, restricted to the tools of the brief if it names a list."""
    if brief.tools is None:
        return tuple(argv)
    require_known_tools(brief.tools, None)
    return restrict_command(argv, brief.tools, may_delegate=brief.delegation_depth > 0)


def _build_foreword(own: str, profile: SubagentType | None, brief: Brief) -> str:
    """Return the text before a command's brief: its role and success criteria, if given."""
    role = format_child_instructions(profile) if profile is not None else ""
    parts = (own, role, format_success_criteria(brief.success_criteria))
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _make_delegation(config: TaskConfig) -> Delegation:
    return Delegation(
        most=config.max_concurrent,
        default_seconds=config.default_timeout_ms / 1000,
        least_seconds=config.min_timeout_ms / 1000,
        most_seconds=config.max_timeout_ms / 1000,
        background=config.background_enabled,
    )
