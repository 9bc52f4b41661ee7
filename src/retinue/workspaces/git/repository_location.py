"""Location of a repository, and whether git may run with its configuration.

A repository's configuration can make git run commands. So the git folder is located here, without
starting git, and refused where a subagent could have written it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retinue.core.errors import AGENT, BadInput

GIT = ".git"
ROOT_NAME = ".retinue"
POINTER = b"gitdir: "
POINTER_BYTES = 8192
# Names that git itself uses in an object folder.
_STORED = re.compile(r"[0-9a-f]{2}|pack|info|tmp_.*|incoming-.*|maintenance\.lock")

NAME_BARE = "name it under base.repository of a plan, or work in a checkout of it"
NOT_OURS = "work as that user, or make it yours with chown: its configuration could run commands"
USE_PROJECT = "name the project's own repository: '.' is the usual base"


@dataclass(frozen=True, kw_only=True)
class Location:
    """The folders of one repository, with all links resolved."""

    git_dir: Path
    common: Path  # holds configuration, refs and objects; differs from git_dir in a linked worktree
    top: Path | None  # the working tree that contains `.git`; None for a git folder itself


def locate_repository(folder: Path, root: Path, *, named: bool = False) -> Location | None:
    """Return the repository that git would find from `folder` upwards; None without one.

    Args:
        root: the `.retinue` folder of the steward.
        named: whether a person named this folder as the repository. Only then may it be bare: a
            bare repository inside a checkout is never used by accident.

    Raises:
        BadInput: git must not run there.
    """
    place = Path(os.path.realpath(folder))
    for here in (place, *place.parents):
        entry = here / GIT
        if is_git_folder(entry):
            return _check_location(entry, root, here)
        if entry.is_file() and (target := _read_pointer(entry)) is not None:
            return _check_location(target, root, here)
        if is_git_folder(here):
            # A folder named .git belongs to the working tree around it.
            if not (here == place and named) and here.name != GIT:
                raise make_unfit_error(f"{str(here)!a} is a bare repository", NAME_BARE)
            return _check_location(here, root, None)
    return None


def is_git_folder(path: Path) -> bool:
    """Return whether git would take the folder for a repository: HEAD, objects and refs exist."""
    return (
        os.path.lexists(path / "HEAD") and (path / "objects").is_dir() and (path / "refs").is_dir()
    ) or (os.path.lexists(path / "HEAD") and (path / "commondir").is_file())


def is_object_store(path: Path) -> bool:
    """Return whether a folder holds git objects and nothing else.

    A repository can name any folder as an alternate, and children are shown alternates.
    """
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return "pack" in names and all(_STORED.fullmatch(name) for name in names)


def require_outside_of_roots(path: Path, root: Path) -> None:
    """Require that a path is in no `.retinue` folder, where subagents write.

    Raises:
        BadInput: it is in one.
    """
    place = Path(os.path.realpath(path))
    own = Path(os.path.realpath(root))
    for above in (place, *place.parents):
        # The project itself may lie in another root, for example in a workspace; that is allowed.
        foreign = above.name == ROOT_NAME and not own.is_relative_to(above)
        if above == own or foreign:
            raise make_unfit_error(
                f"{str(path)!a} lies in {str(above)!a}, where subagents write", USE_PROJECT
            )


def make_unfit_error(sentence: str, hint: str = "", *, for_agents: str = "") -> BadInput:
    hints = {AGENT: for_agents} if for_agents else None
    return BadInput(sentence, code="unfit_repository", hint=hint, hints=hints)


def _check_location(git_dir: Path, root: Path, top: Path | None) -> Location:
    git_dir = Path(os.path.realpath(git_dir))
    common = _find_common_folder(git_dir)
    objects = common / "objects"
    for place in (git_dir, common, objects):
        require_outside_of_roots(place, root)
    # As git's safe.directory: another user's configuration could run commands as this user.
    for place in (git_dir, common, *([top] if top else [])):
        _require_own(place)
    for alternate in _read_alternates(objects):
        require_outside_of_roots(alternate, root)
        if alternate.is_dir() and not is_object_store(alternate):
            raise make_unfit_error(
                f"{str(objects / 'info' / 'alternates')!a} names {str(alternate)!a}, which holds "
                "other files than git objects",
                "correct that file, or clone the repository again",
            )
    return Location(git_dir=git_dir, common=common, top=top)


def _find_common_folder(git_dir: Path) -> Path:
    with suppress(OSError):
        line = (git_dir / "commondir").read_bytes()[:POINTER_BYTES].rstrip(b"\n")
        return Path(os.path.realpath(git_dir / os.fsdecode(line)))
    return git_dir


def _read_pointer(file: Path) -> Path | None:
    """Return the git folder that a `.git` file names; None if it is not such a file."""
    with suppress(OSError), file.open("rb") as opened:
        line = opened.read(POINTER_BYTES)
        if line.startswith(POINTER):
            return file.parent / os.fsdecode(line.removeprefix(POINTER).rstrip(b"\r\n"))
    return None


def _read_alternates(objects: Path) -> list[Path]:
    try:
        lines = (objects / "info" / "alternates").read_bytes().splitlines()
    except OSError:
        return []
    named = [line for line in lines if line and not line.startswith(b"#")]
    return [Path(os.path.realpath(objects / os.fsdecode(line))) for line in named]


def _require_own(git_dir: Path) -> None:
    try:
        owner = git_dir.stat().st_uid
    except OSError as error:
        raise make_unfit_error(f"{str(git_dir)!a}: {error.strerror}") from None
    if owner != os.geteuid():
        raise make_unfit_error(f"{str(git_dir)!a} belongs to another user", NOT_OURS)
