"""Whether what a child does not change can be shared: tried out in a folder, and looked at after.

A child is shown a small tree through an empty workspace. It changes, removes, replaces and makes
files; then the tree must be what it was, and the workspace hold exactly that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from retinue.files import hides_below, is_mark
from retinue.runtimes.view import WORK

COMMAND = (
    "set -e; test $(cat kept) = old; echo new > changed; rm removed; rm -r folder; mkdir folder; "
    "echo new > folder/made; chmod +x mode; echo new >> deep/file; test ! -e folder/old"
)
OTHERWISE = "on trial,"
PREFIX = ".trial-"  # of the folders in which it is tried
TREE = ("kept", "changed", "removed", "folder/old", "mode", "deep/file", "deep/other")


def lay(place: Path) -> dict[str, Any]:
    """The tree is there; what an order needs besides, for a child to be shown it."""
    below = place / "below"
    for path in TREE:
        (below / path).parent.mkdir(parents=True, exist_ok=True)
        (below / path).write_text("old\n")
    os.chmod(place, 0o755)
    (place / WORK).mkdir(parents=True)
    return {"below": (below,), "argv": ("/bin/sh", "-c", COMMAND)}


def judge(place: Path) -> str | None:
    """What came out otherwise than it must, or None."""
    below, workspace = place / "below", place / "workspace"
    if any((below / path).read_text() != "old\n" for path in TREE):
        return f"{OTHERWISE} what was shared was changed"
    texts = {"changed": "new\n", "folder/made": "new\n", "deep/file": "old\nnew\n"}
    found = {name: (workspace / name).read_text() for name in texts}
    marked = is_mark((workspace / "removed").lstat()) and hides_below(workspace / "folder")
    rest = sorted(path.name for path in workspace.rglob("*") if path.is_file())
    if found != texts or not marked or rest != ["changed", "file", "made", "mode"]:
        return f"{OTHERWISE} what a child changed was not kept as it should be"
    return None
