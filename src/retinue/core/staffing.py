"""Selection of a subagent's members from the parent's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from retinue.core.tool_servers import ToolServer

EVALUATOR_POOL = "round_evaluator"  # type that always uses the shared pool
EVERY_TYPE = "*"


@dataclass(frozen=True, kw_only=True)
class ModelBackend:
    """A configured model; its API key is named by an environment variable, never stored."""

    name: str
    type: str  # openai, anthropic, gemini, chatcompletion, local
    model: str = ""
    base_url: str = ""
    api_key_env: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelServer:
    """A model server that answers on this machine and needs no key."""

    name: str
    url: str
    models: tuple[str, ...]  # that can answer; at least one


@dataclass(frozen=True, kw_only=True)
class CodingAgent:
    """A configured coding agent; its requests go to a model backend through the gateway."""

    type: str  # claude_code, codex, gemini_cli, opencode, goose, copilot, acp
    name: str = ""  # id in the configuration; shown for type acp
    model: str = ""  # empty: that of its provider
    provider: str = ""  # name of a model backend; empty: the first that speaks its wire
    program: str = ""  # empty: looked up on the steward's PATH
    native_tools: bool = False
    stall_seconds: float = 120.0
    login: str = "gateway"
    argv: tuple[str, ...] = ()  # of type acp
    wire: str = ""  # of type acp
    environment: tuple[tuple[str, str], ...] = ()  # of type acp
    masks: tuple[str, ...] = ()  # of type acp


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A configured agent that can become a member: a model, a coding agent or a command."""

    id: str
    backend: ModelBackend | None = None
    argv: tuple[str, ...] = ()
    system_message: str = ""
    servers: tuple[ToolServer, ...] = ()  # MCP servers whose tools it may use
    agent: CodingAgent | None = None


@dataclass(frozen=True, kw_only=True)
class Spawner(Candidate):
    """An agent of the delegating team, and the members it configures for its subagents."""

    subagents: tuple[Candidate, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Staff:
    spawners: tuple[Spawner, ...] = ()
    pool: tuple[Candidate, ...] = ()  # shared team
    pool_types: tuple[str, ...] = ()  # subagent types that use the pool
    inherit_one: bool = False  # a subagent gets only the agent that spawned it

    @property
    def everyone(self) -> tuple[Candidate, ...]:
        """Spawners, their subagents' members, and the pool."""
        sent = (each for spawner in self.spawners for each in spawner.subagents)
        return (*self.spawners, *sent, *self.pool)

    @property
    def servers(self) -> tuple[ToolServer, ...]:
        return tuple(server for each in self.everyone for server in each.servers)


def select_members(
    staff: Staff, subagent_type: str | None = None, spawner: str = ""
) -> tuple[Candidate, ...]:
    """Return the members of a new subagent.

    In this order: the pool if the type uses it; the members that the spawner configures; the
    spawner alone, the pool, or all spawners, as configured. A subagent without a type uses the
    pool unless the configuration lists types.
    """
    # A spawner that is not configured counts as the first one.
    own = next((each for each in staff.everyone if each.id == spawner), None)
    if own is None and staff.spawners:
        own = staff.spawners[0]
    if staff.pool and _uses_shared_team(staff.pool_types, subagent_type):
        return staff.pool
    if isinstance(own, Spawner) and own.subagents:
        return own.subagents
    # Here the pool was not meant for this type. It stays the default only if there is no type to
    # decide by and none is listed.
    chosen = bool(subagent_type or staff.pool_types)
    if own is not None and (staff.inherit_one or (staff.pool and chosen)):
        # An empty id names the member after the subagent: a spawner may work in several at once.
        return (replace(own, id=""),)
    if staff.pool:
        return staff.pool
    return tuple(replace(each, id="") for each in staff.spawners)


def _uses_shared_team(types: tuple[str, ...], subagent_type: str | None) -> bool:
    if EVERY_TYPE in types:
        return True
    return subagent_type is not None and subagent_type in (*types, EVALUATOR_POOL)
