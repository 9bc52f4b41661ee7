"""Trusted roots: the `.retinue` folders that this user made here, or chose to trust.

A `.retinue` folder can come with a checkout, an archive or a backup. Its database and
configuration decide which commands run and where keys are sent. So a root is used only if it is
on this user's own list, which is in the user's state folder, outside of every project. An entry
holds the root's path, the identity of its folder and a random mark that is also in the root. A
git clone lacks the mark, and a copy is in another folder than the one in the list.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retinue.core.default_models import is_key_variable
from retinue.core.errors import AGENT, Refused, StorageFailed
from retinue.files import NotPlainFile, open_plain, read_plain, write_atomic
from retinue.settings import IDENTITY, require_usable

CONFIG = "config.yaml"
LIST = "trusted"
VARIABLE = "RETINUE_TRUST"
NOT_TRUSTED = "root_not_trusted"
# Files that Retinue puts into a root before its first task. They decide nothing, so a folder with
# nothing else counts as new.
HARMLESS = frozenset({"steward.log", "steward.log.1", ".gitignore", "tasks"})
MOST_BYTES = 8 * 1024 * 1024
MOST_ENTRIES = 500  # beyond this, entries of removed roots are dropped
STATX_BTIME = 0x800
AT_FDCWD = -100


@dataclass(frozen=True, kw_only=True)
class FolderId:
    """Identity of a folder, independent of its path.

    The creation time distinguishes it from a later folder with the same inode number.
    """

    device: int
    inode: int
    born_ns: int = 0  # creation time; 0 if the file system has none

    def is_same(self, other: FolderId, *, same_path: bool = False) -> bool:
        """Return whether both are one folder.

        Args:
            same_path: ignore the device number, which some file systems change at each mount.
        """
        known = bool(self.born_ns and other.born_ns)
        return (
            self.inode == other.inode
            and (self.device == other.device or same_path)
            and (not known or self.born_ns == other.born_ns)
        )


@dataclass(frozen=True, kw_only=True)
class RootIdentity:
    """Identity that a root stores: its mark, and the folder that it was made in."""

    mark: str
    folder: FolderId


@dataclass(frozen=True, kw_only=True)
class TrustEntry:
    """One root in the user's list."""

    path: str
    mark: str
    folder: FolderId
    project: FolderId | None = None  # the folder that holds it
    variables: tuple[str, ...] | None = None  # its configuration may name these; None: any

    def is_about(self, path: str, folder: FolderId) -> bool:
        """Return whether the entry is about that path, or about that folder at any path."""
        return self.path == path or (bool(folder.inode) and self.folder.is_same(folder))


def make_untrusted_error(root: Path) -> Refused:
    return Refused(
        f"{root} was not made here by this user: nothing in it is run, and its config.yaml is "
        "not read",
        code=NOT_TRUSTED,
        hint=f"'retinue trust {root}' shows what it would run, and lets it; in a container or in "
        f"CI, set {VARIABLE} to its path",
        hints={AGENT: f"ask the user, who decides, to run 'retinue trust {root}' in a terminal"},
    )


def is_trusted(root: Path, environment: Mapping[str, str]) -> bool:
    """Return whether this user made the root where it is, or chose to trust it there."""
    return is_named(root, environment) or _find_entry(root, environment) is not None


def is_named(root: Path, environment: Mapping[str, str]) -> bool:
    """Return whether RETINUE_TRUST names the root, or a folder that it lies in."""
    place = Path(os.path.realpath(root))
    named = filter(None, environment.get(VARIABLE, "").split(os.pathsep))
    folders = {Path(os.path.realpath(each)) for each in named if os.path.isabs(each)}
    return not folders.isdisjoint((place, *place.parents))


def is_unused(root: Path) -> bool:
    """Return whether the folder does not exist, or holds nothing that decides anything."""
    try:
        names = set(os.listdir(root))
        return names <= HARMLESS and not ("tasks" in names and os.listdir(root / "tasks"))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def can_be_used(root: Path, environment: Mapping[str, str]) -> bool:
    """Return whether the root may be used; one that is not made yet always may."""
    # Checked twice: another process of this user may make the root between the first two checks.
    return is_trusted(root, environment) or is_unused(root) or is_trusted(root, environment)


