"""A git repository of our own for each task: whatever is made of a child's output is made here.

tasks/<task>/repo.git
  objects/          ours; what the user's repository has is read from there, never written
  info/attributes   bytes stay what they are, whatever attributes a tree asks for
  indexes/<id>      what each workspace was when it was made, out of its child's reach
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from retinue.files import make_folder, storage_failures, write_atomic
from retinue.workspaces.git import Git, Where
from retinue.workspaces.removal import remove_tree

EXCLUDE = b"/.retinue/\n"  # of a child's own use
ATTRIBUTES = b"* -text -filter -ident -working-tree-encoding\n"

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
        write_atomic(self.objects / "info" / "alternates", os.fsencode(objects) + b"\n", 0o644)
        write_atomic(self.folder / "HEAD", b"ref: refs/heads/none\n", 0o644)  # last: all is there

    def index_of(self, name: str) -> Path:
        return self.folder / "indexes" / name

    @contextmanager
    def copied(self, index: Path) -> Iterator[Path]:
        """A copy to work on: what was interrupted leaves the index, and no lock, behind."""
        copy = index.with_name(f"{index.name}.{os.getpid()}-{next(_COPIES)}")
        with storage_failures(copy):
            shutil.copyfile(index, copy)
        try:
            yield copy
        finally:
            for path in (copy, copy.with_name(f"{copy.name}.lock")):
                path.unlink(missing_ok=True)

    async def check_out(self, commit: str, folder: Path, index: Path, uid: int | None) -> None:
        """The folder holds the files of a commit, as that user's; the index knows them.

        Raises:
            GitFailed: git could not.
            StorageFailed: the disk said no.
        """
        born_so = uid is not None and self._git.can_be_other
        _clear(folder, index, uid)
        where = Where(git_dir=self.folder, tree=folder, index=index, uid=uid if born_so else None)
        at_once = min(4, os.cpu_count() or 1)
        words = ("-c", f"checkout.workers={at_once}", "read-tree", "-u", "--reset", commit)
        await self._git.run(where, *words)
        if uid is not None and not born_so:
            _give(folder, uid)
        elif uid is not None:
            os.chown(index, os.geteuid(), os.getegid())

    def give_git(self, workspace: Path, base: str, name: str, uid: int | None) -> None:
        """The workspace has a git folder of its own, which we never look into again."""
        inner = workspace / ".git"
        alternates = f"{self.objects}\n".encode() + _alternates(self.objects)
        identity = f"[user]\n\tname = {name}\n\temail = {name}@retinue.invalid\n"
        with storage_failures(inner):
            for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
                (inner / folder).mkdir(parents=True, exist_ok=True)
            config = (self.folder / "config").read_text().replace("bare = true", "bare = false")
            for path, data in (
                ("config", (config + identity).encode()),
                ("objects/info/alternates", alternates),
                ("refs/heads/work", f"{base}\n".encode()),
                ("info/attributes", ATTRIBUTES),
                ("info/exclude", EXCLUDE),
                ("HEAD", b"ref: refs/heads/work\n"),
            ):
                (inner / path).write_bytes(data)
            shutil.copyfile(self.index_of(name), inner / "index")
            if uid is not None:
                _give(inner, uid)

    def lent(self) -> tuple[Path, ...]:
        """The folders that a child's own git reads, and must not write."""
        others = _alternates(self.objects).splitlines()
        paths = [self.objects, *(Path(os.fsdecode(line)) for line in others)]
        return tuple(path for path in paths if path.is_dir())

    async def lay_out(self, base: str, workspace: Path, name: str, uid: int | None) -> None:
        """The workspace holds the files of its base and a git folder, or does not exist.

        Raises:
            GitFailed, StorageFailed: why it could not be made.
        """
        if self._is_laid_out(workspace, name):
            return
        making = workspace.with_name(".workspace.new")
        await self.check_out(base, making, self.index_of(name), uid)
        self.give_git(making, base, name, uid)
        _put_in_place(making, workspace)

    def _is_laid_out(self, workspace: Path, name: str) -> bool:
        return workspace.is_dir() and self.index_of(name).exists()


def _clear(folder: Path, index: Path, uid: int | None) -> None:
    """An empty folder of that user's stands here, and no index."""
    with storage_failures(folder):
        for stale in (index, index.with_name(f"{index.name}.lock")):
            stale.unlink(missing_ok=True)
        if os.path.lexists(folder):
            remove_tree(folder)
        folder.mkdir(mode=0o755)
        if uid is not None:
            os.chown(folder, uid, uid)


def _put_in_place(making: Path, workspace: Path) -> None:
    with storage_failures(workspace):
        if workspace.is_dir() and not any(workspace.iterdir()):
            workspace.rmdir()
        making.rename(workspace)


def _alternates(objects: Path) -> bytes:
    """Every folder of objects that is read besides this one, in lines."""
    found: list[bytes] = []
    waiting = [objects]
    while waiting and len(found) < 16:
        here = waiting.pop()
        try:
            lines = (here / "info" / "alternates").read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            path = Path(os.path.normpath(here / os.fsdecode(line)))
            if line and not line.startswith(b"#") and os.fsencode(path) not in found:
                found.append(os.fsencode(path))
                waiting.append(path)
    return b"".join(path + b"\n" for path in found)


def _give(top: Path, uid: int) -> None:
    """Everything here is that user's; links are given away themselves, never what they name."""
    with storage_failures(top):
        os.chown(top, uid, uid, follow_symlinks=False)
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files):
                os.chown(os.path.join(folder, name), uid, uid, follow_symlinks=False)
