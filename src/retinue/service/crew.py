"""Who does the work of a brief: a command, or a team of models."""

from __future__ import annotations

from retinue.domain.brief import Brief
from retinue.domain.contract import TOOLS, Team, TeamMember
from retinue.domain.errors import BadInput
from retinue.domain.policy import TaskConfig
from retinue.domain.staffing import Candidate, members_for

USUAL_TOOLS = tuple(sorted(TOOLS))


def staffed(brief: Brief, config: TaskConfig) -> tuple[tuple[str, ...], Team | None]:
    """The command that is run, or the team that works on the brief.

    Raises:
        BadInput: nobody is there to do it.
    """
    if brief.argv:
        return tuple(brief.argv), None
    members = members_for(config.staff, brief.type)
    if not members:
        raise BadInput(
            "a brief without a command needs a model, and none is configured",
            code="no_backend",
            hint="give the command to run after '--'",
        )
    commands = [each for each in members if each.argv]
    if commands and len(members) > 1:
        raise BadInput(
            f"{commands[0].id or 'a member'} is a command, and a command works alone",
            code="invalid_team",
            hint="configure one member of type command, or only models",
        )
    if commands:
        return commands[0].argv, None
    first, later, grace = config.round_limits_ms
    return (), Team(
        members=tuple(map(_member, members)),
        refine=brief.refine,
        first_round_ms=first,
        later_round_ms=later,
        round_grace_ms=grace,
    )


def _member(candidate: Candidate) -> TeamMember:
    assert candidate.backend is not None, "who is no command is a model"
    return TeamMember(
        id=candidate.id,
        route=candidate.backend.name,
        wire=candidate.backend.type,
        model=candidate.backend.model,
        system_message=candidate.system_message,
    )
