"""Backup of a root into one file while its steward works, and restoring it elsewhere.

The database is copied first, by SQLite's backup interface, which gives one consistent moment. The
files are copied afterwards, so they are of that moment or later. Each events.jsonl is cut at the
last event that the copied database has. Sockets, locks, keys, logins of coding agents and the
root's identity are left out: a restored root is a new one, which adopts no process of the original.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import sqlite3
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Any

from retinue.agents.profiles import PROFILES
from retinue.clock import get_timestamp
from retinue.core.errors import BadInput, StorageFailed
from retinue.files import storage_failures
from retinue.settings import IDENTITY
from retinue.store.database import DATABASE, load_queries
from retinue.version import VERSION
from retinue.workspaces.agent_folder import AGENT_HOME
from retinue.workspaces.owned_files import FOLDER, remove_tree

# Copies of a user's own logins, in the home folder of a member (`login: own`).
LOGINS = frozenset(each.target for profile in PROFILES for each in profile.credentials)
# What the content of a file that is no backup, or is damaged, raises.
UNREADABLE = (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError, zlib.error)
MANIFEST = "retinue-backup.json"  # the first member: says what the file is
FORMAT = 1
LOG = "events.jsonl"
BLOCK = 1024 * 1024
# Belong to the running steward or to this root alone.
LEFT_OUT = frozenset(
    {
        DATABASE,
        f"{DATABASE}-wal",
        f"{DATABASE}-shm",
        "steward.lock",
        "steward.sock",
        "steward.log",
        "steward.log.1",
        "gateway.sock",
        "gateway.key",
        "gateway.port",
        "mcp-token",
        "cluster.json",
        "nodes.json",
        "desk",
        IDENTITY,
    }
)
PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Of what a running child removed, locked against its own user, or replaced by something else.
GONE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO)
DEEPEST = 100  # nested folders; deeper ones are left out
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_backup(root: Path, target: Path) -> dict[str, Any]:
    """Write a backup of the root to a new file; return its size and what it holds.

    Runs in a thread beside the steward's work.

    Raises:
        BadInput: the file exists, or is inside the root.
        StorageFailed: something cannot be read or written; no file was made.
    """
    if target.resolve().is_relative_to(root.resolve()):
        raise BadInput(
            f"{target} is inside the root", code="bad_file", hint="name a file outside of it"
        )
    if os.path.lexists(target):
        raise BadInput(f"{target} exists already", code="bad_file", hint="name a new file")
    unfinished = target.with_name(f".{target.name}.unfinished-{os.getpid()}")
    with storage_failures(target):
        descriptor = os.open(unfinished, NEW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                written = _write_archive(root, file)
                file.flush()
                os.fsync(file.fileno())
            # A link, not a rename: it never replaces a file that was made meanwhile.
            os.link(unfinished, target)
        except sqlite3.Error as error:
            raise StorageFailed(f"the database cannot be copied: {error}") from error
        finally:
            os.unlink(unfinished)
        return written | {"path": str(target), "bytes": target.stat().st_size}


def _write_archive(root: Path, file: IO[bytes]) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="retinue-backup-") as aside,
        tarfile.open(fileobj=file, mode="w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as out,
    ):
        copy = Path(aside) / DATABASE
        last_seqs = _copy_database(root / DATABASE, copy)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "created_at": get_timestamp(),
            "tasks": len(last_seqs),
        }
        data = json.dumps(manifest).encode() + b"\n"
        _add_data(out, MANIFEST, io.BytesIO(data), len(data), 0o600)
        with open(copy, "rb") as database:
            _add_data(out, DATABASE, database, copy.stat().st_size, 0o600)
        counted = _Counted()
        top = os.open(root, FOLDER)
        try:
            for name in sorted(os.listdir(top)):
                # Folders with a dot are temporary; .gitignore is made again.
                if name not in LEFT_OUT and not name.startswith("."):
                    _add(out, top, name, name, counted, last_seqs)
        finally:
            os.close(top)
    return {"tasks": len(last_seqs), "files": counted.files, "skipped": counted.skipped}


class _Counted:
    def __init__(self) -> None:
        self.files = 0
        self.skipped = 0


def _copy_database(source: Path, copy: Path) -> dict[str, int]:
    """Copy the database as of one moment; return the last event of each task in it."""
    # A connection of its own: the steward's belongs to another thread.
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(copy)) as frozen:
        live.backup(frozen)
        # The processes belong to the original root.
        frozen.execute(load_queries()["forget_processes"])
        frozen.commit()
        frozen.execute("PRAGMA journal_mode = DELETE")
        rows = frozen.execute("SELECT task_id, last_seq FROM tasks").fetchall()
    return {str(task).lower(): int(last) for task, last in rows}


def _add(
    out: tarfile.TarFile,
    parent: int,
    name: str,
    path: str,
    counted: _Counted,
    last_seqs: dict[str, int],
) -> None:
    """Add whatever has this name in the folder; follow no link, skip what vanishes."""
    parts = path.split("/")
    # A folder of a task that the copied database does not know was made later.
    if len(parts) == 2 and parts[0] == "tasks" and parts[1].lower() not in last_seqs:
        return
    if _is_login(parts):
        return
    # Each level takes a descriptor and a part of the stack, and a child may nest without end.
    if len(parts) > DEEPEST:
        counted.skipped += 1
        return
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            _add_folder(out, parent, name, path, counted, last_seqs, status.st_mode)
        elif stat.S_ISLNK(status.st_mode):
            about = tarfile.TarInfo(path)
            about.type = tarfile.SYMTYPE
            about.linkname = os.readlink(name, dir_fd=parent)
            out.addfile(about)
            counted.files += 1
        elif stat.S_ISREG(status.st_mode):
            with os.fdopen(_open_file(name, parent), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if len(parts) == 3 and parts[0] == "tasks" and name == LOG:
                    size = _find_log_end(file, last_seqs[parts[1].lower()], size)
                    file.seek(0)
                _add_data(out, path, file, size, status.st_mode & 0o777, status.st_mtime)
            counted.files += 1
    except OSError as error:
        if error.errno not in GONE:
            raise
        counted.skipped += 1


def _is_login(parts: list[str]) -> bool:
    """Return whether this is the place of a login: tasks/T/agents/S/agent_home/MEMBER/FILE."""
    is_home = len(parts) > 6 and (parts[0], parts[2], parts[4]) == ("tasks", "agents", AGENT_HOME)
    return is_home and "/".join(parts[6:]) in LOGINS


def _open_file(name: str, parent: int) -> int:
    """Open a regular file.

    Raises:
        OSError: it is gone, or is something else by now.
    """
    descriptor = os.open(name, PLAIN, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ENOENT, "no longer a file", name)
    return descriptor


def _add_folder(
    out: tarfile.TarFile,
    parent: int,
    name: str,
    path: str,
    counted: _Counted,
    last_seqs: dict[str, int],
    mode: int,
) -> None:
    folder = os.open(name, FOLDER, dir_fd=parent)
    try:
        about = tarfile.TarInfo(path)
        about.type = tarfile.DIRTYPE
        about.mode = mode & 0o777 | 0o700
        out.addfile(about)
        for inner in sorted(os.listdir(folder)):
            _add(out, folder, inner, f"{path}/{inner}", counted, last_seqs)
    finally:
        os.close(folder)


def _add_data(
    out: tarfile.TarFile, path: str, file: IO[bytes], size: int, mode: int, modified: float = 0.0
) -> None:
    about = tarfile.TarInfo(path)
    about.size = size
    about.mode = mode
    about.mtime = modified
    out.addfile(about, _Padded(file, size))  # type: ignore[arg-type]


class _Padded:
    """Reader of exactly `size` bytes: a file that shrinks meanwhile is filled with NUL."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, amount: int) -> bytes:
        wanted = min(amount, self._left)
        data = self._file.read(wanted)
        self._left -= wanted
        return data + bytes(wanted - len(data))


