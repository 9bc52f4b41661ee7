"""Removing what closed tasks no longer need, and nothing that someone might."""

from __future__ import annotations

from pathlib import Path

from retinue.files import storage_failures
from retinue.workspaces.folder import remove_tree


def sweep(folder: Path, *, force: bool) -> tuple[list[Path], list[tuple[Path, str]]]:
    """A subagent's folder without what can be made again; what went, and what stayed and why.

    A workspace with anything in it may be the only copy of somebody's work: it
    goes only by force.
    """
    removed: list[Path] = []
    kept: list[tuple[Path, str]] = []
    context, workspace = folder / "context", folder / "workspace"
    if context.exists():
        remove_tree(context)
        removed.append(context)
    if workspace.is_symlink():
        workspace.unlink()
        removed.append(workspace)
    elif workspace.exists():
        with storage_failures(workspace):
            occupied = any(workspace.iterdir())
        if occupied and not force:
            kept.append((workspace, "it holds files that were not merged anywhere"))
        else:
            remove_tree(workspace)
            removed.append(workspace)
    return removed, kept
