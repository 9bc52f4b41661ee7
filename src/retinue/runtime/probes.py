"""Probes by a child: the boundary that it sees, and overlay mounts in a folder.

For an overlay, the child sees a small tree through an empty workspace, and changes, removes,
replaces and makes files. Then the tree must be unchanged, and the workspace must hold exactly the
changes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.child import landlock
from retinue.files import is_opaque, is_whiteout
from retinue.runtime.cgroups import PREFIX
from retinue.runtime.sandbox_view import WORK

ISOLATION_COMMAND = ("/bin/cat", "/proc/self/status", "/proc/self/net/dev", "/proc/self/cgroup")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The boundary as the kernel reports it inside, not as it was requested outside."""

    uid: int
    capabilities: int
    no_new_privileges: bool
    filtered: bool  # system calls, by seccomp
    interfaces: tuple[str, ...]
    landlock_version: int
    in_own_cgroup: bool = False

    @property
    def complete(self) -> bool:
        return self.filtered and self.no_new_privileges and not self.capabilities


def parse_isolation(output: str) -> Seen:
    """Parse the output of ISOLATION_COMMAND.

    Raises:
        ValueError: a field is missing.
    """
    facts: dict[str, str] = {}
    for line in output.splitlines():
        name, _, rest = line.partition(":")
        facts[name.strip()] = rest.strip()
    try:
        held = [int(facts[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
        return Seen(
            uid=int(facts["Uid"].split()[1]),
            capabilities=held[0] | held[1] | held[2] | held[3] | held[4],
            no_new_privileges=facts["NoNewPrivs"] == "1",
            filtered=facts["Seccomp"] == "2",
            # Lines of /proc/net/dev are those with 16 numbers after the name.
            interfaces=tuple(name for name, rest in facts.items() if rest.count(" ") >= 15),
            landlock_version=landlock.read_abi_version(),
            in_own_cgroup=f"/{PREFIX}" in facts.get("0", ""),
        )
    except (KeyError, IndexError) as fault:
        raise ValueError(f"the output of the probe child lacks {fault}") from None


OVERLAY_COMMAND = (
    "set -e; test $(cat kept) = old; echo new > changed; rm removed; rm -r folder; mkdir folder; "
    "echo new > folder/made; chmod +x mode; echo new >> deep/file; test ! -e folder/old"
)
OVERLAY_FAULT = "overlay probe:"  # begins the reasons that `judge_overlay` returns
FOLDER_PREFIX = ".trial-"  # of the names of probe folders
TREE = ("kept", "changed", "removed", "folder/old", "mode", "deep/file", "deep/other")


def write_overlay_tree(place: Path) -> dict[str, Any]:
    """Write the tree; return the fields of the probe child's order."""
    below = place / "below"
    for path in TREE:
        (below / path).parent.mkdir(parents=True, exist_ok=True)
        (below / path).write_text("old\n")
    # The child may run as another user, who must be able to pass through.
    os.chmod(place, 0o755)
    (place / WORK).mkdir(parents=True)
    return {"below": (below,), "argv": ("/bin/sh", "-c", OVERLAY_COMMAND)}


def judge_overlay(place: Path) -> str | None:
    """Return what is wrong with the tree or the workspace after the probe, or None."""
    below = place / "below"
    workspace = place / "workspace"
    if any((below / path).read_text() != "old\n" for path in TREE):
        return f"{OVERLAY_FAULT} a child could change shared files"
    texts = {"changed": "new\n", "folder/made": "new\n", "deep/file": "old\nnew\n"}
    found = {name: (workspace / name).read_text() for name in texts}
    # overlayfs: a removed file is a character device 0:0, a replaced folder is opaque.
    marked = is_whiteout((workspace / "removed").lstat()) and is_opaque(workspace / "folder")
    rest = sorted(path.name for path in workspace.rglob("*") if path.is_file())
    if found != texts or not marked or rest != ["changed", "file", "made", "mode"]:
        return f"{OVERLAY_FAULT} the workspace does not hold a child's changes"
    return None
