"""Checkouts that workspaces are seen over: one for each commit, made once, shared and unchanged.

bases/<commit>/
  tree/        its files, and the part of a git folder that all who start from it have in common
  on           where it is over another base, a link to that; then only what is different is here
  index        what git knows of them
  submodules   their paths and commits
  boot         since when the machine is up; a checkout that it went down with may have holes
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from retinue.clock import boot_id
from retinue.domain.boundary import ISOLATED, SHARED, SPARSE
from retinue.domain.contract import Contract
from retinue.domain.errors import StorageFailed
from retinue.files import entries, make_folder, read_plain, storage_failures
from retinue.workspaces import layers
from retinue.workspaces.clones import GIT, give_history, give_overlaid
from retinue.workspaces.deriving import INDEX, derive
from retinue.workspaces.git import Git, GitFailed, Where
from retinue.workspaces.layers import BASES, TREE, Below
from retinue.workspaces.removal import is_stale, remove_tree
from retinue.workspaces.trusted import TrustedRepository

SUBMODULES, BOOT = "submodules", "boot"
NEW, GONE = ".new", ".gone"  # while it is made, and removed
LINK = b"160000"
TRIED = 3  # how many that a base could be over

Missing = Callable[[], Awaitable[str | None]]  # why nothing can be seen through a workspace here


class Bases:
    """Workspaces that share the files they do not change, where the kernel can show them so."""

    def __init__(self, git: Git, root: Path, missing: Missing) -> None:
        self._git = git
        self._folder = root / BASES
        self._missing = missing
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def serve(self, contract: Contract) -> bool:
        """Whether the workspace of such a subagent can share files.

        Only its own process sees them all: whoever lends files of its workspace to others, or
        has them copied from there, needs them to be there.
        """
        boundary = contract.boundary
        alone = boundary.mode == ISOLATED and not boundary.launch_prefix
        alone = alone and not contract.permissions.can_spawn_children
        alone = alone and boundary.workspaces in (SHARED, SPARSE)
        return alone and contract.outputs.integration == "merge" and await self._missing() is None

    async def lay_out(
        self, ours: TrustedRepository, workspace: Path, commit: str, uid: int | None
    ) -> Below:
        """The workspace is over a checkout of the commit, and has a git folder.

        Raises:
            GitFailed, StorageFailed: why it could not be made.
        """
        if not layers.is_over(workspace, self._folder / commit):
            # First what it is over: nobody clears away what someone is over.
            layers.put_over(workspace, self._folder / commit)
            await self._make(ours, commit)
            give_overlaid(ours.folder, workspace, uid)
        return await self.ready(ours, commit)

    async def ready(self, ours: TrustedRepository, commit: str) -> Below:
        """All of a base is there, made again where it was lost.

        Raises:
            GitFailed, StorageFailed: why it could not be made.
        """
        await self._make(ours, commit)
        return layers.of_base(self._folder / commit)

    async def make_whole(self, ours: TrustedRepository, workspace: Path, uid: int | None) -> None:
        """The workspace holds every file that is seen in it; a second time changes nothing.

        Raises:
            GitFailed, StorageFailed: why not; all that was changed is still there.
        """
        base = layers.base_of(workspace)
        if base is None:
            return
        fill, name = layers.fill_of(workspace), workspace.parent.name
        try:
            if not layers.is_filled(workspace):
                await ours.check_out(base.name, fill, ours.index_of(name), uid)
                ours.give_git(fill, base.name, name, uid)
            await asyncio.to_thread(layers.make_whole, workspace)
        except (GitFailed, StorageFailed):  # a full disk, say: it must not be full of this
            await asyncio.to_thread(remove_tree, fill)
            raise
        await asyncio.to_thread(layers.let_go, workspace)

    def submodules(self, commit: str) -> dict[str, str]:
        """The paths of submodules, and their commits."""
        with storage_failures(self._folder / commit):
            found: dict[str, str] = json.loads(read_plain(self._folder / commit / SUBMODULES))
        return found

    async def _make(self, ours: TrustedRepository, commit: str) -> None:
        place = self._folder / commit
        async with self._turns[commit]:
            if _is_sound(place):
                return
            making = self._folder / f".{commit}{NEW}"
            await asyncio.to_thread(_clear, making, place)
            if not await self._derive(ours, commit, making):
                await asyncio.to_thread(_clear, making, place)
                await ours.check_out(commit, making / TREE, making / INDEX, None)
            where = Where(git_dir=ours.folder, index=making / INDEX)
            listed = (await self._git.run(where, "ls-files", "--stage", "-z")).out
            give_history(making / TREE, commit, making / INDEX)
            _finish(making, place, dict(_submodules(listed)))

    async def _derive(self, ours: TrustedRepository, commit: str, making: Path) -> bool:
        """Whether it is made over another base, the newest that it differs little from."""
        for on in await asyncio.to_thread(self._whole):
            # Looked at again in the moment in which it begins to be needed.
            if _is_sound(on) and await derive(self._git, ours, on, commit, making, indexed=True):
                return True
        return False

    def _whole(self) -> list[Path]:
        """Bases that others can be over, the newest first."""
        found = [each for each in self._folder.iterdir() if not each.name.startswith(".")]
        whole = [each for each in found if _is_sound(each) and not layers.base_under(each)]
        return sorted(whole, key=lambda each: each.stat().st_mtime, reverse=True)[:TRIED]

    async def show(
        self, ours: TrustedRepository, base: Path, tree: str, folder: Path
    ) -> Below | None:
        """What a workspace is to be over that shows a tree like that of a base; made in a folder
        that is nobody else's. None where they are too different.

        Raises:
            GitFailed, StorageFailed: why it could not be made.
        """
        on = layers.base_under(base) or base
        if not await derive(self._git, ours, on, tree, folder, indexed=False):
            return None
        with storage_failures(folder):  # nobody works there: it has no history
            os.mknod(folder / TREE / GIT, stat.S_IFCHR, 0)
        return layers.of_base(folder)


def _clear(making: Path, place: Path) -> None:
    """An empty folder to make it in, and nothing in its place."""
    with storage_failures(making):
        make_folder(making.parent)
        for stale in (making, place):
            if os.path.lexists(stale):
                remove_tree(stale)
        making.mkdir(mode=0o755)


def _finish(making: Path, place: Path, submodules: dict[str, str]) -> None:
    with storage_failures(making):
        (making / SUBMODULES).write_text(json.dumps(submodules))
        (making / BOOT).write_text(boot_id())
        making.rename(place)


def _is_sound(place: Path) -> bool:
    """Whether it is there, and all that it is over, as it was made."""
    lower = layers.base_under(place)
    try:
        made = read_plain(place / BOOT) == boot_id().encode()
    except OSError:
        return False
    return made and (lower is None or _is_sound(lower))


def _submodules(listed: bytes) -> Iterable[tuple[str, str]]:
    for line in listed.split(b"\0"):
        if line.startswith(LINK):
            about, _, path = line.partition(b"\t")
            yield os.fsdecode(path), about.split()[1].decode()


def set_aside(root: Path) -> list[tuple[Path, Path]]:
    """Every checkout that nothing is over any more: where it was, and the name it goes by until
    it is removed, under which nobody looks for it.

    All of it between two moments of whoever may begin to need one; removing takes its time.
    """
    bases, tasks = root / BASES, root / "tasks"
    if not bases.is_dir():
        return []
    found: list[tuple[Path, Path]] = []
    with storage_failures(bases):
        folders = [folder for task in entries(tasks) for folder in entries(task / "agents")]
        needed = {layers.base_of(folder / "workspace") for folder in folders}
        for place in _unneeded(bases, needed):
            aside = place if place.name.startswith(".") else place.with_name(f".{place.name}{GONE}")
            if place == aside or not aside.exists():
                found.append((place, place.rename(aside)))
    return found


def _unneeded(bases: Path, needed: set[Path | None]) -> list[Path]:
    places = sorted(bases.iterdir())
    under = {layers.base_under(place) for place in places}
    return [each for each in places if not (each in needed or each in under or _is_new(each))]


def _is_new(place: Path) -> bool:
    """Whether someone may still be making it."""
    return place.name.endswith(NEW) and not is_stale(place)