def make_root(root: Path, environment: Mapping[str, str]) -> None:
    """Make the root's folder and add it to the user's list; an existing root is only checked.

    Raises:
        BadInput: the path is not a root, or belongs to another user.
        Refused: the root is not trusted; nothing was changed.
        StorageFailed: the root or the list cannot be written; nothing was made.
    """
    require_usable(root)
    if not can_be_used(root, environment):
        raise make_untrusted_error(root)
    is_new = not root.exists()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if read_identity(root) is None:
        try:
            mark_root(root, environment)
        except StorageFailed:
            if is_new:
                with suppress(OSError):
                    root.rmdir()
            raise


def trust_root(root: Path, environment: Mapping[str, str], variables: Iterable[str]) -> None:
    """Add a root to the list as it is.

    A copy keeps its mark until it is opened, so that it can be recognized as a copy.

    Raises:
        StorageFailed: the list or the root cannot be written.
    """
    if read_identity(root) is None:
        mark_root(root, environment, variables)
        return
    known = _find_entry(root, environment)
    # A root that may name any variable is not restricted by trusting it again.
    own = known is not None and known.variables is None
    _put_entry(root, environment, None if own else variables)


def mark_root(
    root: Path, environment: Mapping[str, str], variables: Iterable[str] | None = None
) -> None:
    """Give the root a new mark and add it to the list.

    Args:
        variables: its configuration may name these; None: those approved before, or any.

    Raises:
        StorageFailed: the list or the root cannot be written.
    """
    # The list is written before the mark: a failure in between leaves the root untrusted.
    identity = RootIdentity(mark=os.urandom(16).hex(), folder=read_folder_id(root))
    if not is_named(root, environment):
        known = _find_entry(root, environment)
        kept = known.variables if known and variables is None else variables
        _put_entry(root, environment, kept, identity)
    document = {"mark": identity.mark, **asdict(identity.folder)}
    write_atomic(root / IDENTITY, json.dumps(document).encode() + b"\n")


def is_copy(root: Path) -> bool:
    """Return whether the root's files were copied here from another folder."""
    identity = read_identity(root)
    return identity is not None and not identity.folder.is_same(read_folder_id(root))


