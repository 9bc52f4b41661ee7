"""Which backend answers for a member."""

from __future__ import annotations

from retinue.backends.hosted import HostedModel
from retinue.backends.local import LocalModel
from retinue.domain.contract import TeamMember


def backend_for(member: TeamMember, gateway: str, token: str) -> HostedModel | LocalModel:
    hosted = HostedModel(member, gateway, token)
    return LocalModel(hosted) if member.wire == "local" else hosted
