"""Where a command looks at output before it is joined: a tree of its own, thrown away after."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from retinue.domain.boundary import ISOLATED
from retinue.domain.join import Merged
from retinue.domain.subagent import Subagent
from retinue.files import read_plain
from retinue.ports import Prepared, ProcessIdentity
from retinue.workspaces.bases import Bases
from retinue.workspaces.clones import make_empty
from retinue.workspaces.folder import FolderWorkspace
from retinue.workspaces.layers import Below, base_of, let_go, put_over
from retinue.workspaces.own import own_folder, put
from retinue.workspaces.reader import read_answer
from retinue.workspaces.removal import remove_tree
from retinue.workspaces.sources import GitSources

FOLDER, BASE = "verify", "base"
PROCESS = "process.json"
SAID = 2000

Owner = Callable[[str], int | None]  # who a child with this name is on this machine


class GitChecking:
    """Implements `Checking`."""

    def __init__(
        self, sources: GitSources, workspaces: FolderWorkspace, owner: Owner, bases: Bases
    ) -> None:
        self._bases = bases
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
        workspace = folder / "workspace"
        prepared = self._workspaces.checking(subagent, workspace, folder / "runtime")
        under = await self._under(subagent, merged.tree, folder / BASE)
        if under is not None:
            make_empty(workspace, uid_of(self._owner, subagent, FOLDER))
            put_over(workspace, folder / BASE)
            return replace(prepared, below=under.layers)
        ours = self._sources.trusted(subagent.task)
        index = ours.index_of(f"{subagent.id}.verify")
        uid = uid_of(self._owner, subagent, FOLDER)
        await ours.check_out(merged.tree, workspace, index, uid)
        index.unlink(missing_ok=True)
        return prepared

    async def _under(self, subagent: Subagent, tree: str, folder: Path) -> Below | None:
        """What shows the tree through an empty workspace, where its child had one of that kind."""
        base = base_of(self._workspaces.workspace_of(subagent))
        if base is None or not await self._bases.serve(subagent.contract):
            return None
        return await self._bases.show(self._sources.trusted(subagent.task), base, tree, folder)

    def note(self, prepared: Prepared, identity: ProcessIdentity) -> None:
        put(prepared.runtime_folder / PROCESS, json.dumps(asdict(identity)).encode())

    def interrupted(self, subagent: Subagent) -> tuple[ProcessIdentity, Path] | None:
        folder = self._folder(subagent) / "runtime"
        try:
            return ProcessIdentity(**json.loads(read_plain(folder / PROCESS))), folder
        except (OSError, ValueError, TypeError):
            return None

    async def discard(self, prepared: Prepared) -> None:
        folder = prepared.runtime_folder.parent
        if prepared.workspace.parent == folder:
            await asyncio.to_thread(remove_tree, prepared.workspace)
            let_go(prepared.workspace)
            await asyncio.to_thread(remove_tree, folder / BASE)

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
