"""Import of a workspace that holds only its changes over a base.

The result equals that of importing a whole workspace: ignored files stay out unless the base
has them, and attributes change no content. Only the changes are read. Nothing of the child's
is run, and git sees neither its workspace nor its git folder.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from retinue.core.contract import Contract
from retinue.core.join_result import REFUSED, JoinFailed
from retinue.core.voting import OURS
from retinue.files import is_opaque, is_whiteout
from retinue.workspaces.child_files import FILE, FolderListing, TreeWalk
from retinue.workspaces.git.git_command import Git, GitFailed, GitTarget, open_memory_file
from retinue.workspaces.git.import_tree import TakenTree, compare_tree
from retinue.workspaces.git.merge_rules import (
    MB,
    SHOWN,
    format_path,
    make_nested_error,
    make_policy_error,
    make_size_error,
    raise_unreadable,
)
from retinue.workspaces.git.task_repository import TrustedRepository
from retinue.workspaces.overlay import LowerLayers

LINK_MODE, FILE_MODE, PROGRAM_MODE = 0o120000, 0o100644, 0o100755


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkspaceFile:
    """A file or a link in the workspace."""

    path: str
    mode: int  # in git's notation
    size: int
    known: bool  # whether the base has a file of that name


@dataclass(frozen=True, kw_only=True)
class WorkspaceFolder:
    known: bool  # whether the base has a folder of that name
    hides: bool  # whether it hides everything that the base has there
    foreign: bool = False  # whether it is the folder of a submodule, or inside one


@dataclass(kw_only=True)
class Survey:
    """Content of a workspace, compared with its base by names and kinds."""

    left: list[WorkspaceFile] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  # removed files and folders of the base
    kept: list[str] = field(default_factory=list)  # submodules in folders that were recreated
    nested: list[str] = field(default_factory=list)  # git folders besides the workspace's own
    foreign: list[str] = field(default_factory=list)  # files in folders of submodules
    folders: dict[str, WorkspaceFolder] = field(default_factory=dict)  # by path with a slash


class Surveyor:
    """Scanner of an overlay workspace."""

    def __init__(
        self, workspace: Path, below: LowerLayers, submodules: Mapping[str, str], report: str
    ) -> None:
        self._workspace = workspace
        self._below = below
        self._submodules = submodules
        self._spared = {OURS, report}
        self._seen = Survey(folders={"": WorkspaceFolder(known=True, hides=False)})

    def scan_workspace(self) -> Survey:
        """Return what the workspace contains; follow no link.

        Raises:
            JoinFailed: something cannot be read, or is neither file, link nor folder.
        """
        for folder in TreeWalk(self._workspace, on_error=raise_unreadable):
            try:
                entered = [each.name for each in folder.entries if self._look(folder, each)]
            except OSError as error:
                raise_unreadable(folder.path, error)
            folder.enter[:] = entered
        return self._seen

    def _look(self, listing: FolderListing, entry: os.DirEntry[str]) -> bool:
        """Record one entry; return whether it is a folder to descend into."""
        path = listing.path + entry.name
        seen = self._seen
        folder = self._seen.folders[listing.path]
        if path in self._spared:
            return False
        # Any letter case: some file systems take .GIT for .git.
        if entry.name.lower() == ".git":
            if path != ".git":
                seen.nested.append(path)
            return False
        status = entry.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(status.st_mode)
        # git stores only a commit for a submodule, so its files cannot be taken.
        if folder.foreign:
            seen.folders[f"{path}/"] = folder
            if not is_folder:
                seen.foreign.append(path)
            return is_folder
        base = self._below.read_status(path) if folder.known else None
        was_folder = base is not None and stat.S_ISDIR(base.st_mode)
        if is_folder:
            return self._look_at_folder(listing.locate(entry.name), path, folder, base)
        # A file that replaces a folder of the base, or a whiteout, removes what the base has.
        if base is not None and not folder.hides and (was_folder or is_whiteout(status)):
            seen.gone.append(path)
        if not is_whiteout(status):
            known = (base is not None and not was_folder) or path in self._submodules
            self._take(path, status, known=known)
        return False

    def _look_at_folder(
        self,
        place: str,
        path: str,
        above: WorkspaceFolder,
        base: os.stat_result | None,
    ) -> bool:
        if path in self._submodules:
            if above.hides:
                self._seen.kept.append(path)
            self._seen.folders[f"{path}/"] = WorkspaceFolder(known=False, hides=True, foreign=True)
            return True
        known = base is not None and stat.S_ISDIR(base.st_mode)
        # An opaque folder was removed and made again: nothing of the base shows through.
        anew = not known or is_opaque(place)
        if base is not None and anew and not above.hides:
            self._seen.gone.append(path)
        self._seen.folders[f"{path}/"] = WorkspaceFolder(known=known, hides=above.hides or anew)
        return True

    def _take(self, path: str, status: os.stat_result, *, known: bool) -> None:
        if stat.S_ISLNK(status.st_mode):
            mode = LINK_MODE
        elif stat.S_ISREG(status.st_mode):
            mode = PROGRAM_MODE if status.st_mode & 0o100 else FILE_MODE
        elif known:
            shown = format_path(path)
            raise JoinFailed(f"{shown} is not a plain file", reason=REFUSED, files=(shown,))
        else:
            return  # a pipe or a socket, which git ignores
        self._seen.left.append(
            WorkspaceFile(path=path, mode=mode, size=status.st_size, known=known)
        )


IGNORE = ".gitignore"
IGNORE_BYTES = 16 * MB


class OverlayImport:
    """Import of one overlay workspace into the task's repository."""

    def __init__(
        self,
        git: Git,
        ours: TrustedRepository,
        workspace: Path,
        below: LowerLayers,
        contract: Contract,
    ) -> None:
        self._git = git
        self._ours = ours
        self._workspace = workspace
        self._below = below
        self._contract = contract

    async def take_in(self, base: str, submodules: dict[str, str]) -> TakenTree:
        """Import the workspace as it is now and return its tree and the changes.

        Args:
            base: the commit that the workspace is laid over.
            submodules: paths of the base's submodules, with their commits.

        Raises:
            JoinFailed: something in the workspace must not be taken.
        """
        if self._workspace.is_symlink() or not self._workspace.is_dir():
            raise JoinFailed("its workspace is gone, or was replaced", reason=REFUSED)
        report = self._contract.report_path
        surveyor = Surveyor(self._workspace, self._below, submodules, report)
        # The tree may be large: walk it in a thread, so that the event loop goes on.
        survey = await asyncio.to_thread(surveyor.scan_workspace)
        try:
            left = await self._filter_ignored(survey)
            await asyncio.to_thread(self._require_sizes, left)
            await self._require_names(left)
            kept = {path: submodules[path] for path in survey.kept}
            tree = await self._import(base, survey.gone, kept, left)
            changed = await compare_tree(self._git, self._ours.where, self._contract, tree)
            found = {each.path for each in survey.left} | set(survey.foreign)
            out = sorted(found - {each.path for each in left})[:SHOWN] if not changed else []
            return TakenTree(tree=tree, changed=changed, ignored=tuple(map(format_path, out)))
        except GitFailed as error:
            words = f"its files cannot be taken: {error.message}"
            raise JoinFailed(words, reason=REFUSED) from error
        except OSError as error:
            words = f"its files cannot be taken: {error.strerror} (errno {error.errno})"
            raise JoinFailed(words, reason=REFUSED) from error

    async def _filter_ignored(self, survey: Survey) -> list[WorkspaceFile]:
        """Return the files that git would take: those of the base, and others unless ignored.

        Raises:
            JoinFailed: there is a repository that is not ignored.
        """
        new = [each.path for each in survey.left if not each.known]
        if not new and not survey.nested:
            return survey.left
        with tempfile.TemporaryDirectory(dir=self._ours.folder) as folder:
            tree = Path(folder)
            within = [path.rpartition("/")[0] or path for path in survey.nested]
            await asyncio.to_thread(self._lay_ignores, tree, survey, [*new, *survey.nested])
            where = GitTarget(git_dir=self._ours.folder, tree=tree, index=tree / ".git" / "index")
            ignored = await self._find_ignored(where, {*new, *within})
        for path, place in zip(survey.nested, within, strict=True):
            if place not in ignored:
                raise make_nested_error(path)
        return [each for each in survey.left if each.known or each.path not in ignored]

    def _lay_ignores(self, tree: Path, survey: Survey, paths: Iterable[str]) -> None:
        """Copy into `tree` the ignore files that apply to these paths."""
        for above in sorted({above for path in paths for above in iter_folders(path)}):
            folder = survey.folders.get(above)
            if folder is None:  # not scanned, as git would not descend into it
                continue
            path = above + IGNORE
            place: Path | None = self._workspace / path
            if not os.path.lexists(self._workspace / path):
                seen = folder.known and not folder.hides
                place = self._below.find(path) if seen else None
            data = _read_plain(place) if place is not None else None
            if data is not None:
                (tree / above).mkdir(parents=True, exist_ok=True)
                (tree / path).write_bytes(data)
        for path in survey.nested:
            # A pattern such as `name/` matches folders only, so the folder must exist.
            (tree / (path.rpartition("/")[0] or path)).mkdir(parents=True, exist_ok=True)

    async def _find_ignored(self, where: GitTarget, paths: Collection[str]) -> set[str]:
        # The prefix keeps git from reading a leading ':' or '-' of a name as syntax.
        said = b"".join(b"./%b\0" % os.fsencode(path) for path in sorted(paths))
        words = ("check-ignore", "--no-index", "--stdin", "-z")
        with open_memory_file() as out:  # without the limit on ordinary output
            await self._git.run(where, *words, stdin=said, stdout=out.fileno(), accept=(0, 1))
            out.seek(0)
            return {os.fsdecode(path[2:]) for path in out.read().split(b"\0") if path}

    def _require_sizes(self, left: Sequence[WorkspaceFile]) -> None:
        """Require that no new or changed file exceeds the size limit.

        Raises:
            JoinFailed: one does.
        """
        most = self._contract.outputs.max_file_mb
        large = [each for each in left if each.mode != LINK_MODE and each.size > most * MB]
        changed = [each for each in large if not (each.known and self._is_same(each.path))]
        if changed:
            paths = sorted(each.path for each in changed)
            raise make_size_error(most, paths)

    def _is_same(self, path: str) -> bool:
        """Return whether a file has the content and the executable bit that it has in the base."""
        before = self._below.find(path)
        if before is None or not stat.S_ISREG(before.lstat().st_mode):
            return False
        with _open_plain(self._workspace / path) as now, _open_plain(before) as then:
            modes = {os.fstat(file.fileno()).st_mode & 0o100 for file in (now, then)}
            if len(modes) > 1:
                return False
            while piece := now.read(MB):
                if piece != then.read(MB):
                    return False
            return not then.read(1)

    async def _require_names(self, left: Sequence[WorkspaceFile]) -> None:
        """Require paths that git would check out.

        Raises:
            JoinFailed: git rejects some; it names them.
        """
        if not left:
            return
        blob = b"1" * len(self._contract.outputs.base)
        lines = [b"%o %b\t%b\0" % (each.mode, blob, os.fsencode(each.path)) for each in left]
        with tempfile.TemporaryDirectory(dir=self._ours.folder) as folder:
            where = GitTarget(git_dir=self._ours.folder, index=Path(folder) / "index")
            words = ("update-index", "-z", "--index-info")
            await self._git.run(where, *words, stdin=b"".join(lines))
            # git drops invalid paths without an error, so compare the count.
            if count_entries(Path(folder) / "index") == len(left):
                return
            known = (await self._git.run(where, "ls-files", "-z")).out.split(b"\0")
        refused = {each.path for each in left} - set(map(os.fsdecode, known))
        raise make_policy_error(
            "its files cannot be taken because git rejects their paths", sorted(refused)
        )

    async def _import(
        self, base: str, gone: Sequence[str], kept: dict[str, str], left: Sequence[WorkspaceFile]
    ) -> str:
        """Return the tree that results from applying the changes to the base."""
        if not gone and not left:
            return (await self._git.run(self._ours.where, "rev-parse", f"{base}^{{tree}}")).text
        # On disk, not in memory: the stream contains every changed file.
        with tempfile.TemporaryFile(dir=self._ours.folder) as stream:
            await asyncio.to_thread(self._write, stream, base, (gone, kept, left))
            stream.seek(0)
            words = ("fast-import", "--quiet", "--done", "--date-format=raw")
            said = await self._git.run(self._ours.where, *words, stdin=stream.fileno())
        return said.text.split()[2]

    def _write(
        self,
        stream: IO[bytes],
        base: str,
        what: tuple[Sequence[str], dict[str, str], Sequence[WorkspaceFile]],
    ) -> None:
        """Write the input of fast-import: an unnamed commit, and a request for its tree."""
        gone, kept, left = what
        stream.write(b"commit refs/import\nmark :1\ncommitter <> 0 +0000\ndata 0\n")
        stream.write(f"from {base}\n".encode())
        for path in gone:
            stream.write(b"D %b\n" % _quote_path(path))
        for path, commit in kept.items():
            stream.write(b"M 160000 %b %b\n" % (commit.encode(), _quote_path(path)))
        for each in left:
            stream.write(b"M %o inline %b\n" % (each.mode, _quote_path(each.path)))
            self._write_content(stream, each)
        # `ls` prints the tree; `reset` without a commit drops the temporary ref.
        stream.write(b'\nls :1 ""\nreset refs/import\n\ndone\n')

    def _write_content(self, stream: IO[bytes], each: WorkspaceFile) -> None:
        if each.mode == LINK_MODE:
            target = os.fsencode(os.readlink(self._workspace / each.path))
            stream.write(b"data %d\n%b\n" % (len(target), target))
            return
        with _open_plain(self._workspace / each.path) as file:
            left = os.fstat(file.fileno()).st_size
            stream.write(b"data %d\n" % left)
            while left and (piece := file.read(min(left, MB))):
                left -= stream.write(piece)
            if left:
                shown = format_path(each.path)
                raise JoinFailed(f"{shown} was changed while it was read", reason=REFUSED)
            stream.write(b"\n")


