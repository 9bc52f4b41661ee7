"""Coding agents as installed by `./dev clients`, started as Retinue starts its subagents."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retinue.agents.launch import AgentLaunch, LaunchRequest, build_launch
from retinue.agents.link import AgentLink, Observer, PermissionPolicy
from retinue.agents.link_factory import make_link, write_launch_files
from retinue.agents.permissions import ContractPolicy
from retinue.agents.profiles import AgentProfile, find_profile
from support.agents import BINARIES
from support.prompted_model import ToolStep

MODULES = BINARIES.parent
AGENTS = ("claude", "codex", "gemini", "opencode", "goose", "copilot")
# Names of models that the programs accept without asking anywhere.
MODELS = {"claude": "claude-opus-5-5", "gemini": "gemini-2.5-flash"}

Document = dict[str, Any]
_SHELLS: dict[str, tuple[str, Callable[[str], Document]]] = {
    "claude": ("Bash", lambda command: {"command": command, "description": "x"}),
    "codex": ("exec_command", lambda command: {"cmd": command, "yield_time_ms": 8000}),
    "gemini": ("run_shell_command", lambda command: {"command": command, "description": "x"}),
    "opencode": ("bash", lambda command: {"command": command, "description": "x"}),
    "goose": ("shell", lambda command: {"command": command}),
    "copilot": ("bash", lambda command: {"command": command, "description": "x"}),
}


def find_agent(name: str) -> AgentProfile:
    profile = find_profile(name)
    assert profile is not None
    return profile


def run_in_shell(name: str, command: str) -> ToolStep:
    """Return the agent's own call that runs a command."""
    tool, to_arguments = _SHELLS[name]
    return ToolStep(tool=tool, arguments=to_arguments(command))


def find_program(name: str) -> tuple[str, ...]:
    """Return the native program, or node and the script."""
    profile = find_agent(name)
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    target = f"{platform.machine()}-unknown-linux-musl"
    for place in profile.native:
        path = MODULES / place.format(platform=f"linux-{machine}", target=target)
        if path.exists():
            return (str(path),)
    script = (BINARIES / profile.program).resolve(strict=True)
    return (str(BINARIES / "node"), str(script))


def read_version(name: str) -> str:
    (package,) = find_agent(name).packages
    version = json.loads((MODULES / package / "package.json").read_text())["version"]
    assert isinstance(version, str)
    return version


def launch_agent(name: str, url: str, folder: Path, **more: Any) -> AgentLaunch:
    """Return the launch of an agent in `folder`; its files are written."""
    profile = find_agent(name)
    workspace = folder / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    version = "/v1" if profile.wire in ("chat", "responses") else ""
    request = LaunchRequest(
        program=find_program(name),
        model=MODELS.get(name, "gpt-5"),
        home=str(folder / "home"),
        cwd=str(workspace),
        base_url=url + version,
        token="token",
        path=f"{BINARIES}:{os.environ['PATH']}",
        temporary=str(folder / "tmp"),
        **more,
    )
    launch = build_launch(profile, request)
    write_launch_files(launch)
    return launch


def connect_agent(
    name: str,
    launch: AgentLaunch,
    observer: Observer,
    policy: PermissionPolicy | None = None,
    **more: Any,
) -> AgentLink:
    profile = find_agent(name)
    return make_link(profile, launch, observer, policy or ContractPolicy(profile, None), **more)
