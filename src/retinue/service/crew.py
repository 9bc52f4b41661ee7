"""Who does the work of a brief: a command, or a team of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from retinue.domain.brief import Brief
from retinue.domain.briefing import (
    brief_warning,
    child_instructions,
    done_when,
    parent_briefing,
)
from retinue.domain.contract import ROOT, TOOLS, Delegation, Team, TeamMember
from retinue.domain.defaults import LOCAL, NOT_SET, SET_IT, USUAL_MODELS
from retinue.domain.errors import BadInput, Refused
from retinue.domain.policy import TaskConfig
from retinue.domain.restraint import restrained
from retinue.domain.soundness import require_known_tools
from retinue.domain.staffing import Candidate, ModelBackend, members_for
from retinue.domain.subagent_type import Catalogue, SubagentType
from retinue.domain.toolserver import ToolServer

USUAL_TOOLS = tuple(sorted(TOOLS))


@dataclass(frozen=True, kw_only=True)
class Staffed:
    """Who does the work of a brief, and what goes with it."""

    command: tuple[str, ...] = ()
    foreword: str = ""  # of a command
    team: Team | None = None  # instead of a command
    remark: str = ""  # what the brief seems to lack
    skills: tuple[str, ...] = ()  # that its type should use
    refusal: Refused | None = None  # why nobody new can begin so


class Crew:
    """Finds the members for each brief, and what their type asks of them."""

    def __init__(
        self,
        catalogue: Callable[[], Catalogue],
        local_missing: Callable[[], str | None],
        key_missing: Callable[[ModelBackend], str],
        server_ready: Callable[[ToolServer], ToolServer],
    ) -> None:
        self._catalogue = catalogue
        self._local_missing = local_missing  # what keeps the model that runs here from it
        self._key_missing = key_missing  # the variable that would have to hold one
        self._server_ready = server_ready  # an MCP server, once it is sure to be there

    def staffed(self, brief: Brief, config: TaskConfig, spawner: str = "") -> Staffed:
        """The command that is run, or the team that works on the brief.

        Raises:
            BadInput: nobody is there to do it, not with this type, or not with these tools.
        """
        profile = self._profile(brief, config)
        remark = brief_warning(profile, brief.text, brief.context_paths) if profile else ""
        staffed = Staffed(remark=remark, skills=profile.skills if profile else ())
        if brief.argv:
            # Who gives a command alone has written no brief that could lack anything.
            lacking = staffed.remark if brief.text else ""
            command, told = _command(brief.argv, brief), _foreword("", profile, brief)
            return replace(staffed, command=command, foreword=told, remark=lacking)
        members = members_for(config.crew, brief.type, spawner)
        if not members:
            raise BadInput(
                "a brief without a command needs a model, and none is configured",
                code="no_backend",
                hint="list one under agents, in task.yaml for this task or in .retinue/config.yaml"
                " for new ones; at a shell, give a command after '--'",
            )
        commands = [each for each in members if each.argv]
        if commands and len(members) > 1:
            raise BadInput(
                f"{commands[0].id or 'a member'} is a command, and a command works alone",
                code="invalid_team",
                hint="configure one member of type command, or only models",
            )
        if commands:
            told = _foreword(commands[0].system_message, profile, brief)
            command = _command(commands[0].argv, brief)
            return replace(staffed, command=command, foreword=told)
        absent, refusal = self._absent(members, config)
        team = self._team(members, config.round_limits_ms, child_instructions(profile))
        delegation = _delegation(config) if brief.delegation_depth else None
        team = replace(team, refine=brief.refine, delegation=delegation)
        remark = "; ".join(filter(None, (remark, absent)))
        return replace(staffed, team=team, remark=remark, refusal=refusal)

    def unmet(self, config: TaskConfig) -> tuple[str, ...]:
        """What the configuration asks for and cannot have, for whoever wrote it."""
        if config.subagent_types is None:  # as it mostly is: then no spawn looks for any
            return ()
        return self._catalogue().active(config.subagent_types)[1]

    def root(self, config: TaskConfig) -> tuple[Team, str]:
        """The team that a run is started with, and what should be known of it.

        Raises:
            BadInput: nobody is configured, or somebody is no model.
            Refused: the keys of all of them are missing.
        """
        members = config.crew.spawners
        if not members or any(each.argv for each in members):
            raise BadInput(
                "a run needs a team of models, and the configuration names none",
                code="no_backend",
                hint="list them under agents, or use --config @local",
            )
        absent, refusal = self._absent(members, config)
        if refusal is not None:
            raise refusal
        if not config.subagents_enabled:
            return self._team(members, config.own_round_limits_ms, ""), absent
        types, _ = self._catalogue().active(config.subagent_types)  # of the rest, see `unmet`
        briefing = parent_briefing(types, background=config.background_enabled)
        team = self._team(members, config.own_round_limits_ms, briefing)
        shown = tuple(each.name for each in types)
        limits = _delegation(config)
        delegation = replace(limits, planning=config.planning_enabled, types=shown)
        return replace(team, delegation=delegation), absent

    def _absent(
        self, members: Sequence[Candidate], config: TaskConfig
    ) -> tuple[str, Refused | None]:
        """Who has to be done without, because nobody set a key; if that is everybody, a refusal."""
        if config.traffic.mode == "replay":  # which asks nobody
            return "", None
        models = [(each.id or each.backend.name, each.backend) for each in members if each.backend]
        absent = [(name, key) for name, model in models if (key := self._key_missing(model))]
        if len(absent) == len(members):
            keys = " or ".join(dict.fromkeys(key for _, key in absent))
            return "", Refused(f"{keys} {NOT_SET}", code="no_key", hint=SET_IT)
        return "; ".join(f"{name} takes no part: {key} {NOT_SET}" for name, key in absent), None

    def _profile(self, brief: Brief, config: TaskConfig) -> SubagentType | None:
        if brief.type == ROOT:
            raise BadInput(f"the name {ROOT} is taken by the team of a run", code="unknown_type")
        if brief.type is None:
            return None
        return self._catalogue().narrowed(config.subagent_types).require(brief.type)

    def _team(
        self, members: Sequence[Candidate], limits_ms: tuple[int, int, int], instructions: str
    ) -> Team:
        local = any(each.backend and each.backend.type == LOCAL for each in members)
        if local and (no_model := self._local_missing()):
            raise BadInput(no_model, code="no_backend", hint="or name another model with --config")
        first, later, grace = limits_ms
        return Team(
            members=tuple(map(self._member, members)),
            first_round_ms=first,
            later_round_ms=later,
            round_grace_ms=grace,
            instructions=instructions,
        )

    def _member(self, candidate: Candidate) -> TeamMember:
        assert candidate.backend is not None, "who is no command is a model"
        return TeamMember(
            id=candidate.id,
            route=candidate.backend.name,
            wire=candidate.backend.type,
            model=candidate.backend.model or USUAL_MODELS.get(candidate.backend.type, ""),
            system_message=candidate.system_message,
            servers=tuple(map(self._server_ready, candidate.servers)),
        )


def tools_of(servers: Sequence[ToolServer]) -> tuple[str, ...]:
    """What members may use where nothing is said: every tool there is."""
    return (*USUAL_TOOLS, *dict.fromkeys(server.every_tool for server in servers))


def _command(argv: Sequence[str], brief: Brief) -> tuple[str, ...]:
    """What is run, held to the tools of the brief, if it names any or none."""
    if brief.tools is None:
        return tuple(argv)
    require_known_tools(brief.tools, None)
    return restrained(argv, brief.tools, hands_on=brief.delegation_depth > 0)


def _foreword(own: str, profile: SubagentType | None, brief: Brief) -> str:
    """What a command finds before its brief: its role and when it is done, as far as these are
    given.
    """
    role = child_instructions(profile) if profile is not None else ""
    parts = (own, role, done_when(brief.success_criteria))
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _delegation(config: TaskConfig) -> Delegation:
    return Delegation(
        most=config.max_concurrent,
        default_seconds=config.default_timeout_ms / 1000,
        least_seconds=config.min_timeout_ms / 1000,
        most_seconds=config.max_timeout_ms / 1000,
        background=config.background_enabled,
    )
