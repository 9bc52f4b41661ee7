"""Retinue's own git repository for each task, in which all output of children is processed.

tasks/<task>/repo.git
  objects/          new objects; those of the user's repository are read as alternates
  info/attributes   disables conversions, whatever attributes a tree contains
  joined            the commit to which Retinue last moved the branch
  indexes/<id>      index of each workspace at its creation, out of the child's reach
  sparse/<id>       temporary, during a sparse checkout

Sparse checkouts, of the files that a step owns, are for machines without overlay workspaces: of a
repository of 20,000 files one takes 42 ms, a full checkout 430 ms (`./dev bench workspace --full`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from retinue.core.contract import Contract
from retinue.core.task_config import SPARSE
from retinue.files import make_folder, storage_failures, write_atomic
from retinue.workspaces.git.git_command import Git, GitTarget
from retinue.workspaces.git.repository_location import is_object_store
from retinue.workspaces.owned_files import remove_tree

FILES_AT_THE_TOP = ("/*", "!/*/")
SPARSE_SETTINGS = "[core]\n\tsparseCheckout = true\n\tsparseCheckoutCone = false\n"
SPARSE_WORDS = ("-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=false")


def build_sparse_patterns(contract: Contract) -> tuple[str, ...]:
    """Return the sparse-checkout patterns for a subagent; empty for a full checkout.

    A file that is not checked out counts as unchanged, unless the child creates one there. A
    subagent that owns nothing in particular may change anything. One that lends files to others
    needs them to exist.
    """
    owned = contract.outputs.owns
    alone = contract.outputs.integration == "merge" and not contract.permissions.can_spawn_children
    if contract.boundary.workspaces != SPARSE or not alone or not owned:
        return ()
    if any("\n" in pattern for pattern in owned):  # git's pattern file has one pattern a line
        return ()
    return (*FILES_AT_THE_TOP, *map(_as_git_has_it, owned))


def _as_git_has_it(pattern: str) -> str:
    """Convert an ownership pattern for git, which also matches files below a matching folder."""
    # git strips trailing spaces that are not escaped.
    spaces = len(pattern) - len(pattern.rstrip(" "))
    return "/" + pattern.rstrip(" ") + "\\ " * spaces


def write_sparse_patterns(git_folder: Path, patterns: tuple[str, ...]) -> None:
    make_folder(git_folder / "info", mode=0o755)
    lines = "".join(f"{each}\n" for each in patterns)
    (git_folder / "info" / "sparse-checkout").write_bytes(os.fsencode(lines))


EXCLUDE = b"/.retinue/\n"  # a child's private folder
ATTRIBUTES = b"* -text -filter -ident -working-tree-encoding\n"
GIT, NEW = ".git", ".workspace.new"
# Through an overlay a file has another owner and ctime than the index has recorded.
SEEN_THROUGH = "[core]\n\tcheckStat = minimal\n\ttrustctime = false\n"


def write_git_history(tree: Path, base: str, index: Path) -> None:
    """Write the part of a git folder that is the same for all workspaces of this commit."""
    inner = tree / GIT
    with storage_failures(inner):
        for folder in ("refs/heads", "refs/tags", "info", "objects/pack"):
            (inner / folder).mkdir(parents=True, exist_ok=True)
        for path, data in (
            ("refs/heads/work", f"{base}\n".encode()),
            ("info/attributes", ATTRIBUTES),
            ("info/exclude", EXCLUDE),
            ("HEAD", b"ref: refs/heads/work\n"),
        ):
            (inner / path).write_bytes(data)
        shutil.copyfile(index, inner / "index")


def write_git_identity(ours: Path, workspace: Path, name: str, *, settings: str) -> None:
    """Write the part of a git folder that belongs to one workspace: author and object paths.

    Args:
        ours: the repository whose objects it reads.
    """
    inner = workspace / GIT
    objects = ours / "objects"
    identity = f"[user]\n\tname = {name}\n\temail = {name}@retinue.invalid\n"
    with storage_failures(inner):
        for folder in ("", "objects", "objects/info"):
            (inner / folder).mkdir(exist_ok=True)
        config = (ours / "config").read_text().replace("bare = true", "bare = false")
        (inner / "config").write_bytes((config + settings + identity).encode())
        read = f"{objects}\n".encode() + read_alternates(objects)
        (inner / "objects/info/alternates").write_bytes(read)


def make_overlay_workspace(ours: Path, workspace: Path, uid: int | None) -> None:
    """Create an overlay workspace that holds only its own part of a git folder."""
    making = workspace.with_name(NEW)
    make_empty(making, uid)
    write_git_identity(ours, making, workspace.parent.name, settings=SEEN_THROUGH)
    if uid is not None:
        chown_tree(making / GIT, uid)
    put_in_place(making, workspace)


def make_empty(folder: Path, uid: int | None) -> None:
    """Create an empty folder of that user, replacing whatever is there."""
    with storage_failures(folder):
        if os.path.lexists(folder):
            remove_tree(folder)
        folder.mkdir(mode=0o755)
        if uid is not None:
            os.chown(folder, uid, uid)


def put_in_place(making: Path, workspace: Path) -> None:
    """Rename the finished folder to the workspace; an empty workspace is replaced."""
    with storage_failures(workspace):
        if workspace.is_dir() and not any(workspace.iterdir()):
            workspace.rmdir()
        making.rename(workspace)


def read_alternates(objects: Path) -> bytes:
    """Return every object folder that is read besides this one, one per line.

    The paths are resolved: a child sees the folders themselves, and no links to them.
    """
    found: list[bytes] = []
    waiting = [objects]
    # A limit, since alternates may refer to each other in long chains.
    while waiting and len(found) < 16:
        here = waiting.pop()
        try:
            lines = (here / "info" / "alternates").read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            path = Path(os.path.realpath(here / os.fsdecode(line)))
            if line and not line.startswith(b"#") and os.fsencode(path) not in found:
                found.append(os.fsencode(path))
                waiting.append(path)
    return b"".join(path + b"\n" for path in found)


def chown_tree(top: Path, uid: int) -> None:
    """Make that user the owner of a tree; links themselves change owners, never their targets."""
    with storage_failures(top):
        os.chown(top, uid, uid, follow_symlinks=False)
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files):
                os.chown(os.path.join(folder, name), uid, uid, follow_symlinks=False)


REPOSITORY = "repo.git"  # in the folder of a task
PROJECT = 4  # parents[4] of project/.retinue/tasks/<task>/repo.git/objects is the project
_COPIES = count()


class TrustedRepository:
    """The repository of one task, which no child can write."""

    def __init__(self, git: Git, folder: Path) -> None:
        self._git = git
        self.folder = folder
        self.where = GitTarget(git_dir=folder)

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    def make(self, objects: Path, object_format: str = "sha1") -> None:
        """Create the repository, reading another one's objects, unless it exists."""
        if (self.folder / "HEAD").exists():
            return
        for name in ("", "objects", "objects/info", "objects/pack", "refs", "info", "indexes"):
            make_folder(self.folder / name, mode=0o755)
        version = "1" if object_format != "sha1" else "0"
        config = f"[core]\n\trepositoryformatversion = {version}\n\tbare = true\n"
        if object_format != "sha1":
            config += f"[extensions]\n\tobjectFormat = {object_format}\n"
        # Readable by every user: git creates a child's files as that child's user. Synced: what
        # subagents have done is only reachable through it.
        put = partial(write_atomic, mode=0o644, synced=True)
        put(self.folder / "config", config.encode())
        put(self.folder / "info" / "attributes", ATTRIBUTES)
        put(self.folder / "info" / "exclude", EXCLUDE)
        put(self.objects / "info" / "alternates", os.fsencode(self._to_relative(objects)) + b"\n")
        # HEAD comes last: its presence says that the repository is complete.
        put(self.folder / "HEAD", b"ref: refs/heads/none\n")

    def _to_relative(self, objects: Path) -> str:
        """Return the path for the alternates file; relative inside the project, which may move."""
        theirs = objects.resolve()
        ours = self.objects.resolve()
        inside = theirs.is_relative_to(ours.parents[PROJECT])
        return os.path.relpath(theirs, ours) if inside else str(objects)

    def find_repository(self, repository: Path) -> Path:
        """Return the git folder known under this path, even if the project has moved since."""
        project = self.folder.resolve().parents[PROJECT - 1]
        try:
            line = (self.objects / "info" / "alternates").read_bytes().splitlines()[0]
        except (OSError, IndexError):
            return repository
        if line.startswith(b"/") or repository.resolve().is_relative_to(project):
            return repository
        return Path(os.path.normpath(self.objects.resolve() / os.fsdecode(line))).parent

    def get_index(self, name: str) -> Path:
        return self.folder / "indexes" / name

    @contextmanager
    def copy_index(self, index: Path) -> Iterator[Path]:
        """Yield a copy of the index: an interrupted git then leaves the index intact and unlocked.

        The copy keeps the time stamp. By it git knows which files may have changed although their
        size and time are the same (the "racy git" problem).
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
        """Check out a commit into the folder, as that user, and write the index.

        Args:
            patterns: files to check out; the index marks the others as skipped.

        Raises:
            GitFailed: git failed.
            StorageFailed: the disk refused.
        """
        created_as_user = uid is not None and self._git.can_switch_user
        _clear(folder, index, uid)
        where = GitTarget(
            git_dir=self.folder,
            tree=folder,
            index=index,
            uid=uid if created_as_user else None,
            dies_with_steward=True,
        )
        # More workers bring little on one disk.
        at_once = min(4, os.cpu_count() or 1)
        words = ("-c", f"checkout.workers={at_once}", "read-tree", "-u", "--reset", commit)
        if patterns:
            with self._make_sparse_folder(patterns, index.name) as git_dir:
                await self._git.run(replace(where, git_dir=git_dir), *SPARSE_WORDS, *words)
        else:
            await self._git.run(where, *words)
        if uid is not None and not created_as_user:
            chown_tree(folder, uid)
        elif uid is not None:
            # git created the index as the child's user, who must not own it.
            os.chown(index, os.geteuid(), os.getegid())

    @contextmanager
    def _make_sparse_folder(self, patterns: tuple[str, ...], name: str) -> Iterator[Path]:
        """Yield a temporary git folder with these patterns: git reads them from its git folder."""
        part = TrustedRepository(self._git, self.folder / "sparse" / name)
        make_folder(part.folder.parent, mode=0o755)
        try:
            part.make(self.objects)
            with storage_failures(part.folder):
                shutil.copyfile(self.folder / "config", part.folder / "config")
                write_sparse_patterns(part.folder, patterns)
            yield part.folder
        finally:
            remove_tree(part.folder)

    def write_git_folder(
        self,
        workspace: Path,
        base: str,
        name: str,
        uid: int | None,
        patterns: tuple[str, ...] = (),
    ) -> None:
        """Give the workspace a git folder of its own, which Retinue never reads again."""
        write_git_history(workspace, base, self.get_index(name))
        write_git_identity(
            self.folder, workspace, name, settings=SPARSE_SETTINGS if patterns else ""
        )
        if patterns:
            with storage_failures(workspace):
                write_sparse_patterns(workspace / GIT, patterns)
        if uid is not None:
            chown_tree(workspace / GIT, uid)

    def list_lent(self) -> tuple[Path, ...]:
        """Return the object folders that a child's git may read, but not write."""
        others = (Path(os.fsdecode(line)) for line in read_alternates(self.objects).splitlines())
        # An alternate can name any folder of the machine; a child may only see git objects.
        return (self.objects, *(path for path in others if is_object_store(path)))

    async def lay_out(
        self, base: str, workspace: Path, uid: int | None, patterns: tuple[str, ...]
    ) -> None:
        """Create the workspace with the files of its base and a git folder, in one rename.

        Raises:
            GitFailed, StorageFailed: why it could not be made; there is no workspace then.
        """
        name = workspace.parent.name
        if self.is_laid_out(workspace, name):
            return
        making = workspace.with_name(NEW)
        await self.check_out(base, making, self.get_index(name), uid, patterns)
        self.write_git_folder(making, base, name, uid, patterns)
        put_in_place(making, workspace)

    def is_laid_out(self, workspace: Path, name: str) -> bool:
        return workspace.is_dir() and self.get_index(name).exists()


def _clear(folder: Path, index: Path, uid: int | None) -> None:
    """Remove the index and create an empty folder of that user."""
    with storage_failures(folder):
        for stale in (index, index.with_name(f"{index.name}.lock")):
            stale.unlink(missing_ok=True)
    make_empty(folder, uid)
