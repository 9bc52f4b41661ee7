"""Removal of what can be made again from the folders and repositories of closed tasks."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from retinue.core.errors import StorageFailed
from retinue.files import storage_failures, unlock_folders
from retinue.workspaces.child_files import TreeWalk
from retinue.workspaces.git.task_repository import NEW
from retinue.workspaces.overlay import detach_workspace
from retinue.workspaces.owned_files import remove_tree

# Temporary files in a task's repository: Retinue's and git's.
PASSING = (
    *("tmp*", "indexes/*.*", "sparse/*"),
    *("objects/tmp_*", "objects/pack/tmp_*", "objects/??/tmp_obj_*"),
)

UNMERGED = "it contains files that were not merged anywhere"
BLOCK_BYTES = 512  # unit of st_blocks

# Removed paths, and kept paths with the reason.
Swept = tuple[list[Path], list[tuple[Path, str]]]


def sweep(folder: Path, *, force: bool) -> Swept:
    """Remove from a subagent's folder what can be made again.

    A workspace that is not empty may be the only copy of the work: it is removed only with
    `force`.
    """
    removed: list[Path] = []
    kept: list[tuple[Path, str]] = []
    # A child without a sandbox could redirect the removal by a link.
    if any(place.is_symlink() for place in (folder, folder.parent, folder.parent.parent)):
        return [], [(folder, "it was replaced by a link, which is not followed")]
    try:
        _sweep(folder, force, removed, kept)
    except StorageFailed as error:
        kept.append((folder, error.message))
    return removed, kept


def sweep_repository(repository: Path) -> Swept:
    """Remove from the repository of a closed task what a crash left there."""
    removed: list[Path] = []
    home = repository.parents[1].resolve() / repository.parent.name / repository.name
    try:
        for place in [place for pattern in PASSING for place in repository.glob(pattern)]:
            if place.parent.resolve().is_relative_to(home):  # not through a link
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
            kept.append((workspace, UNMERGED))
        else:
            detach_workspace(workspace)
            remove_tree(workspace)
            removed.append(workspace)


def is_occupied(workspace: Path) -> bool:
    """Return whether there is a workspace with anything in it; a link holds nothing."""
    if workspace.is_symlink() or not os.path.lexists(workspace):
        return False
    return _is_occupied(workspace)


def _is_occupied(workspace: Path) -> bool:
    unlock_folders(workspace)
    with storage_failures(workspace):
        return not workspace.is_dir() or any(workspace.iterdir())


def list_sweepable(folder: Path, *, force: bool) -> Swept:
    """Return what `sweep` would remove and keep, and remove nothing."""
    workspace = folder / "workspace"
    removed = [place for place in (folder / "context", folder / NEW) if os.path.lexists(place)]
    if not os.path.lexists(workspace):
        return removed, []
    if not force and is_occupied(workspace):
        return removed, [(workspace, UNMERGED)]
    return [*removed, workspace], []


def measure_tree(path: Path) -> int:
    """Return the bytes that a tree takes on disk; follow no link, skip what cannot be read."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    blocks = status.st_blocks
    if stat.S_ISDIR(status.st_mode):
        for folder in TreeWalk(path):
            for entry in folder.entries:
                with suppress(OSError):
                    blocks += entry.stat(follow_symlinks=False).st_blocks
    return blocks * BLOCK_BYTES