def _find_log_end(log: IO[bytes], last: int, size: int) -> int:
    """Return the length of the log up to the event with this number; events are numbered from 1."""
    end = 0
    for number, line in enumerate(log, start=1):
        if number > last or not line.endswith(b"\n") or end + len(line) > size:
            break
        end += len(line)
    return end


def restore_backup(source: Path, root: Path) -> dict[str, Any]:
    """Make a new root from a backup; return what it holds.

    The content is not trusted: paths are checked, no link is followed, and nothing is run.

    Raises:
        BadInput: the file is no backup, is damaged, or the root exists; nothing was made.
        StorageFailed: the disk refused; nothing was made.
    """
    if os.path.lexists(root):
        raise BadInput(
            f"{root} exists already",
            code="bad_root",
            hint="name a folder that does not exist with --root",
        )
    unfinished = root.with_name(f".{root.name}.unfinished-{os.getpid()}")
    missing = [each for each in root.parents if not each.exists()]
    with _open_backup(source) as content:
        try:
            with storage_failures(root):
                root.parent.mkdir(parents=True, exist_ok=True)
                unfinished.mkdir(mode=0o700)
                manifest, files = _read_archive(content, unfinished)
            _require_database(unfinished / DATABASE)
            with storage_failures(root):
                # Fails if the root was made meanwhile and is not empty.
                unfinished.rename(root)
        except UNREADABLE as error:
            _discard(unfinished, missing)
            raise _make_no_backup_error(source, str(error)) from None
        except BaseException as error:
            _discard(unfinished, missing)
            cause = error.__cause__
            # An OSError, though it is about the content.
            if isinstance(error, StorageFailed) and isinstance(cause, gzip.BadGzipFile):
                raise _make_no_backup_error(source, str(cause)) from None
            raise
    return {
        "root": str(root),
        "tasks": manifest["tasks"],
        "files": files,
        "created_at": manifest["created_at"],
        "version": manifest["version"],
    }


