"""Taking in what a child changed over a base: only that is looked at, however large the rest is.

The same comes of it as of a whole workspace that git takes in: what is ignored stays out, what
the base has is taken even so, and no content is changed by an attribute. Nothing of the child's
is run or asked, and git sees neither its workspace nor its git folder.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import IO

from retinue.domain.contract import Contract
from retinue.domain.join import REFUSED, JoinFailed
from retinue.workspaces.git import Git, GitFailed, Where, in_memory
from retinue.workspaces.intake import MB, SHOWN, Taken, against, compared, shown_path
from retinue.workspaces.layers import Below
from retinue.workspaces.reader import FILE
from retinue.workspaces.survey import LINK_MODE, Left, Survey, Surveyor
from retinue.workspaces.trusted import TrustedRepository

IGNORE = ".gitignore"
IGNORE_BYTES = 16 * MB


class Import:
    """One workspace, on its way into our repository."""

    def __init__(
        self, git: Git, ours: TrustedRepository, workspace: Path, below: Below, contract: Contract
    ) -> None:
        self._git = git
        self._ours = ours
        self._workspace = workspace
        self._below = below
        self._contract = contract

    async def take_in(self, base: str, submodules: dict[str, str]) -> Taken:
        """The workspace as it is now, against what it started from.

        Raises:
            JoinFailed: something in it is not to be taken.
        """
        if self._workspace.is_symlink() or not self._workspace.is_dir():
            raise JoinFailed("its workspace is gone, or was replaced", reason=REFUSED)
        report = self._contract.report_path
        surveyor = Surveyor(self._workspace, self._below, submodules, report)
        survey = await asyncio.to_thread(surveyor.survey)
        try:
            left = await self._without_ignored(survey)
            await asyncio.to_thread(self._require_sizes, left)
            await self._require_names(left)
            kept = {path: submodules[path] for path in survey.kept}
            tree = await self._import(base, survey.gone, kept, left)
            changed = await compared(self._git, self._ours.where, self._contract, tree)
            found = {each.path for each in survey.left} | set(survey.foreign)
            out = sorted(found - {each.path for each in left})[:SHOWN] if not changed else []
            return Taken(tree=tree, changed=changed, ignored=tuple(map(shown_path, out)))
        except GitFailed as error:
            words = f"its files cannot be taken: {error.message}"
            raise JoinFailed(words, reason=REFUSED) from error
        except OSError as error:
            words = f"its files cannot be taken: {error.strerror} (errno {error.errno})"
            raise JoinFailed(words, reason=REFUSED) from error

    async def _without_ignored(self, survey: Survey) -> list[Left]:
        """What git would take: all that the base has, and the rest as far as nothing ignores it."""
        new = [each.path for each in survey.left if not each.known]
        if not new and not survey.nested:
            return survey.left
        with tempfile.TemporaryDirectory(dir=self._ours.folder) as folder:
            tree = Path(folder)
            within = [path.rpartition("/")[0] or path for path in survey.nested]
            await asyncio.to_thread(self._lay_ignores, tree, survey, [*new, *survey.nested])
            where = Where(git_dir=self._ours.folder, tree=tree, index=tree / ".git" / "index")
            ignored = await self._ignored(where, {*new, *within})
        for path, place in zip(survey.nested, within, strict=True):
            if place not in ignored:
                raise against("it holds a git folder of its own", [path])
        return [each for each in survey.left if each.known or each.path not in ignored]

    def _lay_ignores(self, tree: Path, survey: Survey, paths: Iterable[str]) -> None:
        """The tree holds what says, in the workspace, which of these paths are ignored."""
        for above in sorted({above for path in paths for above in folders_of(path)}):
            folder = survey.folders.get(above)
            if folder is None:  # within a folder that git will not look into
                continue
            path = above + IGNORE
            place: Path | None = self._workspace / path
            if not os.path.lexists(self._workspace / path):
                seen = folder.known and not folder.hides
                place = self._below.find(path) if seen else None
            data = _plain(place) if place is not None else None
            if data is not None:
                (tree / above).mkdir(parents=True, exist_ok=True)
                (tree / path).write_bytes(data)
        for path in survey.nested:  # git asks whether its folder is ignored, as a folder
            (tree / (path.rpartition("/")[0] or path)).mkdir(parents=True, exist_ok=True)

    async def _ignored(self, where: Where, paths: Collection[str]) -> set[str]:
        # With a folder in front: no name that a child gave to a file can mean anything else.
        said = b"".join(b"./%b\0" % os.fsencode(path) for path in sorted(paths))
        words = ("check-ignore", "--no-index", "--stdin", "-z")
        with in_memory() as out:  # as much as was asked for: no output is too long
            await self._git.run(where, *words, stdin=said, stdout=out.fileno(), accept=(0, 1))
            out.seek(0)
            return {os.fsdecode(path[2:]) for path in out.read().split(b"\0") if path}

    def _require_sizes(self, left: Sequence[Left]) -> None:
        """Raises:
        JoinFailed: a file is too large that is not as it was.
        """
        most = self._contract.outputs.max_file_mb
        large = [each for each in left if each.mode != LINK_MODE and each.size > most * MB]
        changed = [each for each in large if not (each.known and self._is_same(each.path))]
        if changed:
            paths = sorted(each.path for each in changed)
            raise against(f"it brings files of more than {most:g} MB", paths)

    def _is_same(self, path: str) -> bool:
        """Whether a file of the base holds what it held, and may be run as it could be."""
        before = self._below.find(path)
        if before is None or not stat.S_ISREG(before.lstat().st_mode):
            return False
        with _opened(self._workspace / path) as now, _opened(before) as then:
            modes = {os.fstat(file.fileno()).st_mode & 0o100 for file in (now, then)}
            if len(modes) > 1:
                return False
            while piece := now.read(MB):
                if piece != then.read(MB):
                    return False
            return not then.read(1)

    async def _require_names(self, left: Sequence[Left]) -> None:
        """Raises:
        JoinFailed: a path is none that git would ever check out.
        """
        if not left:
            return
        blob = b"1" * len(self._contract.outputs.base)
        lines = [b"%o %b\t%b\0" % (each.mode, blob, os.fsencode(each.path)) for each in left]
        with tempfile.TemporaryDirectory(dir=self._ours.folder) as folder:
            where = Where(git_dir=self._ours.folder, index=Path(folder) / "index")
            words = ("update-index", "-z", "--index-info")
            await self._git.run(where, *words, stdin=b"".join(lines))
            # It leaves out what it does not like, and says so to nobody.
            if entries_of(Path(folder) / "index") == len(left):
                return
            known = (await self._git.run(where, "ls-files", "-z")).out.split(b"\0")
        refused = {each.path for each in left} - set(map(os.fsdecode, known))
        raise against("its files cannot be taken, by their paths", sorted(refused))

    async def _import(
        self, base: str, gone: Sequence[str], kept: dict[str, str], left: Sequence[Left]
    ) -> str:
        """The tree that comes of the base."""
        if not gone and not left:
            return (await self._git.run(self._ours.where, "rev-parse", f"{base}^{{tree}}")).text
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
        what: tuple[Sequence[str], dict[str, str], Sequence[Left]],
    ) -> None:
        """What git reads: a commit that no name will have, and which tree it is of."""
        gone, kept, left = what
        stream.write(b"commit refs/import\nmark :1\ncommitter <> 0 +0000\ndata 0\n")
        stream.write(f"from {base}\n".encode())
        for path in gone:
            stream.write(b"D %b\n" % _quoted(path))
        for path, commit in kept.items():
            stream.write(b"M 160000 %b %b\n" % (commit.encode(), _quoted(path)))
        for each in left:
            stream.write(b"M %o inline %b\n" % (each.mode, _quoted(each.path)))
            self._write_content(stream, each)
        stream.write(b'\nls :1 ""\nreset refs/import\n\ndone\n')

    def _write_content(self, stream: IO[bytes], each: Left) -> None:
        if each.mode == LINK_MODE:
            target = os.fsencode(os.readlink(self._workspace / each.path))
            stream.write(b"data %d\n%b\n" % (len(target), target))
            return
        with _opened(self._workspace / each.path) as file:
            left = os.fstat(file.fileno()).st_size
            stream.write(b"data %d\n" % left)
            while left and (piece := file.read(min(left, MB))):
                left -= stream.write(piece)
            if left:
                shown = shown_path(each.path)
                raise JoinFailed(f"{shown} was changed while it was read", reason=REFUSED)
            stream.write(b"\n")


def entries_of(index: Path) -> int:
    """How many paths an index of git's has; none where git had none to write."""
    if not index.exists():
        return 0
    with index.open("rb") as file:
        return int.from_bytes(file.read(12)[8:], "big")


def folders_of(path: str) -> Iterable[str]:
    """Every folder that a path lies in, the workspace first."""
    yield ""
    for at, character in enumerate(path):
        if character == "/":
            yield path[: at + 1]


def _opened(path: Path) -> IO[bytes]:
    """Raises:
    JoinFailed: it cannot be read, or is no plain file.
    """
    try:
        file = open(os.open(path, FILE), "rb")  # noqa: SIM115 - closed by whoever reads
    except OSError as error:
        shown = shown_path(path.name)
        raise JoinFailed(f"{shown} cannot be read: {error.strerror}", reason=REFUSED) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise JoinFailed(f"{shown_path(path.name)} is no plain file", reason=REFUSED)
    return file


def _plain(path: Path) -> bytes | None:
    """What a file holds that says what is ignored; git reads no link for that."""
    try:
        with _opened(path) as file:
            return file.read(IGNORE_BYTES)
    except JoinFailed:
        return None


def _quoted(path: str) -> bytes:
    data = os.fsencode(path)
    for character, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        data = data.replace(character, escaped)
    return b'"%b"' % data
