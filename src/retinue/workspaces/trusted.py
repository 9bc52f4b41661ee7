"""A git repository of our own for each task: whatever is made of a child's output is made here.

tasks/<task>/repo.git
  objects/          ours; what the user's repository has is read from there, never written
  info/attributes   bytes stay what they are, whatever attributes a tree asks for
  joined            the commit that the branch was last moved to by us
  indexes/<id>      what each workspace was when it was made, out of its child's reach
  sparse/<id>       while it is checked out in part
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from retinue.files import make_folder, storage_failures, write_atomic
from retinue.workspaces import sparse
from retinue.workspaces.clones import (
    ATTRIBUTES,
    EXCLUDE,
    GIT,
    NEW,
    alternates,
    give,
    give_history,
    give_identity,
    make_empty,
    put_in_place,
)
from retinue.workspaces.git import Git, Where
from retinue.workspaces.removal import remove_tree

REPOSITORY = "repo.git"  # of a task
PROJECT = 4  # folders above our objects: project/.retinue/tasks/<task>/repo.git/objects
_COPIES = count()


class TrustedRepository:
    def __init__(self, git: Git, folder: Path) -> None:
        self._git = git
        self.folder = folder
        self.where = Where(git_dir=folder)

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    def make(self, objects: Path, object_format: str = "sha1") -> None:
        """The repository exists and reads the objects of another."""
        if (self.folder / "HEAD").exists():
            return
        for name in ("", "objects", "objects/info", "objects/pack", "refs", "info", "indexes"):
            make_folder(self.folder / name, mode=0o755)
        version = "1" if object_format != "sha1" else "0"
        config = f"[core]\n\trepositoryformatversion = {version}\n\tbare = true\n"
        if object_format != "sha1":
            config += f"[extensions]\n\tobjectFormat = {object_format}\n"
        # Readable for whoever a child is: as that user its files are made.
        write_atomic(self.folder / "config", config.encode(), 0o644)
        write_atomic(self.folder / "info" / "attributes", ATTRIBUTES, 0o644)
        write_atomic(self.folder / "info" / "exclude", EXCLUDE, 0o644)
        shared = os.fsencode(self._seen_from_here(objects)) + b"\n"
        write_atomic(self.objects / "info" / "alternates", shared, 0o644)
        write_atomic(self.folder / "HEAD", b"ref: refs/heads/none\n", 0o644)  # last: all is there

    def _seen_from_here(self, objects: Path) -> str:
        """Where they are; of the project's own, in a way that stays right when it is moved."""
        theirs, ours = objects.resolve(), self.objects.resolve()
        inside = theirs.is_relative_to(ours.parents[PROJECT])
        return os.path.relpath(theirs, ours) if inside else str(objects)

    def located(self, repository: Path) -> Path:
        """The git folder that is known under this path, also when the project was moved with it."""
        project = self.folder.resolve().parents[PROJECT - 1]
        try:
            line = (self.objects / "info" / "alternates").read_bytes().splitlines()[0]
        except (OSError, IndexError):
            return repository
        if line.startswith(b"/") or repository.resolve().is_relative_to(project):
            return repository
        return Path(os.path.normpath(self.objects.resolve() / os.fsdecode(line))).parent

    def index_of(self, name: str) -> Path:
        return self.folder / "indexes" / name

    @contextmanager
    def copied(self, index: Path) -> Iterator[Path]:
        """A copy to work on: what was interrupted leaves the index, and no lock, behind.

        As old as the index: by that git knows which files may have changed although they look
        as they did, being younger than a second then.
        """
        copy = index.with_name(f"{index.name}.{os.getpid()}-{next(_COPIES)}")
        with storage_failures(copy):
            shutil.copy2(index, copy)
        try:
            yield copy
        finally:
            for path in (copy, copy.with_name(f"{copy.name}.lock")):
                path.unlink(missing_ok=True)

    async def check_out(
        self,
        commit: str,
        folder: Path,
        index: Path,
        uid: int | None,
        patterns: tuple[str, ...] = (),
    ) -> None:
        """The folder holds the files of a commit, as that user's; the index knows them.

        Args:
            patterns: of the files that are there; the index says of the others that they are not.

        Raises:
            GitFailed: git could not.
            StorageFailed: the disk said no.
        """
        born_so = uid is not None and self._git.can_be_other
        _clear(folder, index, uid)
        who = uid if born_so else None
        where = Where(git_dir=self.folder, tree=folder, index=index, uid=who, passing=True)
        at_once = min(4, os.cpu_count() or 1)
        words = ("-c", f"checkout.workers={at_once}", "read-tree", "-u", "--reset", commit)
        if patterns:
            with self._checking_out(patterns, index.name) as git_dir:
                await self._git.run(replace(where, git_dir=git_dir), *sparse.WORDS, *words)
        else:
            await self._git.run(where, *words)
        if uid is not None and not born_so:
            give(folder, uid)
        elif uid is not None:
            os.chown(index, os.geteuid(), os.getegid())

    @contextmanager
    def _checking_out(self, patterns: tuple[str, ...], name: str) -> Iterator[Path]:
        """A git folder that reads ours: git takes such patterns from the folder it works with."""
        part = TrustedRepository(self._git, self.folder / "sparse" / name)
        make_folder(part.folder.parent, mode=0o755)
        try:
            part.make(self.objects)
            with storage_failures(part.folder):
                shutil.copyfile(self.folder / "config", part.folder / "config")
                sparse.write_patterns(part.folder, patterns)
            yield part.folder
        finally:
            remove_tree(part.folder)

    def give_git(
        self,
        workspace: Path,
        base: str,
        name: str,
        uid: int | None,
        patterns: tuple[str, ...] = (),
    ) -> None:
        """The workspace has a git folder of its own, which we never look into again."""
        give_history(workspace, base, self.index_of(name))
        give_identity(self.folder, workspace, name, settings=sparse.SETTINGS if patterns else "")
        if patterns:
            with storage_failures(workspace):
                sparse.write_patterns(workspace / GIT, patterns)
        if uid is not None:
            give(workspace / GIT, uid)

    def lent(self) -> tuple[Path, ...]:
        """The folders that a child's own git reads, and must not write."""
        others = alternates(self.objects).splitlines()
        paths = [self.objects, *(Path(os.fsdecode(line)) for line in others)]
        return tuple(path for path in paths if path.is_dir())

    async def lay_out(
        self, base: str, workspace: Path, uid: int | None, patterns: tuple[str, ...]
    ) -> None:
        """The workspace holds the files of its base and a git folder, or does not exist.

        Raises:
            GitFailed, StorageFailed: why it could not be made.
        """
        name = workspace.parent.name
        if self.is_laid_out(workspace, name):
            return
        making = workspace.with_name(NEW)
        await self.check_out(base, making, self.index_of(name), uid, patterns)
        self.give_git(making, base, name, uid, patterns)
        put_in_place(making, workspace)

    def is_laid_out(self, workspace: Path, name: str) -> bool:
        return workspace.is_dir() and self.index_of(name).exists()


def _clear(folder: Path, index: Path, uid: int | None) -> None:
    """An empty folder of that user's stands here, and no index."""
    with storage_failures(folder):
        for stale in (index, index.with_name(f"{index.name}.lock")):
            stale.unlink(missing_ok=True)
    make_empty(folder, uid)
