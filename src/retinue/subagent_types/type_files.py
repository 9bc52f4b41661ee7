"""Files of subagent types: the shipped ones, and a project's own, which override them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path

from retinue.core.errors import BadInput, Refused
from retinue.core.ids import is_id, require_id
from retinue.core.subagent_type import BrokenType, Catalogue, SubagentType
from retinue.files import storage_failures, write_all
from retinue.formats.profile_document import (
    MAX_BYTES,
    format_profile,
    make_type_error,
    parse_profile,
)

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


TEMPLATE = Path(__file__).parent / "_template" / "SUBAGENT_TEMPLATE.md"
_PLACEHOLDER = "your-type-name"


def create(project: Path, name: str) -> Path:
    """Create a type from the template and return the path of its file.

    Raises:
        BadInput: the name is not a valid type name.
        Refused: the project has a type of that name.
    """
    require_id(name, "type name")
    text = TEMPLATE.read_text(encoding="utf-8").replace(_PLACEHOLDER, name)
    parse_profile(text.encode(), where=f"type {name[:80]!a}", folder=name)
    return _place(project, name, text)


def add(project: Path, profile: SubagentType) -> Path:
    """Write the type and return the path of its file.

    Raises:
        BadInput: the written profile could not be read back.
        Refused: the project has a type of that name.
    """
    text = format_profile(profile)
    parse_profile(text.encode(), where=f"type {profile.name!a}", folder=profile.name)
    return _place(project, profile.name, text)


def _place(project: Path, name: str, text: str) -> Path:
    """Create the file atomically; refuse if it exists."""
    folder = project / PROJECT_FOLDER / name
    path = folder / FILE
    temporary = folder / f".{FILE}.{os.getpid()}"
    with storage_failures(path):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(descriptor, "wb"):
                write_all(descriptor, text.encode())
            # A link fails if the name exists, so of two writers one is refused.
            os.link(temporary, path)
        except FileExistsError:
            raise Refused(
                f"{path} exists already", code="type_exists", hint="edit it, or choose another name"
            ) from None
        finally:
            with suppress(OSError):
                os.unlink(temporary)
                # Succeeds only after a failure, when the folder is empty.
                os.rmdir(folder)
    return path
