"""Probe of overlay mounts in a folder.

A child sees a small tree through an empty workspace, and changes, removes, replaces and makes
files. Then the tree must be unchanged, and the workspace must hold exactly the changes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from retinue.files import is_mark, is_opaque
from retinue.runtime.sandbox_view import WORK

COMMAND = (
    "set -e; test $(cat kept) = old; echo new > changed; rm removed; rm -r folder; mkdir folder; "
    "echo new > folder/made; chmod +x mode; echo new >> deep/file; test ! -e folder/old"
)
OTHERWISE = "overlay probe:"  # begins the reasons that `judge` returns
PREFIX = ".trial-"  # of the names of probe folders
TREE = ("kept", "changed", "removed", "folder/old", "mode", "deep/file", "deep/other")


def lay(place: Path) -> dict[str, Any]:
    """Write the tree; return the fields of the probe child's order."""
    below = place / "below"
    for path in TREE:
        (below / path).parent.mkdir(parents=True, exist_ok=True)
        (below / path).write_text("old\n")
    # The child may run as another user, who must be able to pass through.
    os.chmod(place, 0o755)
    (place / WORK).mkdir(parents=True)
    return {"below": (below,), "argv": ("/bin/sh", "-c", COMMAND)}


def judge(place: Path) -> str | None:
    """Return what is wrong with the tree or the workspace after the probe, or None."""
    below = place / "below"
    workspace = place / "workspace"
    if any((below / path).read_text() != "old\n" for path in TREE):
        return f"{OTHERWISE} a child could change shared files"
    texts = {"changed": "new\n", "folder/made": "new\n", "deep/file": "old\nnew\n"}
    found = {name: (workspace / name).read_text() for name in texts}
    # overlayfs: a removed file is a character device 0:0, a replaced folder is opaque.
    marked = is_mark((workspace / "removed").lstat()) and is_opaque(workspace / "folder")
    rest = sorted(path.name for path in workspace.rglob("*") if path.is_file())
    if found != texts or not marked or rest != ["changed", "file", "made", "mode"]:
        return f"{OTHERWISE} the workspace does not hold a child's changes"
    return None
