"""What files and the environment decide, read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retinue.domain.errors import BadInput

FOLDER = ".retinue"
MADE = frozenset({"retinue.db", "steward.lock"})  # what only a root has
# What may be in a folder before anything was done in it; tasks is empty then.
BEFORE = frozenset({"config.yaml", ".gitignore", "mcp-token", "steward.log", "tasks"})
OPEN = 0o022  # to others, who may write
LONGEST = 493  # bytes of a root's path: SQLite takes 512, with the names that it adds
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME", "SHELL")


@dataclass(frozen=True, kw_only=True)
class Settings:
    root: Path  # where it lies: a child is shown no link that leads there
    project: Path  # the folder that holds it, or a link to it: what a parent works in
    child_environment: Mapping[str, str]  # built from nothing: no secret of ours is in it
    failpoint: str = ""
    idle_seconds: float = 60.0


def find_root(given: str | None, cwd: Path, environment: Mapping[str, str]) -> Path:
    """The root that was named, else a child's own, else the nearest one upwards, else one to be
    made here.

    Raises:
        BadInput: what is said to lead to a child's own leads nowhere.
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
        if (folder / FOLDER).is_dir():
            return folder / FOLDER
    return cwd / FOLDER


def read_settings(root: Path, environment: Mapping[str, str]) -> Settings:
    """Raises:
    BadInput: a variable does not hold what it should.
    """
    passed = {name: environment[name] for name in PASSED_ON if name in environment}
    passed.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    idle, idle_seconds = environment.get("RETINUE_IDLE_SECONDS", "60"), 0.0
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
    )


def is_made(root: Path) -> bool:
    """Whether anything was ever done in this root.

    Raises:
        OSError: nobody can tell.
    """
    if not MADE.isdisjoint(os.listdir(root)):
        return True
    tasks = root / "tasks"
    return tasks.is_dir() and any((task / "task.yaml").exists() for task in tasks.iterdir())


def require_usable(root: Path) -> None:
    """What is made here harms no other work: it is a root, or by its name one, or there is nothing.

    Raises:
        BadInput: it is something else, or somebody else's; nothing was changed.
    """
    if len(os.fsencode(os.path.realpath(root))) > LONGEST:
        raise BadInput(
            f"{root} has a path of more than {LONGEST} bytes, in which no database can be opened",
            code="bad_root",
            hint="name a folder with a shorter one with --root or RETINUE_ROOT",
        )
    try:
        status, names = root.stat(), os.listdir(root)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise BadInput(f"{root} is not a folder", code="bad_root") from None
    except PermissionError:
        status, names = None, []
    if status is None or status.st_uid != os.geteuid():
        raise BadInput(
            f"{root} belongs to another user",
            code="bad_root",
            hint="name one of your own with --root or RETINUE_ROOT",
        )
    if (root.name == FOLDER and not root.is_symlink()) or is_made(root):
        return
    bare = BEFORE.issuperset(names) and ("tasks" not in names or _is_empty(root / "tasks"))
    if not bare or status.st_mode & OPEN:
        why = "is open to other users" if bare else "holds other things"
        raise BadInput(
            f"{root} is no root of retinue: it {why}",
            code="bad_root",
            hint=f"a root is a folder of its own; did you mean {root / FOLDER}?",
        )


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not os.listdir(folder)
