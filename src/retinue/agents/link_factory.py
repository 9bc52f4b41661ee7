"""Make the link of a profile's dialect, and prepare what its program needs on disk."""

from __future__ import annotations

import os
from pathlib import Path

from retinue.agents.acp_link import AcpLink
from retinue.agents.claude_link import ClaudeLink
from retinue.agents.codex_link import CodexLink
from retinue.agents.launch import AgentLaunch
from retinue.agents.link import AgentLink, Observer, PermissionPolicy
from retinue.agents.process_link import ConnectAgent
from retinue.agents.profiles import AgentProfile


def make_link(
    profile: AgentProfile,
    launch: AgentLaunch,
    observer: Observer,
    policy: PermissionPolicy,
    *,
    connect: ConnectAgent | None = None,
) -> AgentLink:
    """Return a link that is not open yet; `write_launch_files` comes first."""
    if profile.dialect == "claude":
        return ClaudeLink(launch, observer, policy, connect=connect)
    if profile.dialect == "codex":
        return CodexLink(launch, observer, policy, connect=connect)
    return AcpLink(launch, observer, policy, profile, connect=connect)


def write_launch_files(launch: AgentLaunch) -> None:
    """Create the folders and files of a launch; files of an earlier attempt are replaced.

    Raises:
        OSError: the home folder cannot be written.
    """
    for folder in launch.folders:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    for path, text in launch.files.items():
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # An agent may have left a link there, which must not be followed.
        Path(path).unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
