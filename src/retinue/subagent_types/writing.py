"""A project's own types, written: from the template, or out of what another tool keeps."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from retinue.domain.errors import Refused
from retinue.domain.ids import require_id
from retinue.domain.subagent_type import SubagentType
from retinue.files import storage_failures, write_all
from retinue.subagent_types.loading import FILE, PROJECT_FOLDER
from retinue.wire.profile import parse_profile, profile_text

TEMPLATE = Path(__file__).parent / "_template" / "SUBAGENT_TEMPLATE.md"
_PLACEHOLDER = "your-type-name"


def create(project: Path, name: str) -> Path:
    """The project has a type of that name, to be filled in; the path of its file.

    Raises:
        BadInput: the name cannot be one.
        Refused: it has one already.
    """
    require_id(name, "type name")
    text = TEMPLATE.read_text(encoding="utf-8").replace(_PLACEHOLDER, name)
    parse_profile(text.encode(), where=f"type {name[:80]!a}", folder=name)
    return _place(project, name, text)


def add(project: Path, profile: SubagentType) -> Path:
    """The project has this type; the path of its file.

    Raises:
        BadInput: it is not one that could be read back.
        Refused: the project has one of that name already.
    """
    text = profile_text(profile)
    parse_profile(text.encode(), where=f"type {profile.name!a}", folder=profile.name)
    return _place(project, profile.name, text)


def _place(project: Path, name: str, text: str) -> Path:
    """The file is there as a whole, where none was; of two writers one is refused."""
    folder = project / PROJECT_FOLDER / name
    path = folder / FILE
    temporary = folder / f".{FILE}.{os.getpid()}"
    with storage_failures(path):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(descriptor, "wb"):
                write_all(descriptor, text.encode())
            os.link(temporary, path)
        except FileExistsError:
            raise Refused(
                f"{path} exists already", code="type_exists", hint="edit it, or take another name"
            ) from None
        finally:
            with suppress(OSError):
                os.unlink(temporary)
                os.rmdir(folder)  # only where nothing came of it: it is empty then
    return path
