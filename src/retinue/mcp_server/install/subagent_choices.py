"""Kinds of subagents that can be used on this machine, and the configuration for each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.agents.profiles import PROFILES, AgentProfile, find_profile
from retinue.cli.overview import find_servers
from retinue.core.default_models import (
    KEY_VARIABLES,
    LOCAL,
    accepts_wire,
    list_keyed_backends,
    select_default_backends,
)
from retinue.core.errors import BadInput
from retinue.core.staffing import Candidate, CodingAgent, ModelBackend
from retinue.core.task_config import TaskConfig
from retinue.formats.config_document import parse_config
from retinue.formats.yaml_document import load_yaml
from retinue.gateway.local_model.weights import find_models_folder, missing

_TEXT = """\
# What subagents are; see docs/reference/configuration.md for more.
agents:
  - id: {name}
    backend: {backend}
"""
_WITH_NETWORK = """\
orchestrator:
  coordination:
    subagent_network: on
"""


@dataclass(frozen=True, kw_only=True)
class SubagentChoice:
    """One kind of subagent that can be configured here."""

    name: str
    found: str  # why it is offered
    config: str  # text of a configuration file
    ready: bool = True  # false: a key or a login is missing


def find_choices(environment: Mapping[str, str], folder: Path) -> list[SubagentChoice]:
    """Return the choices on this machine, best first: coding agents, keys, model servers."""
    found = [*_find_agents(environment, folder), *_find_keys(environment), *_find_servers()]
    if not missing(find_models_folder(environment)):
        config = _format_config(LOCAL, {"type": LOCAL})
        found.append(SubagentChoice(name="local", found="the small local model", config=config))
    usable = [each for each in found if _is_valid(each.config)]
    return sorted(usable, key=lambda each: not each.ready)


def require_choice(name: str, choices: list[SubagentChoice]) -> SubagentChoice:
    """Return the choice of this name.

    Raises:
        BadInput: it is not available here.
    """
    for each in choices:
        if each.name == name:
            return each
    raise BadInput(
        f"{name[:40]!a} is not available here",
        code="unknown_backend",
        hint=f"available: {', '.join(each.name for each in choices) or 'nothing'}; install a "
        "coding agent, set the key of a model provider, or run 'retinue model install'",
    )


def find_setup_problem(
    config: TaskConfig, environment: Mapping[str, str], folder: Path
) -> tuple[str, str]:
    """Return why no subagent can be started, and what the user can do; both empty if one may be.

    Args:
        folder: the project.
    """
    candidates = config.staff.spawners or config.staff.pool
    usual = [Candidate(id="", backend=each) for each in select_default_backends(environment)]
    lacks = [_find_lack(each, config, environment) for each in candidates or usual]
    if not all(lacks):
        return "", ""
    why = "no subagent can be started: "
    if candidates:
        them = " and ".join(dict.fromkeys(lacks))
        mends = "the user can mend that, run 'retinue steward stop' and start this client again"
        return why + them, mends
    ready = [each.name for each in find_choices(environment, folder) if each.ready]
    if not ready:
        key = next(iter(KEY_VARIABLES))
        mends = f"the user can set the key of a provider, such as {key}, or run: "
        return f"{why}no model is configured", f"{mends}retinue model install"
    mends = f"the user can run: retinue mcp install --subagents {ready[0]}"
    return f"{why}no model is configured", mends


def list_usable_agents(config: TaskConfig, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the coding agents that lack nothing here, as far as is known."""
    configured = {each.id: each.agent for each in config.staff.everyone if each.agent is not None}
    known: dict[str, CodingAgent] = {}
    for profile in PROFILES:
        # A single configured agent of a kind is what the name of the kind means.
        alike = [each for each in configured.values() if each.type == profile.name]
        usual = CodingAgent(type=profile.name)
        known[profile.short_name] = alike[0] if len(alike) == 1 else usual
    agents = known | configured
    lacks = {name: _find_agent_lack(each, config, environment) for name, each in agents.items()}
    return tuple(name for name, lack in lacks.items() if not lack)


def _find_lack(candidate: Candidate, config: TaskConfig, environment: Mapping[str, str]) -> str:
    """Return what a configured agent lacks to be a subagent here; empty if nothing is known."""
    if candidate.agent is not None:
        return _find_agent_lack(candidate.agent, config, environment)
    if candidate.backend is not None:
        return _find_backend_lack(candidate.backend, environment)
    return ""


