"""Which types there are: those that are shipped, and a project's own, which go before them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from retinue.domain.errors import BadInput
from retinue.domain.ids import is_id
from retinue.domain.subagent_type import BrokenType, Catalogue, SubagentType
from retinue.wire.profile import MAX_BYTES, bad_type, parse_profile

FILE = "SUBAGENT.md"
PROJECT_FOLDER = ".agent/subagent_types"
MAX_PROJECT_TYPES = 256

_SHIPPED = ("explorer", "researcher", "evaluator", "novelty")


@cache
def built_in() -> tuple[SubagentType, ...]:
    """The shipped types, in the order in which they are shown."""
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


def discover(project: Path) -> Catalogue:
    """Every type that can be had in a project.

    A file that cannot be used is in `broken`; it hides the built-in type that it was meant to
    replace, and nothing else.
    """
    own: dict[str, SubagentType] = {}
    broken: list[BrokenType] = []
    for found in _project_types(project / PROJECT_FOLDER):
        if isinstance(found, SubagentType):
            own[found.name] = found
        else:
            broken.append(found)
    unusable = {each.name for each in broken}
    shipped = [own.pop(each.name, each) for each in built_in() if each.name not in unusable]
    return Catalogue(types=(*shipped, *own.values()), broken=tuple(broken))


def _project_types(folder: Path) -> Iterator[SubagentType | BrokenType]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except FileNotFoundError:
        return
    except OSError as error:
        yield _broken("", folder, bad_type(f"{folder}: {error.strerror}"))
        return
    for number, name in enumerate(name for name in names if name[0] not in "._"):
        path = folder / name / FILE
        try:
            if number >= MAX_PROJECT_TYPES:
                raise bad_type(f"{path}: not read, {MAX_PROJECT_TYPES} types come before it")
            if not is_id(name):
                raise bad_type(f"{path}: a type cannot be called {name[:80]!a}")
            yield _parsed(read_bounded(path), str(path), name)
        except BadInput as error:
            yield _broken(name, path, error)


@lru_cache(maxsize=MAX_PROJECT_TYPES)
def _parsed(data: bytes, where: str, folder: str) -> SubagentType:
    """The same bytes are parsed once: every spawn looks for types, and YAML is most of it."""
    return parse_profile(data, where=where, folder=folder)


def _broken(name: str, path: Path, error: BadInput) -> BrokenType:
    return BrokenType(
        name=name, source=str(path), code=error.code, problem=error.message, hint=error.hint
    )


def read_bounded(path: Path) -> bytes:
    """The content of a plain file, one byte beyond the limit at most.

    Never through a link, which could lead to what was never meant for a model, and never
    waiting, as for a pipe.

    Raises:
        BadInput: it cannot be read, or is no plain file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise bad_type(f"{path}: not a plain file")
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if path.is_symlink():
            raise bad_type(f"{path}: a link is not followed", hint="put a copy there") from None
        raise bad_type(f"{path}: {getattr(error, 'strerror', None) or error}") from None
