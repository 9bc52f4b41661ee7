"""Removing what closed tasks no longer need, and nothing that someone might."""

from __future__ import annotations

import os
from pathlib import Path

from retinue.domain.errors import StorageFailed
from retinue.files import storage_failures
from retinue.workspaces.clones import NEW
from retinue.workspaces.layers import let_go
from retinue.workspaces.own import reopen
from retinue.workspaces.removal import remove_tree

# What is there only while someone works on it: ours, and git's own.
PASSING = (
    *("tmp*", "indexes/*.*", "sparse/*"),
    *("objects/tmp_*", "objects/pack/tmp_*", "objects/??/tmp_obj_*"),
)

# What went, and what stayed and why.
Swept = tuple[list[Path], list[tuple[Path, str]]]


def sweep(folder: Path, *, force: bool) -> Swept:
    """A subagent's folder without what can be made again.

    A workspace with anything in it may be the only copy of somebody's work: it
    goes only by force.
    """
    removed: list[Path] = []
    kept: list[tuple[Path, str]] = []
    if any(place.is_symlink() for place in (folder, folder.parent, folder.parent.parent)):
        return [], [(folder, "a link stands in its place, which is not followed")]
    try:
        _sweep(folder, force, removed, kept)
    except StorageFailed as error:
        kept.append((folder, error.message))
    return removed, kept


def sweep_repository(repository: Path) -> Swept:
    """The repository of a closed task without what a crash left in it."""
    removed: list[Path] = []
    home = repository.parents[1].resolve() / repository.parent.name / repository.name
    try:
        for place in [place for pattern in PASSING for place in repository.glob(pattern)]:
            if place.parent.resolve().is_relative_to(home):  # through no link
                remove_tree(place)
                removed.append(place)
    except StorageFailed as error:
        return removed, [(repository, error.message)]
    return removed, []


def _sweep(folder: Path, force: bool, removed: list[Path], kept: list[tuple[Path, str]]) -> None:
    workspace = folder / "workspace"
    for place in (folder / "context", folder / NEW):
        if os.path.lexists(place):
            remove_tree(place)
            removed.append(place)
    if workspace.is_symlink():
        workspace.unlink()
        removed.append(workspace)
    elif os.path.lexists(workspace):
        if not force and _is_occupied(workspace):
            kept.append((workspace, "it holds files that were not merged anywhere"))
        else:
            let_go(workspace)
            remove_tree(workspace)
            removed.append(workspace)


def _is_occupied(workspace: Path) -> bool:
    reopen(workspace)
    with storage_failures(workspace):
        return not workspace.is_dir() or any(workspace.iterdir())
