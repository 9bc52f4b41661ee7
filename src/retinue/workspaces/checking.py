"""Where a command looks at output before it is joined: a tree of its own, thrown away after."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from retinue.domain.boundary import ISOLATED
from retinue.domain.join import Merged
from retinue.domain.subagent import Subagent
from retinue.ports import Prepared, ProcessIdentity
from retinue.workspaces.folder import FolderWorkspace
from retinue.workspaces.own import own_folder, put
from retinue.workspaces.reader import read_answer
from retinue.workspaces.removal import remove_tree
from retinue.workspaces.sources import GitSources

FOLDER = "verify"
PROCESS = "process.json"
SAID = 2000

Owner = Callable[[str], int | None]  # who a child with this name is on this machine


class GitChecking:
    """Implements `Checking`."""

    def __init__(self, sources: GitSources, workspaces: FolderWorkspace, owner: Owner) -> None:
        self._sources = sources
        self._workspaces = workspaces
        self._owner = owner

    async def check_out(self, subagent: Subagent, merged: Merged | None) -> Prepared:
        folder = self._folder(subagent)
        _anew(folder)
        own_folder(folder / "runtime")
        if merged is None:
            own = self._workspaces.workspace_of(subagent)
            return self._workspaces.checking(subagent, own, folder / "runtime")
        ours, workspace = self._sources.trusted(subagent.task), folder / "workspace"
        index = ours.index_of(f"{subagent.id}.verify")
        uid = uid_of(self._owner, subagent, FOLDER)
        await ours.check_out(merged.tree, workspace, index, uid)
        index.unlink(missing_ok=True)
        return self._workspaces.checking(subagent, workspace, folder / "runtime")

    def note(self, prepared: Prepared, identity: ProcessIdentity) -> None:
        put(prepared.runtime_folder / PROCESS, json.dumps(asdict(identity)).encode())

    def interrupted(self, subagent: Subagent) -> tuple[ProcessIdentity, Path] | None:
        folder = self._folder(subagent) / "runtime"
        try:
            return ProcessIdentity(**json.loads((folder / PROCESS).read_bytes())), folder
        except (OSError, ValueError, TypeError):
            return None

    async def discard(self, prepared: Prepared) -> None:
        if prepared.workspace.parent == prepared.runtime_folder.parent:
            await asyncio.to_thread(remove_tree, prepared.workspace)

    def said(self, prepared: Prepared) -> str:
        pieces = [
            read_answer(prepared.runtime_folder, name).text or ""
            for name in ("stdout.log", "stderr.log")
        ]
        return "\n".join(filter(None, pieces)).strip()[-SAID:]

    def _folder(self, subagent: Subagent) -> Path:
        return self._workspaces.folder_of(subagent.task, subagent.id) / FOLDER


def uid_of(owner: Owner, subagent: Subagent, name: str) -> int | None:
    """Whose the files of a child are: a user's of its own, where it has one."""
    isolated = subagent.contract.boundary.mode == ISOLATED
    return owner(f"{subagent.task}/{name}") if isolated else None


def _anew(folder: Path) -> None:
    """An empty folder of ours stands here, whatever stood here before."""
    if os.path.lexists(folder):
        remove_tree(folder)
    own_folder(folder)
