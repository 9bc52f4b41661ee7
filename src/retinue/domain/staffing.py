"""Who works inside a subagent: the members that its parent's configuration gives it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from retinue.domain.toolserver import ToolServer

EVALUATOR_POOL = "round_evaluator"  # the type that the shared pool is for when nothing is said
EVERY_TYPE = "*"


@dataclass(frozen=True, kw_only=True)
class ModelBackend:
    """A way to a model, as someone configured it; its key is known by the name of a variable."""

    name: str
    type: str  # openai, anthropic, gemini, chatcompletion, local
    model: str = ""
    base_url: str = ""
    api_key_env: str = ""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Somebody who could be a member, as it was configured: a model, or a command."""

    id: str
    backend: ModelBackend | None = None
    argv: tuple[str, ...] = ()
    system_message: str = ""
    servers: tuple[ToolServer, ...] = ()  # whose tools it is given, too


@dataclass(frozen=True, kw_only=True)
class Spawner(Candidate):
    """One of the team that delegates, and whom it sends for its own subagents."""

    subagents: tuple[Candidate, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Staff:
    spawners: tuple[Spawner, ...] = ()
    pool: tuple[Candidate, ...] = ()  # shared by all who opted in
    pool_types: tuple[str, ...] = ()
    inherit_one: bool = False  # a subagent is staffed like the very one that spawned it

    @property
    def everyone(self) -> tuple[Candidate, ...]:
        """Who delegates, whom they send, and the pool."""
        sent = (each for spawner in self.spawners for each in spawner.subagents)
        return (*self.spawners, *sent, *self.pool)

    @property
    def servers(self) -> tuple[ToolServer, ...]:
        """Of everybody who is configured."""
        return tuple(server for each in self.everyone for server in each.servers)


def members_for(
    staff: Staff, subagent_type: str | None = None, spawner: str = ""
) -> tuple[Candidate, ...]:
    """The members of a new subagent.

    The pool, where its type opted in; else whom its spawner sends; else its spawner alone, or
    the pool, or all spawners, as configured. Who is inherited is named after the subagent, since
    the same one works in several.
    """
    own = next((each for each in staff.everyone if each.id == spawner), None)
    if own is None and staff.spawners:
        own = staff.spawners[0]
    if staff.pool and _opted_in(staff.pool_types, subagent_type):
        return staff.pool
    if isinstance(own, Spawner) and own.subagents:
        return own.subagents
    if own is not None and (staff.inherit_one or (staff.pool and subagent_type)):
        return (replace(own, id=""),)
    if staff.pool:
        return staff.pool
    return tuple(replace(each, id="") for each in staff.spawners)


def _opted_in(types: tuple[str, ...], subagent_type: str | None) -> bool:
    if EVERY_TYPE in types:
        return True
    return subagent_type is not None and subagent_type in (*types, EVALUATOR_POOL)
