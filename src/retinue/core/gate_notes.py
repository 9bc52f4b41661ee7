"""Notes file in which people answer gates: formatting questions and parsing answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from retinue.core.safe_text import reveal_hidden

_MARK = "Write your answer below this line and save the file"
_HEADING = re.compile(r"^## ([A-Za-z0-9][A-Za-z0-9_-]*-[0-9]+)\s*$")


def format_gate_note(task: str, gate: str, questions: Sequence[str]) -> str:
    """Return the section for a gate."""
    # One line for each question, with hidden characters shown: a child wrote it, and it must not
    # start a section of its own.
    items = "\n".join(f"- {reveal_hidden(' '.join(text.split()))}" for text in questions)
    command = f'retinue gate approve {task} {gate} --answer "..."'
    return f"\n## {gate}\n\n{items}\n\n{_MARK}, or run: {command}\n\n"


def parse_answers(text: str) -> dict[str, str]:
    """Return the answers by gate; gates without an answer are left out."""
    found: dict[str, list[str]] = {}
    gate, below = "", False
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            gate = heading[1]
            below = False
        elif not below and line.startswith(_MARK):
            below = bool(gate)
        elif below:
            found.setdefault(gate, []).append(line)
    written = {gate: "\n".join(lines).strip() for gate, lines in found.items()}
    return {gate: answer for gate, answer in written.items() if answer}
