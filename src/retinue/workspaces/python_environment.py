"""A user's own Python, with the packages of its virtual environment, as it is lent to a child."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from retinue.core.contract import SYSTEM_FOLDERS, Interpreter
from retinue.core.errors import BadInput

SETTINGS = "pyvenv.cfg"
MAX_SETTINGS_BYTES = 64 * 1024
MOST_LINKS = 40


def find_interpreter(program: str) -> Interpreter:
    """Return what a child needs to run a Python of the user.

    Args:
        program: its full path, such as `/project/.venv/bin/python`.

    Raises:
        BadInput: `no_python`: it is no Python that a child could run.
    """
    if not os.path.isabs(program) or not os.access(program, os.X_OK) or os.path.isdir(program):
        raise _make_error(f"{program[:200]!a} is not the full path of a Python")
    folder = Path(os.path.realpath(os.path.dirname(program)))
    place = folder / os.path.basename(program)
    environment = folder.parent if (folder.parent / SETTINGS).is_file() else None
    base = _find_installation(environment, place)
    # Not only packages: ~/.local has those, too, beside much else of the user.
    if not any((base / "lib").glob("python3*/os.py")):
        raise _make_error(f"{program[:200]!a} belongs to no installation of Python 3")
    # Security: a folder such as /home/me, where ~/bin/python is, would show all that is below it.
    home = os.path.realpath(os.path.expanduser("~"))
    needed = [str(each) for each in (environment, base) if each is not None]
    lent = tuple(each for each in dict.fromkeys(needed) if not _is_shown(each))
    for each in lent:
        if f"{home}/".startswith(f"{each}/"):
            raise _make_error(f"{program[:200]!a} is part of {each}, which has other files")
    _require_links_visible(place, lent)
    if environment is not None:
        return Interpreter(folder=str(folder), environment=str(environment), lent=lent)
    # The real folder: a link of another folder may be all that names it there.
    return Interpreter(folder=os.path.dirname(os.path.realpath(place)), lent=lent)


def _find_installation(environment: Path | None, program: Path) -> Path:
    """Return the folder of the installation that the environment was made from."""
    if environment is None:
        return Path(os.path.realpath(program)).parent.parent
    with open(environment / SETTINGS, encoding="utf-8", errors="replace") as file:
        lines = file.read(MAX_SETTINGS_BYTES).splitlines()
    pairs = (line.partition("=") for line in lines)
    home = next((value.strip() for key, _, value in pairs if key.strip() == "home"), "")
    if not home:
        raise _make_error(f"{environment / SETTINGS} does not name the Python it was made from")
    return Path(os.path.realpath(home)).parent


def _require_links_visible(place: Path, lent: tuple[str, ...]) -> None:
    """Check that a child can follow the links from a program to its file.

    Raises:
        BadInput: a link leads through a place that the child does not see.
    """
    for step in _follow(place):
        folder = os.path.dirname(step)
        if _is_shown(folder):
            continue
        inside = any(folder == each or folder.startswith(f"{each}/") for each in lent)
        if not inside or os.path.realpath(folder) != folder:
            raise BadInput(
                f"{str(place)[:200]!a} leads through {step[:200]!a}, which a child cannot see",
                code="no_python",
                hint="make the environment anew with the real path of its Python: "
                f"{os.path.realpath(place)} -m venv DIR",
            )


def _follow(place: Path) -> Iterator[str]:
    """Yield a path, and where each link on the way to its file leads."""
    path = str(place)
    for _ in range(MOST_LINKS):
        yield path
        if not os.path.islink(path):
            return
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def _is_shown(path: str) -> bool:
    """Return whether every isolated child sees this path anyway."""
    return path == "/" or f"{path}/".startswith(tuple(f"{top}/" for top in SYSTEM_FOLDERS))


def _make_error(message: str) -> BadInput:
    return BadInput(
        message,
        code="no_python",
        hint="name the python3 in the bin folder of a virtual environment or of an installation",
    )
