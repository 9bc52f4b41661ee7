"""Files that git ignores in a workspace on a node: the smallest are sent, up to a limit.

git sees neither the workspace nor its git folder. The ignore files are copied into a folder of
the node's own, and git, with the node's own repository, is asked about paths alone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from pathlib import Path

from retinue.files import is_opaque, is_whiteout
from retinue.workspaces.child_files import TreeWalk, UnreadableFile, read_child_file
from retinue.workspaces.git.git_command import Git, GitTarget, open_memory_file
from retinue.workspaces.git.task_repository import GIT, TrustedRepository

MOST_IGNORED = 64 * 1024 * 1024
IGNORE = ".gitignore"
IGNORE_BYTES = 16 * 1024 * 1024


async def list_ignored_beyond(
    git: Git, ours: TrustedRepository, commit: str, workspace: Path, *, layered: bool
) -> list[str]:
    """Return the ignored files of a workspace that are too much to send, the largest first.

    The smallest ones are sent, up to the limit. Files of the base are never ignored.

    Args:
        layered: the workspace holds only its changes over the base.

    Raises:
        GitFailed, OSError: git could not be asked.
    """
    with tempfile.TemporaryDirectory(dir=ours.folder) as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        where = GitTarget(git_dir=ours.folder, tree=tree, index=Path(folder) / "index")
        await git.run(where, "read-tree", commit)
        known = await _ask(git, where, b"", "ls-files", "-z")
        if layered:
            applied = [path for path in known if path.rpartition(b"/")[2] == IGNORE.encode()]
            said = b"".join(b"%b\0" % path for path in applied)
            await git.run(where, "checkout-index", "-q", "--stdin", "-z", stdin=said)
        sizes = await asyncio.to_thread(_scan, workspace, tree)
        new = sorted(set(map(os.fsencode, sizes)) - known)
        # The prefix keeps git from reading a leading ':' or '-' of a name as syntax.
        said = b"".join(b"./%b\0" % path for path in new)
        found = await _ask(git, where, said, "check-ignore", "--no-index", "--stdin", "-z")
    ignored = sorted((sizes[path], path) for path in (os.fsdecode(each[2:]) for each in found))
    sent = 0
    beyond: list[str] = []
    for size, path in ignored:
        sent += size
        if sent > MOST_IGNORED:
            beyond.append(path)
    return beyond[::-1]


async def _ask(git: Git, where: GitTarget, said: bytes, *words: str) -> set[bytes]:
    """Return the paths that git prints, however many there are."""
    with open_memory_file() as out:
        await git.run(where, *words, stdin=said, stdout=out.fileno(), accept=(0, 1))
        out.seek(0)
        return {path for path in out.read().split(b"\0") if path}


def _scan(workspace: Path, tree: Path) -> dict[str, int]:
    """Return the size of each plain file, and make the ignore files in `tree` those that apply.

    Git folders are left out: they are sent.
    """
    sizes: dict[str, int] = {}
    for folder in TreeWalk(workspace, unlocking=True):
        folder.enter[:] = [name for name in folder.enter if name.lower() != GIT]
        for entry in folder.entries:
            path = folder.path + entry.name
            status = entry.stat(follow_symlinks=False)
            # An opaque folder was made anew, and what replaces a folder of the base removes it.
            if not stat.S_ISDIR(status.st_mode) or is_opaque(folder.locate(entry.name)):
                _remove(tree / path)
            if stat.S_ISREG(status.st_mode) and not is_whiteout(status):
                sizes[path] = status.st_size
                if entry.name == IGNORE:
                    _copy(workspace, path, tree)
    return sizes


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _copy(workspace: Path, path: str, tree: Path) -> None:
    try:
        data = read_child_file(workspace, path, IGNORE_BYTES, cut=True).data
    except UnreadableFile:
        return
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_bytes(data)
