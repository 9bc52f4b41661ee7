"""Staffing with coding agents: their program, the provider of their requests, their tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retinue.agents.contract_terms import make_profile, select_own_tools
from retinue.agents.discovery import FoundProgram, ProgramMissing, find_program
from retinue.agents.launch import check_tools
from retinue.agents.profiles import PROFILES, AgentProfile, find_profile, make_acp_profile
from retinue.core.contract import TOOLS, AgentProgram, Contract, TeamMember
from retinue.core.default_models import (
    NOT_SET,
    SET_IT,
    WIRES_BY_TYPE,
    accepts_wire,
    get_model,
)
from retinue.core.errors import AGENT, BadInput, Refused
from retinue.core.staffing import Candidate, CodingAgent, ModelBackend
from retinue.core.task_config import ISOLATED, Boundary, TaskConfig

ACP = "acp"
PROVIDER_KEYS = ("type", "model", "base_url", "api_key_env")
# Types of backends that coding agents can use.
AGENT_BACKEND_TYPES = tuple(kind for kind, wires in WIRES_BY_TYPE.items() if wires)
# For the hint of a refusal: the variable with a key for each wire, and the backends that speak it.
KEY_BY_WIRE = {
    "anthropic": "ANTHROPIC_API_KEY",
    "responses": "OPENAI_API_KEY",
    "chat": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
}
BACKEND_TYPES_BY_WIRE = {
    "anthropic": "anthropic",
    "responses": "openai",
    "chat": "openai or chatcompletion",
    "gemini": "gemini",
}


@dataclass(frozen=True, kw_only=True)
class AgentStatus:
    """One coding agent on this machine, as `retinue agent list` shows it."""

    profile: AgentProfile
    name: str
    found: FoundProgram | None
    provider: str
    problem: str
    problem_code: str
    login: str = "gateway"

    @property
    def tested(self) -> bool:
        return self.found is not None and self.profile.is_tested(self.found.version)


def agent_to_json(status: AgentStatus) -> dict[str, object]:
    profile = status.profile
    document: dict[str, object] = {
        "agent": status.name,
        "installed": status.found is not None,
        "program": status.found.words[-1] if status.found else None,
        "version": status.found.version if status.found else None,
        "tested": status.tested,
        "wire": profile.wire,
        "login": status.login,
        "provider": status.provider or None,
        "tools": profile.tools,
        "resume": profile.resume,
        "steer": profile.steer,
    }
    if status.problem:
        document |= {"problem": status.problem, "problem_code": status.problem_code}
    return document


class AgentSelector:
    """Finds the program and the provider of a coding agent.

    Args:
        search: the steward's PATH.
        key_missing: returns the unset variable for a backend's key, or "".
    """

    def __init__(
        self, search: str, key_missing: Callable[[ModelBackend], str], user_home: Path
    ) -> None:
        self._search = search
        self._key_missing = key_missing
        self._user_home = user_home

    def find_candidate(self, name: str, config: TaskConfig) -> Candidate:
        """Return the coding agent of this name: a configured one by its id, or a known one.

        Raises:
            BadInput: there is none.
        """
        configured = [each for each in config.crew.everyone if each.agent is not None]
        for each in configured:
            if each.id == name:
                return replace(each, id="")
        profile = find_profile(name)
        if profile is None:
            known = [each.short_name for each in PROFILES] + [each.id for each in configured]
            raise BadInput(
                f"unknown coding agent {name[:40]!a}",
                code="unknown_agent",
                hint=f"known: {', '.join(dict.fromkeys(known))}; "
                "others by a backend of type acp in the configuration",
            )
        # A single configured agent of this kind says how this kind is used here.
        alike = [each for each in configured if each.agent and each.agent.type == profile.name]
        if len(alike) == 1:
            return replace(alike[0], id="")
        return Candidate(id="", agent=CodingAgent(type=profile.name))

    def make_member(
        self, candidate: Candidate, config: TaskConfig, *, needs_key: bool = True
    ) -> TeamMember:
        """Return the member for a coding agent.

        Raises:
            BadInput: `agent_not_installed` or `wire_mismatch`.
            Refused: `no_key`.
        """
        agent = candidate.agent
        assert agent is not None
        profile = _make_profile(candidate, agent)
        found = self._find(profile, agent)
        route, wire, model = "", profile.wire, agent.model
        if agent.login == "gateway":
            backend = self._choose_provider(profile, agent, config, needs_key=needs_key)
            route, model = backend.name, agent.model or get_model(backend)
        return TeamMember(
            id=candidate.id,
            route=route,
            wire=wire,
            model=model,
            system_message=candidate.system_message,
            servers=candidate.servers,
            agent=AgentProgram(
                type=agent.type,
                name=profile.short_name,
                version=found.version,
                program=found.words,
                lent=found.lent,
                wire=profile.wire,
                argv=profile.argv,
                environment=profile.environment,
                masks=profile.masks,
                native_tools=agent.native_tools,
                stall_seconds=agent.stall_seconds,
                login=agent.login,
                credentials=self._list_credentials(profile, agent),
                remark=_remark_on(profile, found),
            ),
        )

    def list_agents(self, config: TaskConfig) -> list[AgentStatus]:
        """Return every agent that `find_candidate` finds, and why one cannot be used.

        First the known ones, which a configuration may have changed, then the other configured.
        """
        configured = [each.id for each in config.crew.everyone if each.agent is not None]
        names = dict.fromkeys([*(each.short_name for each in PROFILES), *configured])
        return [self._describe(name, config) for name in names]

    def _describe(self, name: str, config: TaskConfig) -> AgentStatus:
        candidate = self.find_candidate(name, config)
        agent = candidate.agent
        assert agent is not None
        profile = _make_profile(candidate, agent)
        found, provider, problem, code = None, "", "", ""
        try:
            found = self._find(profile, agent)
            if agent.login == "gateway":
                provider = self._choose_provider(profile, agent, config, needs_key=True).name
            self._list_credentials(profile, agent)  # refuses an own login that is not there
        except (BadInput, Refused) as why:
            problem = f"{why.message} ({why.hint})" if why.hint else why.message
            code = why.code
        return AgentStatus(
            profile=profile,
            name=name,
            found=found,
            provider=provider,
            problem=problem,
            problem_code=code,
            login=agent.login,
        )

    def _find(self, profile: AgentProfile, agent: CodingAgent) -> FoundProgram:
        try:
            return find_program(profile, agent.program, self._search)
        except ProgramMissing as why:
            packages = " ".join(profile.packages)
            hint = (
                f"npm install -g {packages}, or set program in its backend"
                if packages
                else "the first word of argv must be a program on the steward's PATH, or its path"
            )
            raise BadInput(
                f"{profile.title} is not installed: {why}",
                code="agent_not_installed",
                hint=hint,
                hints={
                    AGENT: f"choose another agent or leave it out; the user can mend it: {hint}"
                },
            ) from None

    def _choose_provider(
        self, profile: AgentProfile, agent: CodingAgent, config: TaskConfig, *, needs_key: bool
    ) -> ModelBackend:
        """Return the provider of the agent's requests: the named one, or the first that fits."""
        known = config.agent_providers
        if agent.provider:
            named = next((each for each in known if each.name == agent.provider), None)
            if named is None:
                names = ", ".join(each.name for each in known) or "none"
                raise BadInput(
                    f"{profile.title} names the unknown provider {agent.provider[:40]!a}",
                    code="unknown_provider",
                    hint=f"known: {names}",
                )
            fitting = [named] if accepts_wire(named, profile.wire) else []
            offered = [named]
        else:
            fitting = [each for each in known if accepts_wire(each, profile.wire)]
            offered = list(config.backends) + list(config.providers)
        if fitting:
            ready = [each for each in fitting if not (needs_key and self._key_missing(each))]
            if ready:
                return ready[0]
            keys = " or ".join(dict.fromkeys(self._key_missing(each) for each in fitting))
            raise self._refuse_keyless(keys, profile)
        if offered:
            names = ", ".join(f"{each.name} ({each.type})" for each in offered)
            raise BadInput(
                f"{profile.title} needs a provider that speaks {profile.wire}, "
                f"and there is only {names}",
                code="wire_mismatch",
                hint=f"add a backend of type {BACKEND_TYPES_BY_WIRE[profile.wire]} under "
                f"providers, or set {KEY_BY_WIRE[profile.wire]}",
            )
        raise self._refuse_keyless(KEY_BY_WIRE[profile.wire], profile)

    def _refuse_keyless(self, keys: str, profile: AgentProfile) -> Refused:
        """Return the refusal; it names the own login of the user, if there is one."""
        hint = SET_IT
        if self._list_logins(profile):
            command = f"retinue mcp install --subagents {profile.short_name}"
            hint += f"; or use your login with {profile.program}: '{command}' configures that"
        return Refused(f"{keys} {NOT_SET}", code="no_key", hint=hint)

    def _list_logins(self, profile: AgentProfile) -> tuple[tuple[str, str], ...]:
        """Return the files of this user's own login: where each is, and its place at home."""
        files = [(self._user_home / each.source, each.target) for each in profile.credentials]
        return tuple((str(path), target) for path, target in files if path.is_file())

    def _list_credentials(
        self, profile: AgentProfile, agent: CodingAgent
    ) -> tuple[tuple[str, str], ...]:
        if agent.login != "own":
            return ()
        there = self._list_logins(profile)
        if not there:
            raise BadInput(
                f"{profile.title} has no login of its own on this machine",
                code="no_login",
                hint=f"log in with {profile.program} first, or use login: gateway",
            )
        return there