def _find_agent_lack(agent: CodingAgent, config: TaskConfig, environment: Mapping[str, str]) -> str:
    profile = find_profile(agent.type)
    if profile is None:
        return ""  # of type acp, which says itself what it is
    program = agent.program or profile.program
    if shutil.which(program, path=environment.get("PATH", "")) is None:
        return f"there is no program {program}"
    if agent.login == "own":
        own = _has_login(profile, environment)
        return "" if own else f"{profile.title} has no login on this machine"
    known = [*config.backends, *config.providers, *list_keyed_backends(environment)]
    fitting = [each for each in known if accepts_wire(each, profile.wire)]
    named = [each for each in fitting if agent.provider in ("", each.name)]
    lacks = [_find_backend_lack(each, environment) for each in named]
    if not lacks:
        return f"{profile.title} has no model, since {_find_key(profile)} is not set"
    return " and ".join(dict.fromkeys(lacks)) if all(lacks) else ""


def _find_backend_lack(backend: ModelBackend, environment: Mapping[str, str]) -> str:
    if backend.type == LOCAL:
        return missing(find_models_folder(environment)) or ""
    usual = [variable for variable, (kind, _) in KEY_VARIABLES.items() if kind == backend.type]
    variables = [backend.api_key_env] if backend.api_key_env else usual
    if not variables or any(environment.get(name, "").strip() for name in variables):
        return ""
    return f"{' or '.join(variables)} is not set"


def _has_login(profile: AgentProfile, environment: Mapping[str, str]) -> bool:
    """Return whether the user is logged in with the agent's own program."""
    home = Path(environment.get("HOME", ""))
    return any((home / each.source).is_file() for each in profile.credentials)


def _find_key(profile: AgentProfile) -> str:
    """Return the variable whose key gives the agent a model."""
    backends = (
        ModelBackend(name=kind, type=kind, api_key_env=key)
        for key, (kind, _) in KEY_VARIABLES.items()
    )
    return next(each.api_key_env for each in backends if accepts_wire(each, profile.wire))


def _find_agents(environment: Mapping[str, str], folder: Path) -> list[SubagentChoice]:
    found = []
    for profile in PROFILES:
        path = shutil.which(profile.program, path=environment.get("PATH", ""))
        # A program that the project itself brings is not a choice of its user.
        if path is None or Path(path).resolve().is_relative_to(folder.resolve()):
            continue
        found.append(_describe_agent(profile, path, environment))
    return found


def _describe_agent(
    profile: AgentProfile, path: str, environment: Mapping[str, str]
) -> SubagentChoice:
    """Return the choice of a coding agent: by a key of its provider, else by its own login."""
    name = profile.short_name
    config = _format_config(name, {"type": profile.name})
    keyed = [each for each in list_keyed_backends(environment) if accepts_wire(each, profile.wire)]
    if keyed:
        why = f"{path}, {keyed[0].api_key_env} is set"
        return SubagentChoice(name=name, found=why, config=config)
    if _has_login(profile, environment):
        backend = {"type": profile.name, "login": "own"}
        # Only the gateway reaches models from a subagent without a network.
        own = _format_config(name, backend) + _WITH_NETWORK
        why = f"{path}, with your login, which its subagents get, and an open network"
        return SubagentChoice(name=name, found=why, config=own)
    why = f"{path}, once {_find_key(profile)} is set or you are logged in"
    return SubagentChoice(name=name, found=why, config=config, ready=False)


def _find_keys(environment: Mapping[str, str]) -> list[SubagentChoice]:
    return [
        SubagentChoice(
            name=f"@{kind}",
            found=f"{variable} is set",
            config=_format_config(kind, {"type": kind, "model": model, "api_key_env": variable}),
        )
        for variable, (kind, model) in KEY_VARIABLES.items()
        if environment.get(variable, "").strip()
    ]


def _find_servers() -> list[SubagentChoice]:
    found = []
    for server in find_servers():
        if not server["models"]:
            continue
        model = {"base_url": server["url"], "model": server["models"][0]}
        config = _format_config(server["server"], {"type": "chatcompletion", **model})
        found.append(SubagentChoice(name=server["server"], found=server["url"], config=config))
    return found


def _format_config(name: str, backend: Mapping[str, str]) -> str:
    # JSON is YAML: names of models may have characters that plain YAML would misread.
    return _TEXT.format(name=name, backend=json.dumps(backend))


def _is_valid(config: str) -> bool:
    """Return whether this version accepts the configuration."""
    try:
        parse_config(load_yaml(config, where="config"), where="config")
    except BadInput:
        return False
    return True