def _open_backup(source: Path) -> IO[bytes]:
    try:
        return open(source, "rb")
    except OSError as error:
        raise BadInput(
            f"{source} cannot be read: {error.strerror}",
            code="bad_file",
            hint="name a file that 'retinue backup' wrote",
        ) from None


def _discard(unfinished: Path, made: Sequence[Path]) -> None:
    """Remove what a failed restore made: the new root, and folders above it, innermost first."""
    if unfinished.exists():
        remove_tree(unfinished)
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _make_no_backup_error(source: Path, why: str) -> BadInput:
    return BadInput(
        f"{source} is not a backup of a root: {why}",
        code="bad_file",
        hint="'retinue backup FILE' writes one",
    )


def _read_archive(content: IO[bytes], root: Path) -> tuple[dict[str, Any], int]:
    with (
        gzip.open(content, "rb") as unpacked,
        tarfile.open(fileobj=unpacked, mode="r:") as archive,
    ):
        found = _extract(archive, root)
        # The checksum comes at the very end, after what the archive itself reads.
        for _ in _iter_blocks(unpacked):
            pass
        return found


def _extract(archive: tarfile.TarFile, root: Path) -> tuple[dict[str, Any], int]:
    """Extract all members below the new folder; return the manifest and the number of files."""
    members = iter(archive)
    first = next(members, None)
    if first is None or first.name != MANIFEST or not first.isreg() or first.size > BLOCK:
        raise ValueError(f"its first member is not {MANIFEST}")
    content = archive.extractfile(first)
    manifest = json.loads(content.read()) if content is not None else None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError("its format is unknown; a newer version of retinue may have written it")
    known = {name: manifest.get(name, "") for name in ("tasks", "created_at", "version")}
    folders = {PurePosixPath(".")}
    files = 0
    for member in members:
        place = PurePosixPath(member.name)
        # Parents must be folders that this function made: so no path leads through a link.
        if place.is_absolute() or ".." in place.parts or place.parent not in folders:
            raise ValueError(f"member {member.name[:200]!a} leads outside of it")
        target = root / place
        if member.isdir():
            target.mkdir(mode=member.mode & 0o777 | 0o700)
            folders.add(place)
        elif member.issym():
            target.symlink_to(member.linkname)
        elif member.isreg():
            _extract_file(archive, member, target)
            files += 1
        else:
            raise ValueError(f"member {member.name[:200]!a} is neither file, folder nor link")
    return known, files


def _extract_file(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    content = archive.extractfile(member)
    assert content is not None, "a regular member has content"
    descriptor = os.open(target, NEW, member.mode & 0o777 | 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for block in _iter_blocks(content):
            file.write(block)
    os.utime(target, (member.mtime, member.mtime), follow_symlinks=False)


def _iter_blocks(content: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    while block := content.read(BLOCK):
        yield block


def _require_database(path: Path) -> None:
    if not path.is_file() or path.is_symlink():
        raise ValueError("it has no database")
