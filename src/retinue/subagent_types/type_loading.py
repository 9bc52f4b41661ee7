"""Loading of subagent types: the shipped ones and a project's own, which override them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from retinue.core.errors import BadInput
from retinue.core.ids import is_id
from retinue.core.subagent_type import BrokenType, Catalogue, SubagentType
from retinue.formats.profile_document import MAX_BYTES, make_type_error, parse_profile

FILE = "SUBAGENT.md"
PROJECT_FOLDER = ".agent/subagent_types"
MAX_PROJECT_TYPES = 256

_SHIPPED = ("explorer", "researcher", "evaluator", "novelty")


@cache
def load_built_in() -> tuple[SubagentType, ...]:
    """Return the shipped types in display order."""
    here = Path(__file__).parent
    return tuple(
        parse_profile(
            (here / name / FILE).read_bytes(),
            where=str(here / name / FILE),
            folder=name,
            built_in=True,
        )
        for name in _SHIPPED
    )


def load_catalogue(project: Path) -> Catalogue:
    """Return all types of a project.

    An unusable file is listed in `broken`. It hides the built-in type of the same name.
    """
    own: dict[str, SubagentType] = {}
    broken: list[BrokenType] = []
    for found in _load_project_types(project / PROJECT_FOLDER):
        if isinstance(found, SubagentType):
            own[found.name] = found
        else:
            broken.append(found)
    # Falling back to the built-in type would silently run other instructions than intended.
    unusable = {each.name for each in broken}
    shipped = [own.pop(each.name, each) for each in load_built_in() if each.name not in unusable]
    return Catalogue(types=(*shipped, *own.values()), broken=tuple(broken))


def _load_project_types(folder: Path) -> Iterator[SubagentType | BrokenType]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except FileNotFoundError:
        return
    except OSError as error:
        yield _make_broken("", folder, make_type_error(f"{folder}: {error.strerror}"))
        return
    for number, name in enumerate(name for name in names if name[0] not in "._"):
        path = folder / name / FILE
        try:
            if number >= MAX_PROJECT_TYPES:
                raise make_type_error(f"{path}: not read, {MAX_PROJECT_TYPES} types come before it")
            if not is_id(name):
                raise make_type_error(f"{path}: a type cannot be called {name[:80]!a}")
            yield _parse_cached(read_bounded(path), str(path), name)
        except BadInput as error:
            yield _make_broken(name, path, error)


@lru_cache(maxsize=MAX_PROJECT_TYPES)
def _parse_cached(data: bytes, where: str, folder: str) -> SubagentType:
    """Parse a profile, cached: every spawn loads the types, and parsing YAML is slow."""
    return parse_profile(data, where=where, folder=folder)


def _make_broken(name: str, path: Path, error: BadInput) -> BrokenType:
    return BrokenType(
        name=name, source=str(path), code=error.code, problem=error.message, hint=error.hint
    )


def read_bounded(path: Path) -> bytes:
    """Return the content of a regular file, at most one byte more than the limit.

    Raises:
        BadInput: the file cannot be read, or is not a regular file.
    """
    # No links: they could lead to files that are not meant for a model. Non-blocking: opening a
    # pipe would wait for its writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise make_type_error(f"{path}: not a plain file")
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if path.is_symlink():
            raise make_type_error(
                f"{path}: a link is not followed", hint="put a copy there"
            ) from None
        raise make_type_error(f"{path}: {getattr(error, 'strerror', None) or error}") from None