def read_approved_variables(root: Path, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the variables that were shown when a foreign root was trusted.

    None if its configuration may name any: the user made the root, or RETINUE_TRUST names it.
    """
    if is_named(root, environment):
        return None
    entry = _find_entry(root, environment)
    return entry.variables if entry else ()


def find_config_file(root: Path, environment: Mapping[str, str]) -> Path | None:
    """Return the root's own configuration; None if it has none, or is not trusted."""
    path = root / CONFIG
    return path if path.is_file() and is_trusted(root, environment) else None


def require_approved(names: Iterable[str], root: Path, environment: Mapping[str, str]) -> None:
    """Check the environment variables that the configuration of a foreign root names.

    Allowed are keys of model providers, and variables that were shown when the root was trusted.
    Otherwise a later pull could change the file to send any secret to any address.

    Raises:
        Refused: the configuration names another variable; nothing was done.
    """
    approved = read_approved_variables(root, environment)
    unknown = [
        name
        for name in sorted(names)
        if approved is not None and not is_key_variable(name) and name not in approved
    ]
    if unknown:
        raise Refused(
            f"{root / CONFIG} names the variable {unknown[0]}, which is not a model provider's key",
            code="variable_not_trusted",
            hint=f"'retinue trust {root}' shows what the file names, and approves it",
            hints={AGENT: f"ask the user, who decides, to run 'retinue trust {root}'"},
        )


def distrust_root(root: Path, environment: Mapping[str, str]) -> bool:
    """Remove the root from the list; return whether it was in it.

    Raises:
        StorageFailed: the list cannot be written.
    """
    path = os.path.realpath(root)
    place = read_folder_id(root)
    with _change_list(environment) as entries:
        left = [each for each in entries if not each.is_about(path, place)]
        found = len(left) < len(entries)
        entries[:] = left
    return found


def read_identity(root: Path) -> RootIdentity | None:
    """Return the identity that the root stores; None if it has none that can be read."""
    try:
        return _parse_identity(json.loads(read_plain(root / IDENTITY, 4096)))
    except (OSError, ValueError, RecursionError):  # the file may be hostile
        return None


def read_folder_id(folder: Path) -> FolderId:
    """Raises:
    OSError: the folder cannot be read.
    """
    found = os.stat(folder)
    return FolderId(device=found.st_dev, inode=found.st_ino, born_ns=read_birth_time_ns(folder))


def read_birth_time_ns(path: Path) -> int:
    """Return when a file was created, or 0 if that is unknown (statx, Linux 4.11)."""
    import ctypes

    statx = getattr(ctypes.CDLL(None), "statx", None)
    answer = ctypes.create_string_buffer(256)
    if statx is None or statx(AT_FDCWD, os.fsencode(path), 0, STATX_BTIME, answer) != 0:
        return 0
    mask, seconds, nanoseconds = struct.unpack_from("=I76xqI", answer.raw)
    return int(seconds * 1_000_000_000 + nanoseconds) if mask & STATX_BTIME else 0


def find_state_folder(environment: Mapping[str, str]) -> Path:
    """Return Retinue's folder in this user's state folder, never in another user's home.

    Raises:
        StorageFailed: this user has no home folder.
    """
    state = environment.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state) / "retinue"
    home = environment.get("HOME", "")
    # sudo may leave HOME set to that of the calling user.
    if not os.path.isabs(home) or not _is_own(home):
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            raise StorageFailed(
                f"user {os.geteuid()} has no home folder to keep the list of trusted roots in",
                code="no_state_folder",
                hint=f"set XDG_STATE_HOME to a folder of yours, or {VARIABLE} to the root's path",
            ) from None
    return Path(home) / ".local" / "state" / "retinue"


def _find_entry(root: Path, environment: Mapping[str, str]) -> TrustEntry | None:
    identity = read_identity(root)
    if identity is None:
        return _find_earlier_entry(root, environment)
    path = os.path.realpath(root)
    place = read_folder_id(root)
    for entry in _list_entries(environment):
        same = entry.folder.is_same(place, same_path=entry.path == path)
        if same and entry.mark == identity.mark:
            return entry
    return None


def _find_earlier_entry(root: Path, environment: Mapping[str, str]) -> TrustEntry | None:
    """Return the entry for a root that holds only a configuration.

    The entry says that Retinue was used in this project while it had no root. So the
    configuration was written since then, and did not come with the project.
    """
    try:
        names = set(os.listdir(root))
        if CONFIG not in names or not names <= HARMLESS | {CONFIG} or "tasks" in names:
            return None
        path = os.path.realpath(root)
        project = read_folder_id(root.resolve().parent)
    except OSError:
        return None
    for entry in _list_entries(environment):
        if entry.path == path and entry.project and entry.project.is_same(project):
            return entry
    return None


def note_use(root: Path, environment: Mapping[str, str]) -> None:
    """Note in the list that this user uses Retinue in a project that has no root yet.

    A configuration that is written there later is then known as the user's own. If the note
    fails, it has to be trusted like any other.
    """
    if not os.path.lexists(root) and root.parent.is_dir():
        with suppress(StorageFailed, OSError):
            nothing = RootIdentity(mark="", folder=FolderId(device=0, inode=0))
            _put_entry(root, environment, None, nothing)