def count_entries(index: Path) -> int:
    """Return the number of paths in an index of git's; 0 where git wrote none."""
    if not index.exists():
        return 0
    with index.open("rb") as file:
        # The header: 4 bytes signature, 4 bytes version, 4 bytes number of entries.
        return int.from_bytes(file.read(12)[8:], "big")


def iter_folders(path: str) -> Iterable[str]:
    """Yield every folder that a path lies in, with a trailing slash; the workspace is ""."""
    yield ""
    for at, character in enumerate(path):
        if character == "/":
            yield path[: at + 1]


def _open_plain(path: Path) -> IO[bytes]:
    """Open a regular file without following a link.

    Raises:
        JoinFailed: it cannot be read, or is not a regular file.
    """
    try:
        file = open(os.open(path, FILE), "rb")  # noqa: SIM115 - the caller closes it
    except OSError as error:
        shown = format_path(path.name)
        raise JoinFailed(f"{shown} cannot be read: {error.strerror}", reason=REFUSED) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise JoinFailed(f"{format_path(path.name)} is not a plain file", reason=REFUSED)
    return file


def _read_plain(path: Path) -> bytes | None:
    """Return the content of an ignore file; None for a link, which git does not follow either."""
    try:
        with _open_plain(path) as file:
            return file.read(IGNORE_BYTES)
    except JoinFailed:
        return None


def _quote_path(path: str) -> bytes:
    data = os.fsencode(path)
    for character, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        data = data.replace(character, escaped)
    return b'"%b"' % data
