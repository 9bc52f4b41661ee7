"""Kinds of subagents that can be used on this machine, and the configuration for each."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.core.default_models import KEY_VARIABLES, LOCAL, select_default_backends
from retinue.core.errors import BadInput
from retinue.core.task_config import TaskConfig
from retinue.formats.config_document import parse_config
from retinue.formats.yaml_document import load_yaml
from retinue.gateway.local_model.weights import find_models_folder, missing

# Choice -> (program on PATH, type of the backend)
AGENTS = {
    "claude": ("claude", "claude_code"),
    "codex": ("codex", "codex"),
    "gemini": ("gemini", "gemini_cli"),
    "opencode": ("opencode", "opencode"),
    "goose": ("goose", "goose"),
    "copilot": ("copilot", "copilot"),
}
# Model servers that listen on loopback where they are installed.
SERVERS = {
    "ollama": "http://127.0.0.1:11434/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "llamacpp": "http://127.0.0.1:8080/v1",
}
PROBE_SECONDS = 0.5
MOST_BYTES = 1 << 20
HELPS = "retinue mcp install CLIENT --subagents NAME"

_TEXT = """\
# What subagents are; see docs/reference/configuration.md for more.
agents:
  - id: {name}
    backend: {backend}
"""


@dataclass(frozen=True, kw_only=True)
class SubagentChoice:
    """One kind of subagent that can be configured here."""

    name: str
    found: str  # why it is offered
    config: str  # text of a configuration file


def find_choices(environment: Mapping[str, str], folder: Path) -> list[SubagentChoice]:
    """Return the choices on this machine, best first: coding agents, keys, model servers."""
    found = [*_find_agents(environment, folder), *_find_keys(environment), *_find_servers()]
    if not missing(find_models_folder(environment)):
        config = _format_config(LOCAL, {"type": LOCAL})
        found.append(SubagentChoice(name="local", found="the small local model", config=config))
    return [each for each in found if _is_valid(each.config)]


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


def find_setup_problem(config: TaskConfig, environment: Mapping[str, str]) -> str:
    """Return why no subagent can be started with this configuration; empty if one may be."""
    spawners = config.staff.spawners or config.staff.pool
    backends = [each.backend for each in spawners if each.backend is not None]
    if len(backends) < len(spawners):
        return ""  # one of them is a command
    for each in backends or select_default_backends(environment):
        if each.type == LOCAL:
            if not missing(find_models_folder(environment)):
                return ""
            continue
        usual = [variable for variable, (kind, _) in KEY_VARIABLES.items() if kind == each.type]
        variables = [each.api_key_env] if each.api_key_env else usual
        if not variables or any(environment.get(name, "").strip() for name in variables):
            return ""
    what = "no configured model has its key set" if backends else "no model is configured"
    return f"no subagent can be started: {what}. The user can run: {HELPS}"


def _find_agents(environment: Mapping[str, str], folder: Path) -> list[SubagentChoice]:
    found = []
    for name, (program, kind) in AGENTS.items():
        path = shutil.which(program, path=environment.get("PATH", ""))
        # A program that the project itself brings is not a choice of its user.
        if path is None or Path(path).resolve().is_relative_to(folder.resolve()):
            continue
        config = _format_config(name, {"type": kind})
        found.append(SubagentChoice(name=name, found=path, config=config))
    return found


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
    # Without a proxy: these are addresses of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found = []
    for name, url in SERVERS.items():
        try:
            with opener.open(f"{url}/models", timeout=PROBE_SECONDS) as answer:
                model = str(json.loads(answer.read(MOST_BYTES))["data"][0]["id"])
        except (OSError, ValueError, LookupError, TypeError):
            continue  # nothing listens, or it is something else
        backend = {"type": "chatcompletion", "base_url": url, "model": model}
        config = _format_config(name, backend)
        found.append(SubagentChoice(name=name, found=url, config=config))
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
