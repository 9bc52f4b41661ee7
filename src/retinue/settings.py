"""Location and settings of a root, from its files and the environment."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retinue.core.errors import PYTHON, BadInput

FOLDER = ".retinue"
HUB_CREDENTIALS = "cluster.json"  # of a root whose steward uses the nodes of a hub
MARKS_OF_USE = frozenset({"retinue.db", "steward.lock"})  # only a used root has these
IDENTITY = "identity.json"  # shows that this user made the root
# Files of a root before its first task; tasks is empty then.
FILES_BEFORE_USE = frozenset(
    {"config.yaml", ".gitignore", IDENTITY, "mcp-token", "steward.log", "tasks"}
)
# What a steward makes in a root before its first task, in the order of its removal. The marks of
# use go last: a folder that has the other files and no mark is taken for one of another purpose.
REMOVED_IF_UNUSED = (
    "steward.sock",
    "gateway.sock",
    "gateway.key",
    "gateway.port",
    "desk/steward.sock",
    "desk",
    "steward.log",
    "retinue.db-wal",
    "retinue.db-shm",
    "retinue.db",
    "steward.lock",
)
IGNORE = b"*\n"  # content of a root's .gitignore: git ignores the whole root
WRITABLE_BY_OTHERS = 0o022  # mode bits that let other users write
MAX_PATH_BYTES = 493  # bytes of a root's path: SQLite allows 512, with the suffixes that it adds
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME", "SHELL")


@dataclass(frozen=True, kw_only=True)
class Settings:
    root: Path  # without links, which a child might not see
    project: Path  # the folder that holds the root, or a link to it; a parent works there
    child_environment: Mapping[str, str]  # only variables from PASSED_ON, so no secret of ours
    failpoint: str = ""
    idle_seconds: float = 60.0
    root_is_new: bool = False  # did not exist before; removed again if it stays unused


def find_root(given: str | None, cwd: Path, environment: Mapping[str, str]) -> Path:
    """Return the path of the root to use.

    In this order: the one that is named; for a subagent, that of its steward; the nearest one of
    this user in `cwd` or above; a new one in `cwd`.

    Raises:
        BadInput: RETINUE_STEWARD is not the path of a steward's socket.
    """
    named = given or environment.get("RETINUE_ROOT")
    if named:
        return Path(os.path.normpath(cwd / named))
    if socket := environment.get("RETINUE_STEWARD"):
        desk = Path(socket).parent
        if desk.parent == desk:
            raise BadInput(
                f"RETINUE_STEWARD {socket!a} is not the socket of a steward",
                code="bad_root",
                hint="only a subagent is given one: unset it, or name a root with --root",
            )
        return desk.parent
    for folder in (cwd, *cwd.parents):
        if _is_own(folder / FOLDER):
            return folder / FOLDER
    return cwd / FOLDER


def _is_own(root: Path) -> bool:
    """Return whether this user owns the folder; in a shared folder above, others can make one."""
    try:
        found = (root.lstat(), root.stat())  # both: a link of another user could lead anywhere
    except OSError:
        return False
    return all(each.st_uid == os.geteuid() for each in found) and stat.S_ISDIR(found[1].st_mode)


def read_settings(root: Path, environment: Mapping[str, str]) -> Settings:
    """Raises:
    BadInput: a variable has an invalid value.
    """
    passed = {name: environment[name] for name in PASSED_ON if name in environment}
    passed.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    idle = environment.get("RETINUE_IDLE_SECONDS", "60")
    idle_seconds = 0.0
    with suppress(ValueError):
        idle_seconds = float(idle)
    if not idle_seconds > 0:
        raise BadInput(f"RETINUE_IDLE_SECONDS {idle!a} is not a number above 0")
    return Settings(
        root=Path(os.path.realpath(root)),
        project=Path(os.path.realpath(root.parent)),
        child_environment=passed,
        failpoint=environment.get("RETINUE_FAILPOINT", ""),
        idle_seconds=idle_seconds,
        root_is_new=not root.exists(),
    )


def was_used(root: Path) -> bool:
    """Return whether this root has been used before.

    Raises:
        OSError: the root cannot be read.
    """
    if not MARKS_OF_USE.isdisjoint(os.listdir(root)):
        return True
    tasks = root / "tasks"
    return tasks.is_dir() and any((task / "task.yaml").exists() for task in tasks.iterdir())


def has_tasks(root: Path) -> bool:
    """Return whether the root holds the folder of any task."""
    try:
        return bool(os.listdir(root / "tasks"))
    except FileNotFoundError:
        return False


def remove_unused(root: Path, *, folder: bool) -> None:
    """Remove what a steward made in a root without tasks; other files stay.

    Args:
        folder: also remove the root itself, unless something is left in it.
    """
    for name in REMOVED_IF_UNUSED:
        with suppress(OSError):  # missing, or not a file of ours
            (os.rmdir if name == "desk" else os.unlink)(root / name)
    ignore = root / ".gitignore"
    with suppress(OSError):
        if ignore.read_bytes() == IGNORE:
            ignore.unlink()
    with suppress(OSError):  # not empty, or missing
        os.rmdir(root / "tasks")
    with suppress(OSError):
        # Other files need the identity, to be recognized as this user's. A configuration alone
        # is recognized by the list of trusted roots.
        if set(os.listdir(root)) <= {IDENTITY, "config.yaml"}:
            os.unlink(root / IDENTITY)
    if folder:
        with suppress(OSError):
            os.rmdir(root)


def require_usable(root: Path) -> None:
    """Check that the path is a root, is named like one, or does not exist.

    So Retinue never writes into a folder that serves another purpose.

    Raises:
        BadInput: it is something else, or belongs to another user; nothing was changed.
    """
    if len(os.fsencode(os.path.realpath(root))) > MAX_PATH_BYTES:
        raise BadInput(
            f"{root} has a path of more than {MAX_PATH_BYTES} bytes, in which no database can be "
            "opened",
            code="bad_root",
            hint="name a folder with a shorter one with --root or RETINUE_ROOT",
            hints={PYTHON: "name a folder with a shorter one as root"},
        )
    try:
        status = root.stat()
        names = os.listdir(root)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise BadInput(f"{root} is not a folder", code="bad_root") from None
    except PermissionError:
        status = None
        names = []
    if status is None or status.st_uid != os.geteuid():
        raise BadInput(
            f"{root} belongs to another user",
            code="bad_root",
            hint="name one of your own with --root or RETINUE_ROOT",
            hints={PYTHON: "name one of your own as root"},
        )
    if (root.name == FOLDER and not root.is_symlink()) or was_used(root):
        return
    no_tasks = "tasks" not in names or _is_empty(root / "tasks")
    bare = FILES_BEFORE_USE.issuperset(names) and no_tasks
    if not bare or status.st_mode & WRITABLE_BY_OTHERS:
        why = "is open to other users" if bare else "holds other things"
        raise BadInput(
            f"{root} is not a root of Retinue: it {why}",
            code="bad_root",
            hint=f"a root is a folder of its own; did you mean {root / FOLDER}?",
        )


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not os.listdir(folder)
