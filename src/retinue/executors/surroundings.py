"""What a team finds around it: who it is, what it may do, where its files are, until when."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.delegating.terms import Terms
from retinue.domain.contract import Contract, Team, TeamMember
from retinue.domain.ids import MemberId
from retinue.domain.team import OURS, SNAPSHOTS, TEMPORARY, WINNER
from retinue.wire.contract import contract_from_text


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    subagent: str
    contract: Contract
    team: Team
    brief: str
    session: str  # what was said in earlier attempts
    workspace: Path
    context: Path
    logs: Path
    answer: Path
    final: Path
    inbox: Path
    steward: str  # the socket of whoever carries out a delegation; empty: it may not delegate
    gateway: str
    token: str
    deadline: float  # on the monotonic clock

    @property
    def members(self) -> list[tuple[MemberId, TeamMember]]:
        return self.contract.named_members(self.subagent)

    @property
    def terms(self) -> Terms:
        """What the tools of delegation say of the limits in force."""
        limits = self.team.delegation
        if limits is None:
            return Terms()
        return Terms(
            background=limits.background,
            most=limits.most,
            default_seconds=limits.default_seconds,
            least_seconds=limits.least_seconds,
            most_seconds=limits.most_seconds,
            type_names=limits.types,
        )

    @property
    def homes(self) -> Path:
        """Where members of a larger team have folders of their own."""
        return self.workspace / self.contract.homes

    @property
    def apart(self) -> list[Path]:
        """What lies in the workspace for the team's own use, and is no part of its work."""
        common = [self.snapshots, self.temporary]
        own = [self.home(name) for name, _ in self.members if len(self.members) > 1]
        return [*own, *common, self.workspace / OURS]

    @property
    def snapshots(self) -> Path:
        """Where everybody finds the files that belong to an answer, by its label."""
        return self.homes / SNAPSHOTS

    @property
    def winner(self) -> Path:
        """Leads to the folder that the workspace has its files from, once there is one."""
        return self.snapshots / WINNER

    @property
    def temporary(self) -> Path:
        return self.homes / TEMPORARY

    def home(self, member: MemberId) -> Path:
        return self.workspace / self.contract.home_of(member)


def look_around(environment: Mapping[str, str]) -> Surroundings:
    """What the steward laid out for this attempt, by the variables it set."""

    def path(name: str) -> Path:
        return Path(environment[f"RETINUE_{name}"])

    def text(name: str) -> str:
        with open(environment[f"RETINUE_{name}"], "rb") as file:
            return file.read().decode("utf-8", "replace")

    contract = contract_from_text(text("CONTRACT"))
    assert contract.team is not None, "only a subagent with a team is run as one"
    return Surroundings(
        subagent=environment["RETINUE_SUBAGENT_ID"],
        contract=contract,
        team=contract.team,
        brief=text("BRIEF"),
        session=text("SESSION") if environment.get("RETINUE_SESSION") else "",
        workspace=path("WORKSPACE"),
        context=path("CONTEXT"),
        logs=path("LOGS"),
        answer=path("ANSWER"),
        final=path("FINAL"),
        inbox=path("INBOX"),
        steward=environment.get("RETINUE_STEWARD", ""),
        gateway=environment.get("RETINUE_GATEWAY", ""),
        token=environment.get("RETINUE_GATEWAY_TOKEN", ""),
        deadline=time.monotonic() + contract.execution.attempt_timeout_ms / 1000,
    )