def name_members(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a configuration whose team is these coding agents.

    An agent that the configuration has by that id stays as it is; its models become providers.

    Raises:
        BadInput: a name is unknown.
    """
    configured = {str(each.get("id")): each for each in document.get("agents") or ()}
    members: list[Any] = []
    for name in names:
        profile = find_profile(name)
        own = configured.get(name)
        if own is None and profile is None:
            known = [each.short_name for each in PROFILES] + list(configured)
            raise BadInput(
                f"unknown coding agent {name[:40]!a}",
                code="unknown_agent",
                hint=f"known: {', '.join(dict.fromkeys(known))}",
            )
        alike = names[: len(members)].count(name)
        unique = f"{name}-{alike + 1}" if alike else name
        made = own or {"backend": {"type": profile.name if profile else ACP}}
        members.append({**made, "id": unique})
    taken = {member["id"] for member in members}
    models = []
    for name, each in configured.items():
        backend = each["backend"]
        if backend["type"] in (*AGENT_BACKEND_TYPES, "claude") and name not in taken:
            kept = {key: backend[key] for key in PROVIDER_KEYS if key in backend}
            models.append({"id": name, "backend": kept})
    providers = [*(document.get("providers") or ()), *models]
    return {**document, "agents": members} | ({"providers": providers} if providers else {})


def require_agents_reach_models(members: Sequence[TeamMember], boundary: Boundary) -> None:
    """Check that coding agents can reach a model from behind this boundary.

    Raises:
        BadInput: `network_needed`.
    """
    shut = boundary.mode == ISOLATED and boundary.network != "on"
    for agent in filter(None, (member.agent for member in members)):
        if not agent.metered and shut:
            raise BadInput(
                f"{agent.name} with its own login needs the network, which subagents do not have",
                code="network_needed",
                hint="set subagent_network to on, or use login: gateway",
            )
        if agent.metered and boundary.network == "off":
            raise BadInput(
                f"{agent.name} needs a model, and subagent_network is off",
                code="network_needed",
                hint="set subagent_network to models",
            )


def require_agents_fit(contract: Contract, asked: Sequence[str] | None) -> None:
    """Check that each coding agent of a contract can work on its terms and is held to its tools.

    Args:
        asked: the tools as the brief named them; None if it named none.

    Raises:
        BadInput: `tools_not_enforced`, or `network_needed` for an agent with its own login.
    """
    isolated = contract.boundary.mode == ISOLATED
    if contract.team is not None:
        require_agents_reach_models(contract.team.members, contract.boundary)
    allowed = contract.permissions.allowed_tools
    if asked is None and set(allowed) >= TOOLS:
        return
    for agent in contract.agents:
        check_tools(
            make_profile(agent),
            select_own_tools(allowed),
            masked=isolated,
        )


def _make_profile(candidate: Candidate, agent: CodingAgent) -> AgentProfile:
    if agent.type != ACP:
        profile = find_profile(agent.type)
        assert profile is not None, "the configuration allows only known types"
        return profile
    return make_acp_profile(
        name=agent.name or candidate.id or os.path.basename(agent.argv[0]),
        argv=agent.argv,
        wire=agent.wire,
        environment=dict(agent.environment),
        masks=agent.masks,
    )


def _remark_on(profile: AgentProfile, found: FoundProgram) -> str:
    if not profile.tested or profile.is_tested(found.version):
        return ""
    version = found.version or "of unknown version"
    return f"{profile.title} {version} was not tested with this version of Retinue"
