"""Git-based workspaces of subagents: laid out from a commit, verified, and joined as a commit."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from retinue.core.contract import Outputs
from retinue.core.errors import LaunchFailed, StorageFailed
from retinue.core.join_result import (
    NO_GIT_THERE,
    POLICY,
    REFUSED,
    Change,
    JoinFailed,
    JoinOutcome,
    MergedTree,
)
from retinue.core.result import Result
from retinue.core.subagent import Subagent
from retinue.core.task_config import ISOLATED
from retinue.files import make_folder, read_plain, storage_failures
from retinue.ports import LaunchOrder, ProcessIdentity
from retinue.workspaces.agent_folder import FolderWorkspace
from retinue.workspaces.child_files import read_answer, read_error_output
from retinue.workspaces.copy_join import copy_out
from retinue.workspaces.git.git_command import GitFailed, GitTarget, gather_both, update_ref
from retinue.workspaces.git.import_overlay import OverlayImport
from retinue.workspaces.git.import_tree import TakenTree, take_in
from retinue.workspaces.git.merge import PATCH, Branch, merge_trees, write_patch
from retinue.workspaces.git.merge_rules import refuse_bare
from retinue.workspaces.git.shared_checkouts import SharedCheckouts
from retinue.workspaces.git.task_repository import (
    GIT,
    TrustedRepository,
    build_sparse_patterns,
    make_empty,
)
from retinue.workspaces.git.user_repository import BRANCHES, GitSources, make_author
from retinue.workspaces.overlay import LowerLayers, detach_workspace, find_base, is_filled, lay_over
from retinue.workspaces.owned_files import own_folder, put, remove_tree
from retinue.workspaces.secret_values import require_no_secrets

FOLDER, BASE = "verify", "base"
PROCESS = "process.json"
MOST_MESSAGE = 2000  # characters of a check's output

Owner = Callable[[str], int | None]  # returns the user id that a child of this name runs as


class GitChecking:
    """Checkouts in which a command verifies merged output."""

    def __init__(
        self, sources: GitSources, workspaces: FolderWorkspace, owner: Owner, bases: SharedCheckouts
    ) -> None:
        self._bases = bases
        self._sources = sources
        self._workspaces = workspaces
        self._owner = owner

    async def check_out(self, subagent: Subagent, merged: MergedTree | None) -> LaunchOrder:
        """Return the order to check the merged files, which lacks the command."""
        folder = self._get_folder(subagent)
        _make_empty_folder(folder)
        own_folder(folder / "runtime")
        # Without a merge the command checks the subagent's own workspace.
        if merged is None:
            own = self._workspaces.find_workspace(subagent)
            return self._workspaces.prepare_check(subagent, own, folder / "runtime")
        workspace = folder / "workspace"
        order = self._workspaces.prepare_check(subagent, workspace, folder / "runtime")
        under = await self._make_below(subagent, merged.tree, folder / BASE)
        if under is not None:
            make_empty(workspace, find_uid(self._owner, subagent, FOLDER))
            lay_over(workspace, folder / BASE)
            return replace(order, below=under.layers)
        ours = self._sources.get_repository(subagent.task)
        index = ours.get_index(f"{subagent.id}.verify")
        uid = find_uid(self._owner, subagent, FOLDER)
        await ours.check_out(merged.tree, workspace, index, uid)
        index.unlink(missing_ok=True)
        return order

    async def _make_below(self, subagent: Subagent, tree: str, folder: Path) -> LowerLayers | None:
        """Return layers that show the tree through an empty workspace; None: check it out."""
        base = find_base(self._workspaces.find_workspace(subagent))
        if base is None or not await self._bases.can_overlay(subagent.contract):
            return None
        return await self._bases.show(
            self._sources.get_repository(subagent.task), base, tree, folder
        )

    def note(self, order: LaunchOrder, identity: ProcessIdentity) -> None:
        put(order.runtime_folder / PROCESS, json.dumps(asdict(identity)).encode())

    def find_interrupted(self, subagent: Subagent) -> tuple[ProcessIdentity, Path] | None:
        folder = self._get_folder(subagent) / "runtime"
        try:
            return ProcessIdentity(**json.loads(read_plain(folder / PROCESS))), folder
        except (OSError, ValueError, TypeError):
            return None

    async def discard(self, order: LaunchOrder) -> None:
        folder = order.runtime_folder.parent
        if order.workspace.parent == folder:
            await asyncio.to_thread(remove_tree, order.workspace)
            detach_workspace(order.workspace)
            await asyncio.to_thread(remove_tree, folder / BASE)

    def read_message(self, order: LaunchOrder) -> str:
        pieces = [
            read_answer(order.runtime_folder, name).text or ""
            for name in ("stdout.log", "stderr.log")
        ]
        return "\n".join(filter(None, pieces)).strip()[-MOST_MESSAGE:]

    def read_error_output(self, order: LaunchOrder) -> str:
        return read_error_output(order.runtime_folder)

    def _get_folder(self, subagent: Subagent) -> Path:
        return self._workspaces.get_folder(subagent.task, subagent.id) / FOLDER


def find_uid(owner: Owner, subagent: Subagent, name: str) -> int | None:
    """Return the user id that owns a child's files; None where it is the steward's own user."""
    isolated = subagent.contract.boundary.mode == ISOLATED
    return owner(f"{subagent.task}/{name}") if isolated else None


def _make_empty_folder(folder: Path) -> None:
    if os.path.lexists(folder):
        remove_tree(folder)
    own_folder(folder)


TRAILER, OF_TASK = "Sub-Agent-Id", "Retinue-Task"


class GitJoining:
    """Layout of a subagent's workspace and integration of its output."""

    def __init__(
        self,
        sources: GitSources,
        workspaces: FolderWorkspace,
        owner: Owner,
        bases: SharedCheckouts,
    ) -> None:
        self._git = sources.git
        self._sources = sources
        self._workspaces = workspaces
        self._owner = owner
        self._bases = bases

    async def lay_out(self, subagent: Subagent) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Check the files of the contract's base out into the workspace.

        Returns:
            Folders to lend to the child, and the layers below an overlay workspace.

        Raises:
            LaunchFailed: the workspace could not be made.
        """
        try:
            return await self._lay_out(subagent)
        except (GitFailed, StorageFailed, OSError) as error:
            raise LaunchFailed(f"its workspace could not be made: {error}") from error

    async def _lay_out(self, subagent: Subagent) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        contract = subagent.contract
        ours = self._get_repository(subagent)
        await self._sources.ensure(subagent.task, contract.outputs.repository)
        workspace = self._workspaces.find_workspace(subagent)
        own = workspace.parent
        uid = self._find_uid(subagent)
        base = find_base(workspace)
        new = not contract.continues and not ours.is_laid_out(workspace, own.name)
        # An overlay workspace where the kernel allows it: laying it out copies no file.
        if (base or new) and not is_filled(workspace) and await self._bases.can_overlay(contract):
            own_folder(own)
            commit = base.name if base else contract.outputs.base
            under = await self._bases.lay_out(ours, workspace, commit, uid)
            return ours.list_lent(), under.layers
        # It was an overlay before and cannot be one now: copy the missing files into it.
        if base:
            await self._bases.make_whole(ours, workspace, uid)
        if not contract.continues:
            own_folder(own)
            await ours.lay_out(
                contract.outputs.base, workspace, uid, build_sparse_patterns(contract)
            )
        return ours.list_lent(), ()

    async def make_whole(self, subagent: Subagent) -> None:
        """Copy into an overlay workspace the files that it shows from its base.

        Raises:
            GitFailed, StorageFailed: why not; everything that the subagent changed is still there.
        """
        workspace = self._workspaces.find_workspace(subagent)
        if find_base(workspace) is not None:
            with storage_failures(workspace):
                await self._bases.make_whole(
                    self._get_repository(subagent), workspace, self._find_uid(subagent)
                )

    async def find_merged(self, subagent: Subagent) -> JoinOutcome | None:
        outputs = subagent.contract.outputs
        tip, _ = await self._make_branch(subagent).find()
        if not tip:
            return None
        # The trailers of a merge commit say whose output it is. A join that was interrupted after
        # the branch moved finds its commit by them and is not repeated.
        marks = [f"%(trailers:key={key},valueonly,separator=%x2C)" for key in (TRAILER, OF_TASK)]
        form = f"--format=%H {' '.join(marks)}"
        words = ("log", "--no-show-signature", form, f"{outputs.base}..{tip}")
        said = (await self._run(subagent, *words)).split("\n")
        own = f" {subagent.id} {subagent.task}"  # the ids of other tasks may be the same
        found = [line.split(" ", 1)[0] for line in said if line.endswith(own)]
        return _to_outcome(outputs, found[-1]) if found else None

    async def take_in(self, subagent: Subagent, earlier: Sequence[Subagent] = ()) -> Change:
        """Record the files of the workspace as a commit.

        Args:
            earlier: the subagents that worked in this workspace before, newest first. What one of
                them brought to the branch is no change of this one.
        """
        contract = subagent.contract
        ours = self._get_repository(subagent)
        taken = await self._read(subagent)
        tree = taken.tree
        changed = taken.changed
        continued = await self._find_continued(earlier)
        start = continued or contract.outputs.base
        files = len(changed)
        brought = tuple(each.path for each in changed if not each.is_gone)
        if continued:
            files = len(await self._list_changed(subagent, start, tree))
            brought = await self._list_changed(subagent, "--diff-filter=d", start, tree)
        if not files:
            return Change(
                commit=start, tree=tree, files=0, ignored=taken.ignored, continued=continued
            )
        words = ("commit-tree", tree, "-p", start)
        who = make_author(subagent.id)
        said = _format_message(subagent)
        committing = self._run(subagent, *words, stdin=said, environment=who)
        allowed = "secrets" in contract.outputs.allow
        looked_at = () if allowed else changed
        # Neither step needs the other. A commit with a secret stays in the task's own repository.
        commit, _ = await gather_both(
            committing, require_no_secrets(self._git, ours.where, looked_at)
        )
        ref = f"refs/retinue/{subagent.id}"
        naming = update_ref(self._git, ours.where, ref, commit, ref=ref)
        artifacts = self._get_folder(subagent) / "artifacts"
        await gather_both(naming, write_patch(self._git, ours.where, artifacts, commit))
        return Change(commit=commit, tree=tree, files=files, brought=brought, continued=continued)

    async def _find_continued(self, earlier: Sequence[Subagent]) -> str:
        """Return the commit of the newest of these whose output is on the branch, or ""."""
        for each in earlier:
            if await self.find_merged(each) is not None:
                ref = f"refs/retinue/{each.id}"
                return await self._run(each, "for-each-ref", "--format=%(objectname)", ref)
        return ""

    async def _list_changed(self, subagent: Subagent, *words: str) -> tuple[str, ...]:
        where = self._get_repository(subagent).where
        listing = ("diff-tree", "-r", "-z", "--name-only", "--no-renames")
        said = await self._git.run(where, *listing, *words)
        return tuple(os.fsdecode(path) for path in said.out.split(b"\0") if path)

    def find_patch(self, subagent: Subagent) -> Path:
        """Return the file that `take_in` writes the changes to."""
        return self._get_folder(subagent) / "artifacts" / PATCH

    async def _read(self, subagent: Subagent) -> TakenTree:
        contract = subagent.contract
        ours = self._get_repository(subagent)
        workspace = self._workspaces.find_workspace(subagent)
        # A crash interrupted `make_whole`: complete it before the files are read.
        if is_filled(workspace):
            await self.make_whole(subagent)
        if (base := find_base(workspace)) is not None:
            under = await self._bases.ensure_ready(ours, base.name)
            taking = OverlayImport(self._git, ours, workspace, under, contract)
            return await taking.take_in(base.name, self._bases.read_submodules(base.name))
        index = ours.get_index(workspace.parent.name)
        if not index.exists():
            raise JoinFailed("the starting commit of its workspace is unknown", reason=REFUSED)
        # Not the child's own index, in which it could mark changed files as unchanged.
        with ours.copy_index(index) as copy:
            where = GitTarget(git_dir=ours.folder, tree=workspace, index=copy)
            return await take_in(self._git, where, contract)

    async def merge(self, subagent: Subagent, change: Change) -> MergedTree:
        outputs = subagent.contract.outputs
        tip = await self._make_branch(subagent).check_ready()
        has_branch = bool(tip)
        tip = tip or outputs.base
        if tip == outputs.base:
            return MergedTree(tip=tip, tree=change.tree, has_branch=has_branch)
        if not change.files:
            tree = await self._run(subagent, "rev-parse", f"{tip}^{{tree}}")
            return MergedTree(tip=tip, tree=tree, has_branch=has_branch)
        ours = self._get_repository(subagent)
        tree = await merge_trees(self._git, ours, tip, change)
        # Merged with earlier changes, this one may complete a bare repository.
        await refuse_bare(self._git, ours.where, subagent.contract, tree, change.brought)
        return MergedTree(tip=tip, tree=tree, has_branch=has_branch)

    async def commit(self, subagent: Subagent, merged: MergedTree) -> str:
        words = ("commit-tree", merged.tree, "-p", merged.tip)
        trailers = f"\n{TRAILER}: {subagent.id}\n{OF_TASK}: {subagent.task}\n"
        message = _format_message(subagent) + trailers.encode()
        return await self._run(
            subagent, *words, stdin=message, environment=make_author(subagent.id)
        )

    async def move(self, subagent: Subagent, merged: MergedTree, commit: str) -> JoinOutcome | None:
        """Move the branch to the commit; return None if something else moved it in the meantime."""
        moved = await self._make_branch(subagent).move(
            merged, commit, f"retinue: join {subagent.id}"
        )
        return _to_outcome(subagent.contract.outputs, commit) if moved else None

    async def keep(self, subagent: Subagent, failure: JoinFailed) -> dict[str, object]:
        """Keep work that was not joined, and return where it is."""
        outputs = subagent.contract.outputs
        workspace = self._workspaces.find_workspace(subagent)
        kept: dict[str, object] = {"workspace": str(workspace)}
        if _has_git_folder(workspace):
            kept["workspace_note"] = NO_GIT_THERE
        try:
            await self.make_whole(subagent)
        except (GitFailed, StorageFailed) as error:
            kept["workspace_holds_changes_only"] = error.message
        patch = self.find_patch(subagent)
        if failure.code == POLICY:
            with storage_failures(patch):
                patch.unlink(missing_ok=True)  # it may contain what the policy refused
        elif patch.exists():
            kept["patch"] = str(patch)
        ref = f"refs/retinue/{subagent.id}"
        # Output that violates the policy stays out of the user's repository.
        if outputs.integration != "merge" or failure.code == POLICY:
            return kept
        commit = await self._run(subagent, "for-each-ref", "--format=%(objectname)", ref)
        if commit:
            theirs = f"refs/retinue/{subagent.task}/{subagent.id}"
            await self._make_branch(subagent).keep(theirs, commit)
            kept["branch"] = theirs
        return kept

    async def copy(self, subagent: Subagent) -> JoinOutcome:
        given = subagent.contract.outputs.destination
        shared = self._get_folder(subagent).parents[1] / "shared" / "output"
        destination = Path(given) if given else shared / subagent.id
        if not given:
            make_folder(shared)
        note = self._get_folder(subagent) / "artifacts" / "copied.json"
        workspace = self._workspaces.find_workspace(subagent)
        return await asyncio.to_thread(copy_out, workspace, destination, note, subagent.contract)

    def publish(self, subagent: Subagent, result: Result) -> None:
        self._workspaces.publish_joined(subagent, result)

    def _get_folder(self, subagent: Subagent) -> Path:
        return self._workspaces.get_folder(subagent.task, subagent.id)

    def _find_uid(self, subagent: Subagent) -> int | None:
        return find_uid(self._owner, subagent, subagent.contract.continues or subagent.id)

    def _get_repository(self, subagent: Subagent) -> TrustedRepository:
        return self._sources.get_repository(subagent.task)

    async def _run(self, subagent: Subagent, *words: str, **options: object) -> str:
        where = self._get_repository(subagent).where
        return (await self._git.run(where, *words, **options)).text  # type: ignore[arg-type]

    def _make_branch(self, subagent: Subagent) -> Branch:
        outputs = subagent.contract.outputs
        theirs = self._sources.find_repository(subagent.task, outputs.repository)
        return Branch(self._git, self._get_repository(subagent), theirs, outputs)


def _has_git_folder(workspace: Path) -> bool:
    return os.path.lexists(workspace / GIT)


def _format_message(subagent: Subagent) -> bytes:
    title = subagent.contract.step.title.replace("\0", "") or subagent.id  # git rejects NUL
    return f"{title}\n".encode("utf-8", "replace")


def _to_outcome(outputs: Outputs, commit: str) -> JoinOutcome:
    branch = outputs.branch.removeprefix(BRANCHES)
    return JoinOutcome(reason="merged", details={"commit": commit, "branch": branch})
