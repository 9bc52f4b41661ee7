"""The open gates inside task.yaml, edited line by line so that what people wrote stays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from retinue.domain.errors import BadInput
from retinue.domain.event import shorten
from retinue.domain.subagent import Gate
from retinue.store.pieces import end_of_entries
from retinue.wire.yaml import load_yaml, quoted

_TOP = re.compile(
    r"""(?P<key>["']?gates["']?[ ]*:)(?:[ ]+(?:\[[ ]*\]|null|~))?(?P<after>[ ]*(?:[ ]\#.*)?)"""
)
_ENTRY = re.compile(r"""(?P<indent>[ ]*)-[ ]+id:[ ]*["']?(?P<id>[\w-]+)["']?[ ]*(?:[ ]\#.*)?""")


def listed(gates: object) -> set[str]:
    """The gates that a file shows, by their ids."""
    found = gates if isinstance(gates, list) else []
    return {str(each["id"]) for each in found if isinstance(each, dict) and "id" in each}


def edit_gates(block: str, gates: Sequence[Gate]) -> str:
    """The block with these gates and no others; comments and entries that stay are untouched."""
    end = end_of_entries(block)
    body, below = block[:end], block[end:]
    newline = "\r\n" if "\r\n" in body else "\n"
    first, *lines = body.replace("\r\n", "\n").removesuffix("\n").split("\n")
    top = _TOP.fullmatch(first)
    edited = [] if top is None else [_head(top, gates), *_edited(lines, gates)]
    if not _shows(edited, gates):  # people wrote it in another style
        comments = [line for line in lines if line.lstrip().startswith("#")]
        edited = ["gates:" if gates else "gates: []", *comments, *_entries(gates, "  ")]
    return newline.join(edited) + (newline if body.endswith("\n") else "") + below


def _head(top: re.Match[str], gates: Sequence[Gate]) -> str:
    return top["key"] + ("" if gates else " []") + top["after"]


def _edited(lines: Sequence[str], gates: Sequence[Gate]) -> list[str]:
    missing = {gate.id: gate for gate in gates}
    kept: list[str] = []
    stays, indent = True, "  "
    for line in lines:
        if entry := _ENTRY.fullmatch(line):
            stays, indent = missing.pop(entry["id"], None) is not None, entry["indent"]
        if stays or line.lstrip()[:1] in ("", "#"):
            kept.append(line)
    return kept + _entries(missing.values(), indent)


def _entries(gates: Iterable[Gate], indent: str) -> list[str]:
    lines: list[str] = []
    for gate in gates:
        questions = ", ".join(quoted(shorten(each)) for each in gate.questions)
        lines += [
            f"{indent}- id: {quoted(gate.id)}",
            f"{indent}  instance: {quoted(gate.subagent)}",
            f"{indent}  questions: [{questions}]",
        ]
    return lines


def _shows(lines: Sequence[str], gates: Sequence[Gate]) -> bool:
    try:
        document = load_yaml("\n".join(lines), where="gates")
    except BadInput:
        return False
    shown = document.get("gates") if isinstance(document, dict) else None
    return listed(shown) == {gate.id for gate in gates} and len(shown or ()) == len(gates)
