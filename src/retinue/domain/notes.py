"""The notes in which people answer: what stands there for a gate, and what they wrote below it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARK = "Write your answer below this line and save the file"
_HEADING = re.compile(r"^## ([A-Za-z0-9][A-Za-z0-9_-]*-[0-9]+)\s*$")


def asked(task: str, gate: str, questions: Sequence[str]) -> str:
    """What is added to the notes for a gate; whatever a question holds, it stays one item."""
    items = "\n".join(f"- {' '.join(text.split())}" for text in questions)
    command = f'retinue gate approve {task} {gate} --answer "..."'
    return f"\n## {gate}\n\n{items}\n\n{_MARK}, or run: {command}\n\n"


def answered(text: str) -> dict[str, str]:
    """What people wrote, by gate; nothing for those where they have not."""
    found: dict[str, list[str]] = {}
    gate, below = "", False
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            gate, below = heading[1], False
        elif not below and line.startswith(_MARK):
            below = bool(gate)
        elif below:
            found.setdefault(gate, []).append(line)
    written = {gate: "\n".join(lines).strip() for gate, lines in found.items()}
    return {gate: answer for gate, answer in written.items() if answer}