def _put_entry(
    root: Path,
    environment: Mapping[str, str],
    variables: Iterable[str] | None,
    identity: RootIdentity | None = None,
) -> None:
    identity = identity or read_identity(root)
    assert identity is not None
    path = os.path.realpath(root)
    place = read_folder_id(root) if identity.mark else identity.folder
    entry = TrustEntry(
        path=path,
        mark=identity.mark,
        folder=place,
        project=read_folder_id(Path(path).parent),
        variables=None if variables is None else tuple(sorted(set(variables))),
    )
    with _change_list(environment) as entries:
        # One entry for each root: the new one replaces those of the same path or folder.
        others = [each for each in entries if not each.is_about(path, place)]
        if len(others) >= MOST_ENTRIES:
            others = [each for each in others if os.path.isdir(each.path)]
        entries[:] = [*others, entry]


def _list_entries(environment: Mapping[str, str]) -> list[TrustEntry]:
    """Return the entries of the list; none if another user could have written it."""
    try:
        return _read_entries(find_state_folder(environment) / LIST)
    except (OSError, StorageFailed):
        return []


def _read_entries(path: Path) -> list[TrustEntry]:
    with open(open_plain(path), "rb") as file:
        found = os.fstat(file.fileno())
        # Checked on the open file, which cannot be exchanged any more.
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NotPlainFile(path)
        lines = file.read(MOST_BYTES).splitlines()
    entries = []
    for line in lines:
        with suppress(ValueError):  # for example a line of another version
            entries.append(_parse_entry(json.loads(line)))
    return entries


@contextmanager
def _change_list(environment: Mapping[str, str]) -> Iterator[list[TrustEntry]]:
    """Yield the list for changes, and write it when the block ends.

    Raises:
        StorageFailed: the list cannot be read or written.
    """
    folder = find_state_folder(environment)
    path = folder / LIST
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(folder):
            raise PermissionError(1, "belongs to another user", str(folder))
        # A lock file of its own, because `write_atomic` replaces the list's file.
        lock = open_plain(folder / f"{LIST}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                entries = _read_entries(path)
            except FileNotFoundError:
                entries = []
            yield entries
            lines = [json.dumps(_to_document(each)) + "\n" for each in entries]
            write_atomic(path, "".join(lines).encode())
        finally:
            os.close(lock)
    except (OSError, StorageFailed) as error:
        why = error.message if isinstance(error, StorageFailed) else error.strerror
        raise StorageFailed(
            f"the list of trusted roots, {path}, cannot be written: {why}",
            code="no_state_folder",
            hint=f"set XDG_STATE_HOME to a folder that you may write to, or {VARIABLE} to the "
            "root's path",
        ) from error


def _is_own(folder: str | Path) -> bool:
    try:
        return os.stat(folder).st_uid == os.geteuid()
    except OSError:
        return False


def _to_document(entry: TrustEntry) -> dict[str, Any]:
    document: dict[str, Any] = {"path": entry.path, "mark": entry.mark, **asdict(entry.folder)}
    document |= {"project": asdict(entry.project)} if entry.project else {}
    return document | ({} if entry.variables is None else {"variables": list(entry.variables)})


def _parse_entry(document: Any) -> TrustEntry:
    folder = _parse_folder_id(document)
    mark = document.get("mark")
    variables = document.get("variables")
    project = document.get("project")
    if (
        not isinstance(mark, str)
        or not isinstance(document.get("path"), str)
        or not isinstance(variables, list | None)
    ):
        raise ValueError("no entry")
    return TrustEntry(
        path=document["path"],
        mark=mark,
        folder=folder,
        project=None if project is None else _parse_folder_id(project),
        variables=None if variables is None else tuple(map(str, variables)),
    )


def _parse_identity(document: Any) -> RootIdentity:
    """Raises:
    ValueError: the document is not an identity.
    """
    folder = _parse_folder_id(document)
    if not isinstance(document.get("mark"), str) or not document["mark"]:
        raise ValueError("no mark")
    return RootIdentity(mark=document["mark"], folder=folder)


def _parse_folder_id(document: Any) -> FolderId:
    """Raises:
    ValueError: the document names no folder.
    """
    numbers = ("device", "inode", "born_ns")
    named = isinstance(document, dict) and all(type(document.get(name)) is int for name in numbers)
    if not named:
        raise ValueError("no folder")
    return FolderId(**{name: document[name] for name in numbers})
