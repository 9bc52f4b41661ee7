"""Checkouts of what a step owns, where the kernel cannot show it the rest through its workspace.

A file that is not checked out counts as unchanged, until somebody puts one there.
"""

from __future__ import annotations

import os
from pathlib import Path

from retinue.domain.boundary import SPARSE
from retinue.domain.contract import Contract
from retinue.files import make_folder

FILES_AT_THE_TOP = ("/*", "!/*/")
SETTINGS = "[core]\n\tsparseCheckout = true\n\tsparseCheckoutCone = false\n"
WORDS = ("-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=false")


def patterns_for(contract: Contract) -> tuple[str, ...]:
    """What git is to check out for such a subagent; nothing named: all of it.

    Whoever owns nothing in particular may change anything, and whoever lends files to others
    needs them to be there.
    """
    owned = contract.outputs.owns
    alone = contract.outputs.integration == "merge" and not contract.permissions.can_spawn_children
    if contract.boundary.workspaces != SPARSE or not alone or not owned:
        return ()
    if any("\n" in pattern for pattern in owned):  # which git's file of patterns cannot hold
        return ()
    return (*FILES_AT_THE_TOP, *map(_as_git_has_it, owned))


def _as_git_has_it(pattern: str) -> str:
    """Matches at least what the pattern does: git takes whole folders with their names."""
    spaces = len(pattern) - len(pattern.rstrip(" "))
    return "/" + pattern.rstrip(" ") + "\\ " * spaces


def write_patterns(git_folder: Path, patterns: tuple[str, ...]) -> None:
    """They are where a git folder has them."""
    make_folder(git_folder / "info", mode=0o755)
    lines = "".join(f"{each}\n" for each in patterns)
    (git_folder / "info" / "sparse-checkout").write_bytes(os.fsencode(lines))
