"""Sparse checkouts of the files that a step owns, where overlay workspaces are not available.

A file that is not checked out counts as unchanged, unless the child creates one there.
"""

from __future__ import annotations

import os
from pathlib import Path

from retinue.core.boundary import SPARSE
from retinue.core.contract import Contract
from retinue.files import make_folder

FILES_AT_THE_TOP = ("/*", "!/*/")
SETTINGS = "[core]\n\tsparseCheckout = true\n\tsparseCheckoutCone = false\n"
WORDS = ("-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=false")


def build_patterns(contract: Contract) -> tuple[str, ...]:
    """Return the sparse-checkout patterns for a subagent; empty for a full checkout.

    A subagent that owns nothing in particular may change anything. One that lends files to others
    needs them to exist.
    """
    owned = contract.outputs.owns
    alone = contract.outputs.integration == "merge" and not contract.permissions.can_spawn_children
    if contract.boundary.workspaces != SPARSE or not alone or not owned:
        return ()
    if any("\n" in pattern for pattern in owned):  # git's pattern file has one pattern a line
        return ()
    return (*FILES_AT_THE_TOP, *map(_as_git_has_it, owned))


def _as_git_has_it(pattern: str) -> str:
    """Convert an ownership pattern for git, which also matches files below a matching folder."""
    # git strips trailing spaces that are not escaped.
    spaces = len(pattern) - len(pattern.rstrip(" "))
    return "/" + pattern.rstrip(" ") + "\\ " * spaces


def write_patterns(git_folder: Path, patterns: tuple[str, ...]) -> None:
    make_folder(git_folder / "info", mode=0o755)
    lines = "".join(f"{each}\n" for each in patterns)
    (git_folder / "info" / "sparse-checkout").write_bytes(os.fsencode(lines))
