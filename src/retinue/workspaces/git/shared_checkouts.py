"""Shared checkouts below overlay workspaces: one per commit, made once and never changed.

bases/<commit>/
  tree/        the files, and the part of a git folder that is the same for all workspaces
  on           link to a lower base; this base then holds only the differences from it
  index        git's index of the files
  submodules   paths and commits of submodules
  boot         boot id at creation; after a power loss a checkout may miss data
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path

from retinue.clock import read_boot_id
from retinue.core.contract import Contract
from retinue.core.errors import StorageFailed
from retinue.core.join_result import split_paths
from retinue.core.task_config import ISOLATED, SHARED, SPARSE
from retinue.files import list_entries, make_folder, read_plain, storage_failures
from retinue.workspaces import overlay
from retinue.workspaces.git.git_command import Git, GitFailed, GitTarget
from retinue.workspaces.git.import_overlay import count_entries
from retinue.workspaces.git.import_tree import parse_diff
from retinue.workspaces.git.merge_rules import ChangedFile
from retinue.workspaces.git.task_repository import (
    GIT,
    TrustedRepository,
    make_overlay_workspace,
    write_git_history,
)
from retinue.workspaces.overlay import BASES, ON, TREE, LowerLayers
from retinue.workspaces.owned_files import is_stale, remove_tree

MOST = 1000  # changed files; beyond that a full checkout is cheaper
PLAIN = ("000000", "100644", "100755")
INDEX, PART = "index", "part"


async def derive(
    git: Git, ours: TrustedRepository, on: Path, treeish: str, making: Path, *, indexed: bool
) -> bool:
    """Fill a folder with the differences of a commit or tree from another checkout.

    Return False where that is not possible: links or submodules differ, a file replaces a folder,
    too many files differ, or git rejects a name. The content of the folder is then useless.

    Args:
        on: the other checkout, a full one.
        indexed: whether to make an index, too.

    Raises:
        GitFailed, StorageFailed: why it could not be made.
    """
    _link_to_base(making, on)
    words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", on.name, treeish)
    said = await git.run(ours.where, *words, accept=(0, 128))
    changed = list(parse_diff(said.out))
    if said.code or len(changed) > MOST or not _is_simple(changed):
        return False
    brought = [each for each in changed if not each.is_gone]
    if brought:
        where = GitTarget(
            git_dir=ours.folder, tree=making / TREE, index=making / PART, dies_with_steward=True
        )
        await git.run(
            where, "update-index", "-z", "--index-info", stdin=_format_index_lines(brought)
        )
        if count_entries(making / PART) < len(brought):
            return False  # git rejected a name; a full checkout reports which
        await git.run(where, "checkout-index", "--all", "--quiet")
        (making / PART).unlink()
    await _make_whiteouts(
        git, ours, treeish, making / TREE, [each.path for each in changed if each.is_gone]
    )
    if indexed:
        with storage_failures(making):
            shutil.copyfile(on / INDEX, making / INDEX)
        where = GitTarget(git_dir=ours.folder, index=making / INDEX)
        await git.run(
            where, "update-index", "-z", "--index-info", stdin=_format_index_lines(changed)
        )
    return True


def _link_to_base(making: Path, on: Path) -> None:
    """Create the folder and its link to the lower base."""
    with storage_failures(making):
        # The link comes first: garbage collection keeps a base that a link points to.
        _make_folder(making / TREE)
        (making / ON).unlink(missing_ok=True)
        (making / ON).symlink_to(os.path.relpath(on, making))


def _is_simple(changed: Sequence[ChangedFile]) -> bool:
    """Return whether only plain files differ, and no path changes between file and folder."""
    if any({each.old_mode, each.new_mode} - set(PLAIN) for each in changed):
        return False
    gone = {each.path for each in changed if each.is_gone}
    brought = {each.path for each in changed if not each.is_gone}
    within = any(above in gone for path in brought for above in _list_parents(path))
    return not within and not any(
        above in brought for path in gone for above in _list_parents(path)
    )


async def _make_whiteouts(
    git: Git, ours: TrustedRepository, treeish: str, tree: Path, gone: Collection[str]
) -> None:
    """Create a whiteout for each removed file, or for the topmost folder that has become empty."""
    folders = sorted({above for path in gone for above in _list_parents(path)})
    left: set[str] = set()
    for part in split_paths(folders):
        # Without -t git omits a folder when a folder inside it is listed, too.
        words = ("--literal-pathspecs", "ls-tree", "-d", "-t", "-z", "--name-only", "--full-tree")
        said = (await git.run(ours.where, *words, treeish, "--", *part)).out
        left |= {os.fsdecode(name) for name in said.split(b"\0") if name}
    with storage_failures(tree):
        for mark in {_find_topmost(path, left) for path in gone}:
            _make_folder((tree / mark).parent)
            os.mknod(tree / mark, stat.S_IFCHR, 0)


def _find_topmost(path: str, left: Collection[str]) -> str:
    return next((above for above in _list_parents(path) if above not in left), path)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, readable by every user, as a checkout has them."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir()
        folder.chmod(0o755)


def _list_parents(path: str) -> Iterable[str]:
    """Return the folders that a path lies in, the topmost first."""
    parts = path.split("/")
    return ("/".join(parts[:number]) for number in range(1, len(parts)))


def _format_index_lines(changed: Iterable[ChangedFile]) -> bytes:
    return b"".join(
        b"%b %b\t%b\0" % (each.new_mode.encode(), each.new_blob.encode(), os.fsencode(each.path))
        for each in changed
    )


SUBMODULES, BOOT = "submodules", "boot"
NEW, GONE = ".new", ".gone"  # name endings during creation and removal
LINK = b"160000"
TRIED = 3  # how many full bases are tried as a lower base

Missing = Callable[[], Awaitable[str | None]]  # why overlays are not available; None if they are


class SharedCheckouts:
    """Overlay workspaces that share unchanged files, where the kernel supports them."""

    def __init__(self, git: Git, root: Path, missing: Missing) -> None:
        self._git = git
        self._folder = root / BASES
        self._missing = missing
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def can_overlay(self, contract: Contract) -> bool:
        """Return whether a subagent with this contract can have an overlay workspace.

        Only the subagent's own process sees all files there. A subagent that lends files of its
        workspace to others, or whose files are copied out, needs real ones.
        """
        boundary = contract.boundary
        alone = boundary.mode == ISOLATED and not boundary.launch_prefix
        alone = alone and not contract.permissions.can_spawn_children
        alone = alone and boundary.workspaces in (SHARED, SPARSE)
        return alone and contract.outputs.integration == "merge" and await self._missing() is None

    async def lay_out(
        self, ours: TrustedRepository, workspace: Path, commit: str, uid: int | None
    ) -> LowerLayers:
        """Lay the workspace over a checkout of the commit and give it a git folder.

        Raises:
            GitFailed, StorageFailed: why it could not be made.
        """
        if not overlay.is_over(workspace, self._folder / commit):
            # The link to the base comes first: it protects the base from garbage collection.
            overlay.lay_over(workspace, self._folder / commit)
            await self._make(ours, commit)
            make_overlay_workspace(ours.folder, workspace, uid)
        return await self.ensure_ready(ours, commit)

    async def ensure_ready(self, ours: TrustedRepository, commit: str) -> LowerLayers:
        """Return the layers of a base, making it again if it is missing or damaged.

        Raises:
            GitFailed, StorageFailed: why it could not be made.
        """
        await self._make(ours, commit)
        return overlay.list_layers(self._folder / commit)

    async def make_whole(self, ours: TrustedRepository, workspace: Path, uid: int | None) -> None:
        """Copy into the workspace every file that shows through it; repeating it changes nothing.

        Raises:
            GitFailed, StorageFailed: why not; everything that was changed is still there.
        """
        base = overlay.find_base(workspace)
        if base is None:
            return
        fill = overlay.get_fill_folder(workspace)
        name = workspace.parent.name
        try:
            if not overlay.is_filled(workspace):
                await ours.check_out(base.name, fill, ours.get_index(name), uid)
                ours.write_git_folder(fill, base.name, name, uid)
            await asyncio.to_thread(overlay.make_whole, workspace)
        except (GitFailed, StorageFailed):  # free the space again: the disk may be full
            await asyncio.to_thread(remove_tree, fill)
            raise
        await asyncio.to_thread(overlay.detach_workspace, workspace)

    def read_submodules(self, commit: str) -> dict[str, str]:
        """Return the paths of the submodules, with their commits."""
        with storage_failures(self._folder / commit):
            found: dict[str, str] = json.loads(read_plain(self._folder / commit / SUBMODULES))
        return found

    async def _make(self, ours: TrustedRepository, commit: str) -> None:
        place = self._folder / commit
        # Several subagents may start from the same commit at once; one makes the checkout.
        async with self._turns[commit]:
            if _is_sound(place):
                return
            making = self._folder / f".{commit}{NEW}"
            await asyncio.to_thread(_clear, making, place)
            if not await self._derive(ours, commit, making):
                await asyncio.to_thread(_clear, making, place)
                await ours.check_out(commit, making / TREE, making / INDEX, None)
            where = GitTarget(git_dir=ours.folder, index=making / INDEX)
            listed = (await self._git.run(where, "ls-files", "--stage", "-z")).out
            write_git_history(making / TREE, commit, making / INDEX)
            # The base gets its final name only when complete, so a crash leaves no partial base.
            _finish(making, place, dict(_parse_submodules(listed)))

    async def _derive(self, ours: TrustedRepository, commit: str, making: Path) -> bool:
        """Try to make the base over another one, the newest first; return whether that worked."""
        for on in await asyncio.to_thread(self._list_full_bases):
            # Check again right before use: garbage collection may have removed it since.
            if _is_sound(on) and await derive(self._git, ours, on, commit, making, indexed=True):
                return True
        return False

    def _list_full_bases(self) -> list[Path]:
        """Return the full bases, the newest first."""
        found = [each for each in self._folder.iterdir() if not each.name.startswith(".")]
        whole = [each for each in found if _is_sound(each) and not overlay.find_lower_base(each)]
        return sorted(whole, key=lambda each: each.stat().st_mtime, reverse=True)[:TRIED]

    async def show(
        self, ours: TrustedRepository, base: Path, tree: str, folder: Path
    ) -> LowerLayers | None:
        """Return layers that show a tree similar to that of a base; None where too much differs.

        Args:
            folder: where the differences are written; the caller owns it.

        Raises:
            GitFailed, StorageFailed: why it could not be made.
        """
        on = overlay.find_lower_base(base) or base
        if not await derive(self._git, ours, on, tree, folder, indexed=False):
            return None
        with storage_failures(folder):
            # A whiteout hides the base's git folder: a checkout for verification has no history.
            os.mknod(folder / TREE / GIT, stat.S_IFCHR, 0)
        return overlay.list_layers(folder)


def _clear(making: Path, place: Path) -> None:
    """Remove both folders and create an empty one to work in."""
    with storage_failures(making):
        make_folder(making.parent)
        for stale in (making, place):
            if os.path.lexists(stale):
                remove_tree(stale)
        making.mkdir(mode=0o755)


def _finish(making: Path, place: Path, submodules: dict[str, str]) -> None:
    with storage_failures(making):
        (making / SUBMODULES).write_text(json.dumps(submodules))
        (making / BOOT).write_text(read_boot_id())
        making.rename(place)


def _is_sound(place: Path) -> bool:
    """Return whether a base and its lower base are complete and were made since the last boot."""
    lower = overlay.find_lower_base(place)
    try:
        made = read_plain(place / BOOT) == read_boot_id().encode()
    except OSError:
        return False
    return made and (lower is None or _is_sound(lower))


def _parse_submodules(listed: bytes) -> Iterable[tuple[str, str]]:
    for line in listed.split(b"\0"):
        if line.startswith(LINK):
            about, _, path = line.partition(b"\t")
            yield os.fsdecode(path), about.split()[1].decode()


def set_aside(root: Path) -> list[tuple[Path, Path]]:
    """Rename every base that no workspace needs; return pairs of the old and the new name.

    The caller must let no workspace be laid out in between. Removing the renamed folders can then
    take its time, because no name leads to them any more.
    """
    bases = root / BASES
    tasks = root / "tasks"
    if not bases.is_dir():
        return []
    found: list[tuple[Path, Path]] = []
    with storage_failures(bases):
        folders = [
            folder for task in list_entries(tasks) for folder in list_entries(task / "agents")
        ]
        needed = {overlay.find_base(folder / "workspace") for folder in folders}
        for place in _list_unneeded(bases, needed):
            aside = place if place.name.startswith(".") else place.with_name(f".{place.name}{GONE}")
            if place == aside or not aside.exists():
                found.append((place, place.rename(aside)))
    return found


def _list_unneeded(bases: Path, needed: set[Path | None]) -> list[Path]:
    places = sorted(bases.iterdir())
    under = {overlay.find_lower_base(place) for place in places}
    return [each for each in places if not (each in needed or each in under or _is_new(each))]


def _is_new(place: Path) -> bool:
    """Return whether the base may still be in creation."""
    return place.name.endswith(NEW) and not is_stale(place)
