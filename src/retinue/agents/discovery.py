"""Programs of coding agents on this machine: where they are, their version, what they need.

No program is run to find out, because some of them take seconds to print their version.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retinue.agents.profiles import AgentProfile
from retinue.core.contract import SYSTEM_FOLDERS

MANIFEST = "package.json"
MAX_MANIFEST_BYTES = 1024 * 1024
MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
TARGETS = {"x64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}


@dataclass(frozen=True, kw_only=True)
class FoundProgram:
    """A program, and the paths that a child must be able to read to run it."""

    words: tuple[str, ...]
    version: str
    lent: tuple[str, ...]


class ProgramMissing(Exception):
    """The program is not installed; the message says what was looked for."""


def find_program(profile: AgentProfile, program: str, search: str) -> FoundProgram:
    """Find an agent's program.

    Args:
        program: its path or name by configuration; empty: the profile's name.
        search: the PATH to look it up in.

    Raises:
        ProgramMissing: the program or its interpreter is not installed.
    """
    name = program or profile.program
    found = shutil.which(name, path=search)
    if found is None:
        raise ProgramMissing(f"there is no program {name[:200]!a}")
    place = os.path.realpath(found)
    package = _find_package(Path(place))
    version = _read_version(package)
    interpreter = _read_interpreter(place)
    if interpreter is None:
        return FoundProgram(words=(place,), version=version, lent=_select_lent(place))
    # The command of many npm packages is only a script that starts a native program.
    if package is not None and (native := _find_native(profile, package)):
        return FoundProgram(words=(native,), version=version, lent=_select_lent(native))
    runs = _find_interpreter(interpreter, search)
    if not runs:
        raise ProgramMissing(f"{name[:200]} needs {interpreter[:200]}, which is not installed")
    folder = str(package) if package is not None else place
    return FoundProgram(words=(runs, place), version=version, lent=_select_lent(runs, folder))


def _find_package(program: Path) -> Path | None:
    """Return the nearest folder above with a package.json; None outside of a package."""
    home = os.path.realpath(os.path.expanduser("~"))
    for folder in program.parents:
        # Security: the package is lent. A package.json in a home folder, as 'npm install' leaves
        # one there, does not make ~/.ssh a part of ~/bin/agent.
        if f"{home}/".startswith(f"{str(folder).rstrip('/')}/"):
            break
        if (folder / MANIFEST).is_file():
            return folder
        if folder.name == "node_modules":
            break
    return None


def _read_version(package: Path | None) -> str:
    if package is None:
        return ""
    try:
        with open(package / MANIFEST, "rb") as file:
            document = json.loads(file.read(MAX_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""
    version = document.get("version") if isinstance(document, dict) else None
    return version[:40] if isinstance(version, str) and version.isprintable() else ""


def _read_interpreter(program: str) -> str | None:
    """Return the interpreter that the first line of a script names; None for a native program."""
    try:
        with open(program, "rb") as file:
            line = file.readline(1000)
    except OSError as fault:
        raise ProgramMissing(f"{program} cannot be read: {fault.strerror}") from None
    if not line.startswith(b"#!"):
        return None
    words = line[2:].decode("utf-8", "replace").split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else None


def _find_interpreter(name: str, search: str) -> str:
    """Return the first native interpreter of this name; empty if there is none.

    Version managers put scripts of that name first on the PATH. These need files that a child does
    not see, so they are passed over.
    """
    for folder in search.split(os.pathsep):
        found = shutil.which(name, path=folder)
        if found is not None and _read_interpreter(found) is None:
            return os.path.realpath(found)
    return ""


def _find_native(profile: AgentProfile, package: Path) -> str:
    """Return the native program that belongs to a package; empty if none is installed."""
    machine = MACHINES.get(platform.machine().lower(), "")
    filled = {"platform": f"linux-{machine}", "target": TARGETS.get(machine, "")}
    for modules in _list_module_folders(package):
        for pattern in profile.native:
            place = modules / pattern.format(**filled)
            if machine and place.is_file() and os.access(place, os.X_OK):
                return os.path.realpath(place)
    return ""


def _list_module_folders(package: Path) -> Iterator[Path]:
    """Yield the node_modules folders in which Node would look for packages of a package."""
    yield package / "node_modules"
    for folder in package.parents:
        if folder.name == "node_modules":
            yield folder


def _select_lent(*paths: str) -> tuple[str, ...]:
    """Return those of the paths that a child sees only if they are lent to it."""
    shown = tuple(f"{top}/" for top in SYSTEM_FOLDERS)
    return tuple(path for path in paths if not path.startswith(shown))
