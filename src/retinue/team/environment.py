"""Environment of a team: its contract, paths, addresses and deadline."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.core.contract import Contract, Team, TeamMember
from retinue.core.ids import MemberId
from retinue.core.voting import OURS, SNAPSHOTS, TEMPORARY, WINNER
from retinue.delegation.tool_schemas import ToolLimits
from retinue.formats.contract_json import contract_from_text


@dataclass(frozen=True, kw_only=True)
class TeamEnvironment:
    """Everything that the steward prepared for this attempt."""

    subagent: str
    contract: Contract
    team: Team
    brief: str
    session: str  # conversation of earlier attempts, as JSON lines
    workspace: Path
    context: Path
    logs: Path
    answer: Path
    final: Path
    inbox: Path
    steward: str  # socket for delegation; empty if the team may not delegate
    gateway: str
    token: str
    deadline: float  # on the monotonic clock
    agent_home: Path | None = None  # holds a folder for each coding agent of the team
    search: str = "/usr/local/bin:/usr/bin:/bin"  # PATH of what the team starts

    @property
    def members(self) -> list[tuple[MemberId, TeamMember]]:
        return self.contract.list_members(self.subagent)

    @property
    def terms(self) -> ToolLimits:
        """Limits that the delegation tools state."""
        limits = self.team.delegation
        if limits is None:
            return ToolLimits()
        return ToolLimits(
            background=limits.background,
            most=limits.most,
            default_seconds=limits.default_seconds,
            least_seconds=limits.least_seconds,
            most_seconds=limits.most_seconds,
            type_names=limits.types,
        )

    @property
    def members_folder(self) -> Path:
        """Parent of the members' folders in a team of several."""
        return self.workspace / self.contract.members_folder

    @property
    def apart(self) -> list[Path]:
        """Paths in the workspace that the team uses itself and that are no part of its output."""
        common = [self.snapshots, self.temporary]
        own = [self.find_home(name) for name, _ in self.members if len(self.members) > 1]
        masked = [self.workspace / mask for agent in self.contract.agents for mask in agent.masks]
        return [*own, *common, self.workspace / OURS, *masked]

    @property
    def snapshots(self) -> Path:
        """Folder with a link to the files of each answer, by its label."""
        return self.members_folder / SNAPSHOTS

    @property
    def winner(self) -> Path:
        """Link to the winner's folder, once there is a winner."""
        return self.snapshots / WINNER

    @property
    def temporary(self) -> Path:
        return self.members_folder / TEMPORARY

    def find_home(self, member: MemberId) -> Path:
        return self.workspace / self.contract.find_member_folder(member)


def read_environment(environment: Mapping[str, str]) -> TeamEnvironment:
    """Read the environment from the variables that the steward set."""

    def get_path(name: str) -> Path:
        return Path(environment[f"RETINUE_{name}"])

    def read_text(name: str) -> str:
        with open(environment[f"RETINUE_{name}"], "rb") as file:
            return file.read().decode("utf-8", "replace")

    contract = contract_from_text(read_text("CONTRACT"))
    assert contract.team is not None, "only a subagent with a team is run as one"
    return TeamEnvironment(
        subagent=environment["RETINUE_SUBAGENT_ID"],
        contract=contract,
        team=contract.team,
        brief=read_text("BRIEF"),
        session=read_text("SESSION") if environment.get("RETINUE_SESSION") else "",
        workspace=get_path("WORKSPACE"),
        context=get_path("CONTEXT"),
        logs=get_path("LOGS"),
        answer=get_path("ANSWER"),
        final=get_path("FINAL"),
        inbox=get_path("INBOX"),
        steward=environment.get("RETINUE_STEWARD", ""),
        gateway=environment.get("RETINUE_GATEWAY", ""),
        token=environment.get("RETINUE_GATEWAY_TOKEN", ""),
        agent_home=get_path("AGENT_HOME") if environment.get("RETINUE_AGENT_HOME") else None,
        search=environment.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
        deadline=time.monotonic() + contract.execution.attempt_timeout_ms / 1000,
    )
