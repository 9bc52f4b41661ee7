"""SUBAGENT.md: strict front matter, and a body that holds the instructions."""

from __future__ import annotations

import re

from retinue.core.errors import BadInput
from retinue.core.subagent_type import SubagentType
from retinue.formats.yaml_document import Place, dump_yaml, load_yaml

MAX_BYTES = 64 * 1024

_FENCE = "---"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")


def parse_profile(
    data: bytes, *, where: str, folder: str | None = None, built_in: bool = False
) -> SubagentType:
    """Parse a type; its name must be that of `folder`, if given.

    Raises:
        BadInput: names the file, the line and the key.
    """
    from retinue.formats.schemas.profile_schema import FrontMatter
    from retinue.formats.schemas.validation_errors import validate_document

    front, body = split_front_matter(decode_text(data, where), where)
    lines: dict[Place, int] = {}
    try:
        document = load_yaml(front, where=where, first_line=2, lines=lines)
        found = validate_document(
            FrontMatter, {} if document is None else document, where=where, lines=lines
        )
    except BadInput as error:
        code = "unknown_key" if error.code == "unknown_key" else "bad_type"
        raise BadInput(error.message, code=code, hint=error.hint) from None
    if folder is not None and found.name != folder:
        raise make_type_error(
            f"{where}: name: {found.name!a}, but its folder is called {folder[:80]!a}"
        )
    if not body.strip():
        raise make_type_error(
            f"{where}: there are no instructions below the front matter",
            hint="write the subagent's instructions below the second ---",
        )
    return SubagentType(
        name=found.name,
        description=found.description,
        instructions=body.strip(),
        skills=tuple(found.skills),
        expected_input=tuple(found.expected_input),
        source=where,
        built_in=built_in,
    )


def format_profile(profile: SubagentType) -> str:
    """Return the text of SUBAGENT.md that `parse_profile` reads back as the same type."""
    front: dict[str, object] = {"name": profile.name, "description": profile.description}
    for key, items in (("skills", profile.skills), ("expected_input", profile.expected_input)):
        if items:
            front[key] = list(items)
    return f"{_FENCE}\n{dump_yaml(front)}{_FENCE}\n\n{profile.instructions.strip()}\n"


def decode_text(data: bytes, where: str) -> str:
    """Decode a text file and normalize its line ends.

    Raises:
        BadInput: it is too large, not UTF-8, or has control characters.
    """
    if len(data) > MAX_BYTES:
        raise make_type_error(f"{where}: larger than {MAX_BYTES // 1024} KiB")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise make_type_error(
            f"{where}: line {line}: byte 0x{data[error.start]:02x} is not UTF-8"
        ) from None
    odd = _CONTROL.search(text)
    if odd is not None:
        line = text.count("\n", 0, odd.start()) + 1
        raise make_type_error(
            f"{where}: line {line}: character U+{ord(odd[0]):04X} is not accepted"
        )
    return text


def split_front_matter(text: str, where: str) -> tuple[str, str]:
    """Return the front matter without its fences, and the body.

    Raises:
        BadInput: the front matter is missing or not closed.
    """
    first, *rest = text.split("\n")
    if first.rstrip() != _FENCE:
        raise make_type_error(f"{where}: line 1: expected ---, the start of the front matter")
    for number, line in enumerate(rest):
        if line.rstrip() == _FENCE:
            return "\n".join([*rest[:number], ""]), "\n".join(rest[number + 1 :])
    raise make_type_error(f"{where}: line 1: the front matter has no end", hint="close it with ---")


def make_type_error(message: str, hint: str = "") -> BadInput:
    return BadInput(message, code="bad_type", hint=hint)
