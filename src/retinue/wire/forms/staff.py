"""Members as people configure them: who answers, and how it is reached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from retinue.domain.staffing import Candidate, ModelBackend, Spawner, Staff
from retinue.domain.team import SNAPSHOTS, TEMPORARY
from retinue.wire.forms.refusal import disagreement, require_distinct
from retinue.wire.forms.toolservers import McpServers
from retinue.wire.forms.values import Address, Name, Variable, Word


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_all_defaults(cls, value: object) -> object:
        return {} if value is None else value


class Backend(Section):
    type: Literal["openai", "anthropic", "claude", "gemini", "chatcompletion", "local", "command"]
    model: Word | None = None
    cwd: Word | None = None
    enable_mcp_command_line: bool = False
    base_url: Address | None = None
    api_key_env: Variable | None = None
    argv: list[Word] = []
    mcp_servers: McpServers = []

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Backend:
        if (self.type == "command") != bool(self.argv):
            raise disagreement("argv", "belongs to type command, which cannot do without it")
        if self.type == "chatcompletion" and self.base_url is None:
            raise disagreement("base_url", "type chatcompletion cannot do without it")
        if self.type == "command" and self.mcp_servers:
            raise disagreement("mcp_servers", "has no meaning for type command")
        require_distinct((each.name for each in self.mcp_servers), "mcp_servers", "servers")
        return self

    @property
    def is_codex(self) -> bool:
        return bool(self.argv) and self.argv[0].rpartition("/")[2] == "codex"


class Member(Section):
    id: Name
    backend: Backend
    system_message: str | None = None

    @model_validator(mode="after")
    def _can_have_a_folder(self) -> Self:
        if self.id in (SNAPSHOTS, TEMPORARY):
            raise disagreement("id", f"a team has a folder of its own that is named {self.id!a}")
        return self

    def model_backend(self) -> ModelBackend | None:
        """How its model is reached; None where a command answers instead."""
        backend = self.backend
        if backend.type == "command":
            return None
        return ModelBackend(
            name=self.id,
            type="anthropic" if backend.type == "claude" else backend.type,
            model=backend.model or "",
            base_url=backend.base_url or "",
            api_key_env=backend.api_key_env or "",
        )

    def candidate(self) -> Candidate:
        return Candidate(
            id=self.id,
            backend=self.model_backend(),
            argv=tuple(self.backend.argv),
            system_message=self.system_message or "",
            servers=tuple(server.server() for server in self.backend.mcp_servers),
        )


def require_one_way_each(members: Iterable[Member]) -> None:
    """The gateway knows members by their names: one name cannot lead to two models."""
    known: dict[str, Backend] = {}
    for member in members:
        if known.setdefault(member.id, member.backend) != member.backend:
            raise disagreement(
                "agents", f"{member.id!a} has two different backends; name them apart"
            )


class Agent(Member):
    subagent_agents: list[Member] = []

    @model_validator(mode="after")
    def _members_are_distinct(self) -> Agent:
        require_distinct((each.id for each in self.subagent_agents), "subagent_agents", "members")
        return self

    def spawner(self) -> Spawner:
        sent = tuple(member.candidate() for member in self.subagent_agents)
        return Spawner(**vars(self.candidate()), subagents=sent)


class SubagentOrchestrator(Section):
    enabled: bool = False
    parse_at_references: bool = True
    inherit_spawning_agent_backend: bool = False
    shared_child_team_types: list[Word] = []
    agents: list[Member] = []

    @model_validator(mode="after")
    def _members_are_distinct(self) -> SubagentOrchestrator:
        require_distinct((each.id for each in self.agents), "agents", "members")
        return self


def staff_of(agents: Iterable[Agent], shared: SubagentOrchestrator) -> Staff:
    """Who may be sent; the shared pool only where it is switched on."""
    on = shared.enabled
    return Staff(
        spawners=tuple(agent.spawner() for agent in agents),
        pool=tuple(member.candidate() for member in shared.agents) if on else (),
        pool_types=tuple(shared.shared_child_team_types) if on else (),
        inherit_one=on and shared.inherit_spawning_agent_backend,
    )
