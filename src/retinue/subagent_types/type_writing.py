"""Writing of a project's own subagent types, from the template or an imported profile."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from retinue.core.errors import Refused
from retinue.core.ids import require_id
from retinue.core.subagent_type import SubagentType
from retinue.files import storage_failures, write_all
from retinue.formats.profile_document import format_profile, parse_profile
from retinue.subagent_types.type_loading import FILE, PROJECT_FOLDER

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
