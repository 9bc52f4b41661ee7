"""How a subagent's work begins from a commit, and comes back as one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from retinue.domain.contract import Outputs
from retinue.domain.errors import LaunchFailed, StorageFailed
from retinue.domain.join import (
    POLICY,
    REFUSED,
    Change,
    JoinFailed,
    JoinOutcome,
    Merged,
)
from retinue.domain.result import Result
from retinue.domain.subagent import Subagent
from retinue.files import make_folder, storage_failures
from retinue.workspaces.bases import Bases
from retinue.workspaces.branch import Branch
from retinue.workspaces.checking import Owner, uid_of
from retinue.workspaces.copying import copy_out
from retinue.workspaces.folder import FolderWorkspace
from retinue.workspaces.git import GitFailed, Where, both
from retinue.workspaces.importing import Import
from retinue.workspaces.intake import Taken, take_in
from retinue.workspaces.layers import base_of, is_filled
from retinue.workspaces.merging import merge_trees
from retinue.workspaces.own import own_folder
from retinue.workspaces.patches import PATCH, write_patch
from retinue.workspaces.secrets import require_no_secrets
from retinue.workspaces.sources import BRANCHES, GitSources, identity
from retinue.workspaces.sparse import patterns_for
from retinue.workspaces.trusted import TrustedRepository

TRAILER, OF_TASK = "Sub-Agent-Id", "Retinue-Task"


class GitJoining:
    """Implements `Joining`."""

    def __init__(
        self,
        sources: GitSources,
        workspaces: FolderWorkspace,
        owner: Owner,
        bases: Bases,
    ) -> None:
        self._git = sources.git
        self._sources = sources
        self._workspaces = workspaces
        self._owner = owner
        self._bases = bases

    async def lay_out(self, subagent: Subagent) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        if not subagent.contract.outputs.base:
            return (), ()
        try:
            return await self._lay_out(subagent)
        except (GitFailed, StorageFailed, OSError) as error:
            raise LaunchFailed(f"its workspace could not be made: {error}") from error

    async def _lay_out(self, subagent: Subagent) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        contract, ours = subagent.contract, self._ours(subagent)
        await self._sources.ensure(subagent.task, contract.outputs.repository)
        workspace = self._workspaces.workspace_of(subagent)
        own, uid = workspace.parent, self._uid(subagent)
        base = base_of(workspace)
        new = not contract.continues and not ours.is_laid_out(workspace, own.name)
        if (base or new) and not is_filled(workspace) and await self._bases.serve(contract):
            own_folder(own)
            commit = base.name if base else contract.outputs.base
            under = await self._bases.lay_out(ours, workspace, commit, uid)
            return ours.lent(), under.layers
        if base:
            await self._bases.make_whole(ours, workspace, uid)
        if not contract.continues:
            own_folder(own)
            await ours.lay_out(contract.outputs.base, workspace, uid, patterns_for(contract))
        return ours.lent(), ()

    async def make_whole(self, subagent: Subagent) -> None:
        """Whoever looks into its workspace from outside finds every file that it saw there.

        Raises:
            GitFailed, StorageFailed: why not; all that it changed is there.
        """
        workspace = self._workspaces.workspace_of(subagent)
        if base_of(workspace) is not None:
            with storage_failures(workspace):
                await self._bases.make_whole(self._ours(subagent), workspace, self._uid(subagent))

    async def find_merged(self, subagent: Subagent) -> JoinOutcome | None:
        outputs = subagent.contract.outputs
        tip, _ = await self._branch(subagent).find()
        if not tip:
            return None
        marks = [f"%(trailers:key={key},valueonly,separator=%x2C)" for key in (TRAILER, OF_TASK)]
        form = f"--format=%H {' '.join(marks)}"
        words = ("log", "--no-show-signature", form, f"{outputs.base}..{tip}")
        said = (await self._run(subagent, *words)).split("\n")
        own = f" {subagent.id} {subagent.task}"  # another run's may have come here, too
        found = [line.split(" ", 1)[0] for line in said if line.endswith(own)]
        return _merged(outputs, found[-1]) if found else None

    async def take_in(self, subagent: Subagent) -> Change:
        contract, ours = subagent.contract, self._ours(subagent)
        taken = await self._read(subagent)
        tree, changed = taken.tree, taken.changed
        if not changed:
            base = contract.outputs.base
            return Change(commit=base, tree=tree, files=0, ignored=taken.ignored)
        words = ("commit-tree", tree, "-p", contract.outputs.base)
        who, said = identity(subagent.id), _message(subagent)
        committing = self._run(subagent, *words, stdin=said, environment=who)
        allowed = "secrets" in contract.outputs.allow
        looked_at = () if allowed else changed
        commit, _ = await both(committing, require_no_secrets(self._git, ours.where, looked_at))
        naming = self._run(subagent, "update-ref", f"refs/retinue/{subagent.id}", commit)
        artifacts = self._folder(subagent) / "artifacts"
        await both(naming, write_patch(self._git, ours.where, artifacts, commit))
        brought = tuple(each.path for each in changed if not each.is_gone)
        return Change(commit=commit, tree=tree, files=len(changed), brought=brought)

    async def _read(self, subagent: Subagent) -> Taken:
        contract, ours = subagent.contract, self._ours(subagent)
        workspace = self._workspaces.workspace_of(subagent)
        if is_filled(workspace):  # by someone who did not come to the end of it
            await self.make_whole(subagent)
        if (base := base_of(workspace)) is not None:
            under = await self._bases.ready(ours, base.name)
            taking = Import(self._git, ours, workspace, under, contract)
            return await taking.take_in(base.name, self._bases.submodules(base.name))
        index = ours.index_of(workspace.parent.name)
        if not index.exists():
            raise JoinFailed("what its workspace started from is not known", reason=REFUSED)
        with ours.copied(index) as copy:
            where = Where(git_dir=ours.folder, tree=workspace, index=copy)
            return await take_in(self._git, where, contract)

    async def merge(self, subagent: Subagent, change: Change) -> Merged:
        outputs = subagent.contract.outputs
        tip = await self._branch(subagent).ready()
        known, tip = bool(tip), tip or outputs.base
        if tip == outputs.base:
            return Merged(tip=tip, tree=change.tree, known=known)
        if not change.files:
            return Merged(tip=tip, tree=await self._run(subagent, "rev-parse", f"{tip}^{{tree}}"),
                          known=known)  # fmt: skip
        tree = await merge_trees(self._git, self._ours(subagent), tip, change)
        return Merged(tip=tip, tree=tree, known=known)

    async def commit(self, subagent: Subagent, merged: Merged) -> str:
        words = ("commit-tree", merged.tree, "-p", merged.tip)
        trailers = f"\n{TRAILER}: {subagent.id}\n{OF_TASK}: {subagent.task}\n"
        message = _message(subagent) + trailers.encode()
        return await self._run(subagent, *words, stdin=message, environment=identity(subagent.id))

    async def move(self, subagent: Subagent, merged: Merged, commit: str) -> JoinOutcome | None:
        """The branch is at this commit; None when someone moved it meanwhile."""
        moved = await self._branch(subagent).move(merged, commit, f"retinue: join {subagent.id}")
        return _merged(subagent.contract.outputs, commit) if moved else None

    async def keep(self, subagent: Subagent, failure: JoinFailed) -> dict[str, object]:
        """What is left of work that was not joined, and where it is."""
        outputs = subagent.contract.outputs
        kept: dict[str, object] = {"workspace": str(self._workspaces.workspace_of(subagent))}
        try:
            await self.make_whole(subagent)
        except (GitFailed, StorageFailed) as error:
            kept["workspace_holds_changes_only"] = error.message
        patch = self._folder(subagent) / "artifacts" / PATCH
        if failure.code == POLICY:
            with storage_failures(patch):
                patch.unlink(missing_ok=True)  # inspect is asked after it was written
        elif patch.exists():
            kept["patch"] = str(patch)
        ref = f"refs/retinue/{subagent.id}"
        if outputs.integration != "merge" or failure.code == POLICY:
            return kept
        commit = await self._run(subagent, "for-each-ref", "--format=%(objectname)", ref)
        if commit:
            theirs = f"refs/retinue/{subagent.task}/{subagent.id}"
            await self._branch(subagent).keep(theirs, commit)
            kept["branch"] = theirs
        return kept

    async def copy(self, subagent: Subagent) -> JoinOutcome:
        given = subagent.contract.outputs.destination
        shared = self._folder(subagent).parents[1] / "shared" / "output"
        destination = Path(given) if given else shared / subagent.id
        if not given:
            make_folder(shared)
        note = self._folder(subagent) / "artifacts" / "copied.json"
        workspace = self._workspaces.workspace_of(subagent)
        return await asyncio.to_thread(copy_out, workspace, destination, note, subagent.contract)

    def publish(self, subagent: Subagent, result: Result) -> None:
        self._workspaces.publish_joined(subagent, result)

    def _folder(self, subagent: Subagent) -> Path:
        return self._workspaces.folder_of(subagent.task, subagent.id)

    def _uid(self, subagent: Subagent) -> int | None:
        return uid_of(self._owner, subagent, subagent.contract.continues or subagent.id)

    def _ours(self, subagent: Subagent) -> TrustedRepository:
        return self._sources.trusted(subagent.task)

    async def _run(self, subagent: Subagent, *words: str, **options: object) -> str:
        where = self._ours(subagent).where
        return (await self._git.run(where, *words, **options)).text  # type: ignore[arg-type]

    def _branch(self, subagent: Subagent) -> Branch:
        outputs = subagent.contract.outputs
        theirs = self._sources.located(subagent.task, outputs.repository)
        return Branch(self._git, self._ours(subagent), theirs, outputs)


def _message(subagent: Subagent) -> bytes:
    title = subagent.contract.step.title.replace("\0", "") or subagent.id  # git takes no NUL
    return f"{title}\n".encode("utf-8", "replace")


def _merged(outputs: Outputs, commit: str) -> JoinOutcome:
    branch = outputs.branch.removeprefix(BRANCHES)
    return JoinOutcome(reason="merged", details={"commit": commit, "branch": branch})
