"""Copy of a child's files to a destination; follows no link and overwrites nothing."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retinue.core.contract import Contract
from retinue.core.errors import RetinueError
from retinue.core.join_result import POLICY, REFUSED, JoinFailed, JoinOutcome
from retinue.core.voting import OURS
from retinue.files import read_plain, storage_failures
from retinue.workspaces.child_files import FILE, TreeWalk, open_child_folder
from retinue.workspaces.git.merge_rules import (
    BARE,
    MB,
    format_path,
    is_bare_layout,
    is_git_name,
    make_nested_error,
    make_policy_error,
    raise_unreadable,
    require_owned,
)
from retinue.workspaces.git.task_repository import GIT
from retinue.workspaces.owned_files import put, remove_tree
from retinue.workspaces.secret_values import find_first_secret, refuse_secrets

MAX_FILES = 100_000
MAX_DEPTH = 500  # nested folders


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    path: str
    mode: int


def copy_out(workspace: Path, destination: Path, note: Path, contract: Contract) -> JoinOutcome:
    """Copy the files of the workspace to the destination, completely or not at all.

    Raises:
        JoinFailed: a file may not be copied, or the destination exists.
        StorageFailed: the disk refused.
    """
    # A join that was interrupted after the rename is not repeated.
    if _was_copied(destination, note):
        return JoinOutcome(reason="copied", details={"destination": str(destination)})
    if os.path.lexists(destination):
        raise JoinFailed(f"{str(destination)!a} exists already", reason=REFUSED)
    if workspace.is_symlink() or not workspace.is_dir():
        raise JoinFailed("its workspace is gone, or was replaced", reason=REFUSED)
    most = contract.outputs.max_file_mb
    with storage_failures(workspace):
        found = [each for each in _find_files(workspace, most) if each.path != contract.report_path]
    require_owned([each.path for each in found], contract)
    making = destination.with_name(f".{destination.name}.new")
    if os.path.lexists(making):
        remove_tree(making)
    with storage_failures(making):
        _make_folders(making)
        try:
            total = sum(_copy(workspace, making, each, most) for each in found)
            if "secrets" not in contract.outputs.allow:
                _require_no_secrets(making, found)
            # Note the inode before the rename: a later attempt recognizes its own copy by it.
            about = {"destination": str(destination), "inode": _read_inode(making)}
            put(note, json.dumps(about).encode())
            making.rename(destination)
        except (RetinueError, OSError):
            remove_tree(making)
            raise
    details = {"destination": str(destination), "files": len(found), "bytes": total}
    return JoinOutcome(reason="copied", details=details)


def _require_no_secrets(making: Path, found: list[FoundFile]) -> None:
    read = ((each.path, find_first_secret((making / each.path).read_bytes())) for each in found)
    refuse_secrets([(path, what) for path, what in read if what])


def _was_copied(destination: Path, note: Path) -> bool:
    try:
        known = json.loads(read_plain(note))
        return bool(known["inode"] == _read_inode(destination))
    except (OSError, ValueError, KeyError):
        return False


def _read_inode(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_dev, status.st_ino]


def _find_files(workspace: Path, most: float) -> Iterator[FoundFile]:
    """Yield every plain file.

    Raises:
        JoinFailed: something is neither a plain file nor a folder, or a limit is exceeded.
    """
    count = 0
    for folder in TreeWalk(workspace, on_error=raise_unreadable):
        above = folder.path.removesuffix("/") or "."
        if folder.path.count("/") > MAX_DEPTH:
            raise JoinFailed(f"its folders are nested more than {MAX_DEPTH} deep", reason=REFUSED)
        entries = folder.entries
        if not folder.path:
            # The workspace's own git folder, or a file that points to one, is not copied.
            entries = [each for each in entries if not _is_own(each)]
            folder.enter[:] = [name for name in folder.enter if name not in (GIT, OURS)]
        _require_no_repository(above, [each.name for each in entries])
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                continue
            path = folder.path + entry.name
            _require_plain(status, path, most)
            count += 1
            if count > MAX_FILES:
                raise JoinFailed(f"it holds more than {MAX_FILES} files", reason=POLICY)
            yield FoundFile(path=path, mode=status.st_mode)


def _is_own(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of the workspace's top is Retinue's or git's."""
    return entry.name == GIT or (entry.name == OURS and entry.is_dir(follow_symlinks=False))


def _require_no_repository(folder: str, names: list[str]) -> None:
    """Require that git takes neither the folder nor an entry of it for a repository.

    Raises:
        JoinFailed: it would, once the files are copied.
    """
    if found := sorted(filter(is_git_name, names)):
        raise make_nested_error(os.path.normpath(f"{folder}/{found[0]}"))
    if is_bare_layout(names):
        raise make_policy_error(BARE, [folder])


def _require_plain(status: os.stat_result, path: str, most: float) -> None:
    # A second name could be that of a file outside the workspace.
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    if not plain or status.st_size > most * MB:
        why = f"a file of more than {most:g} MB" if plain else "not a plain file"
        shown = format_path(path)
        raise JoinFailed(f"{shown} is {why}", reason=POLICY, files=(shown,))


def _make_folders(folder: Path) -> None:
    """Create a folder and its parents, readable by all: they belong to the project."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:  # another copy made it in the meantime
        if not folder.is_dir():
            raise
        return
    folder.chmod(0o755)


def _copy(source: Path, target: Path, found: FoundFile, most: float) -> int:
    *folders, name = found.path.split("/")
    _make_folders(target / "/".join(folders))
    # Opened again from the top: the child may replace folders by links while files are copied.
    with (
        open_child_folder(source, folders) as here,
        open(os.open(name, FILE, dir_fd=here), "rb") as file,
    ):
        # Check again: the file may have been replaced since it was listed.
        _require_plain(os.fstat(file.fileno()), found.path, most)
        executable = 0o755 if found.mode & 0o100 else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        copied = 0
        with open(os.open(target / found.path, flags, executable), "wb") as copy:
            os.fchmod(copy.fileno(), executable)
            while piece := file.read(1 << 20):
                copied += copy.write(piece)
        return copied
