"""Copying a child's files out of its reach: no link is followed, nothing is overwritten."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retinue.domain.contract import Contract
from retinue.domain.errors import RetinueError
from retinue.domain.join import POLICY, REFUSED, JoinFailed, JoinOutcome
from retinue.files import read_plain, storage_failures
from retinue.workspaces.intake import MB, OURS, require_owned, shown_path
from retinue.workspaces.own import put
from retinue.workspaces.reader import FILE
from retinue.workspaces.removal import FOLDER, remove_tree
from retinue.workspaces.secrets import first_secret, refuse_secrets

MAX_FILES = 100_000
MAX_DEPTH = 500  # folders within each other


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    path: str
    mode: int


def copy_out(workspace: Path, destination: Path, note: Path, contract: Contract) -> JoinOutcome:
    """The destination holds the files of the workspace, whole, or does not exist.

    Raises:
        JoinFailed: something in the workspace may not be copied, or something is in the way.
        StorageFailed: the disk said no.
    """
    if _done_before(destination, note):
        return JoinOutcome(reason="copied", details={"destination": str(destination)})
    if os.path.lexists(destination):
        raise JoinFailed(f"{str(destination)!a} exists already", reason=REFUSED)
    if workspace.is_symlink() or not workspace.is_dir():
        raise JoinFailed("its workspace is gone, or was replaced", reason=REFUSED)
    most = contract.outputs.max_file_mb
    with storage_failures(workspace):
        found = [each for each in _files(workspace, most) if each.path != contract.report_path]
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
            # Known before it is in its place: so an interrupted copy is told from a stranger's.
            about = {"destination": str(destination), "inode": _inode(making)}
            put(note, json.dumps(about).encode())
            making.rename(destination)
        except (RetinueError, OSError):
            remove_tree(making)
            raise
    details = {"destination": str(destination), "files": len(found), "bytes": total}
    return JoinOutcome(reason="copied", details=details)


def _require_no_secrets(making: Path, found: list[FoundFile]) -> None:
    read = ((each.path, first_secret((making / each.path).read_bytes())) for each in found)
    refuse_secrets([(path, what) for path, what in read if what])


def _done_before(destination: Path, note: Path) -> bool:
    try:
        known = json.loads(read_plain(note))
        return bool(known["inode"] == _inode(destination))
    except (OSError, ValueError, KeyError):
        return False


def _inode(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_dev, status.st_ino]


def _files(workspace: Path, most: float) -> Iterator[FoundFile]:
    """Every plain file. Raises: JoinFailed for whatever is neither that nor a folder."""
    count = 0
    for folder, folders, files, here in os.fwalk(workspace, follow_symlinks=False, onerror=_unread):
        above = os.path.relpath(folder, workspace)
        if above.count("/") >= MAX_DEPTH:
            raise JoinFailed(f"it goes deeper than {MAX_DEPTH} folders", reason=REFUSED)
        if above == ".":
            folders[:] = [name for name in folders if name not in (".git", OURS)]
        for name in sorted([*files, *folders]):
            path = name if above == "." else f"{above}/{name}"
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                continue
            _require_plain(status, path, most)
            count += 1
            if count > MAX_FILES:
                raise JoinFailed(f"it holds more than {MAX_FILES} files", reason=POLICY)
            yield FoundFile(path=path, mode=status.st_mode)


def _unread(error: OSError) -> None:
    raise JoinFailed(f"{error.filename!a} cannot be read: {error.strerror}", reason=REFUSED)


def _require_plain(status: os.stat_result, path: str, most: float) -> None:
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    if not plain or status.st_size > most * MB:
        why = f"a file of more than {most:g} MB" if plain else "no plain file"
        shown = shown_path(path)
        raise JoinFailed(f"{shown} is {why}", reason=POLICY, files=(shown,))


def _make_folders(folder: Path) -> None:
    """It exists, with all above it; what is new is the project's, not only our own to read."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:  # another copy made it meanwhile
        if not folder.is_dir():
            raise
        return
    folder.chmod(0o755)


def _copy(source: Path, target: Path, found: FoundFile, most: float) -> int:
    *folders, name = found.path.split("/")
    _make_folders(target / "/".join(folders))
    here = os.open(source, FOLDER)
    try:
        for folder in folders:
            above, here = here, os.open(folder, FOLDER, dir_fd=here)
            os.close(above)
        with open(os.open(name, FILE, dir_fd=here), "rb") as file:
            _require_plain(os.fstat(file.fileno()), found.path, most)
            executable = 0o755 if found.mode & 0o100 else 0o644
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            copied = 0
            with open(os.open(target / found.path, flags, executable), "wb") as copy:
                os.fchmod(copy.fileno(), executable)
                while piece := file.read(1 << 20):
                    copied += copy.write(piece)
            return copied
    finally:
        os.close(here)
