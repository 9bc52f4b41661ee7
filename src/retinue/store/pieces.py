"""The text of a task.yaml in pieces: around the roster, the roster, the block of a key."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from retinue.domain.errors import BadInput

ROSTER_KEYS = ("\nroster", '\n"roster"', "\n'roster'")

_AFTER_KEY = re.compile(r"[ ]*:(?=\s|$)")
_NEXT_KEY = re.compile(
    r"""\n(?=(?:"[^"\n]*"|'[^'\n]*'|[^\s\#\-\[\]{},"'][^\n]*?)[ ]*:(?:\s|$)|---|\.\.\.)"""
)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A text in three: what is above the roster, the roster, what is below."""

    head: str
    roster: str
    tail: str

    @property
    def around(self) -> tuple[str, str]:
        return self.head, self.tail

    @cached_property
    def tail_line(self) -> int:
        if not self.tail:
            return sys.maxsize
        return 1 + self.head.count("\n") + self.roster.count("\n")

    @property
    def text(self) -> str:
        open_end = self.roster and self.head and not self.head.endswith("\n")
        return self.head + ("\n" if open_end else "") + self.roster + self.tail


def split(text: str, path: Path) -> Pieces:
    """Raises:
    BadInput: there are two rosters.
    """
    padded = "\n" + text
    starts = [
        found.start()
        for key in ROSTER_KEYS
        for found in re.finditer(re.escape(key), padded)
        if _AFTER_KEY.match(padded, found.end())
    ]
    if len(starts) > 1:
        line = 1 + text.count("\n", 0, max(starts))
        raise bad_yaml(f"{path}: line {line}: key 'roster' appears twice")
    if not starts:
        return Pieces(head=text, roster="", tail="")
    start = starts[0]
    end = _end_of_key(text, start)
    return Pieces(head=text[:start], roster=text[start:end], tail=text[end:])


def block_of_key(text: str, line: int) -> tuple[int, int]:
    """From where to where all that belongs to the key on this line stands; lines count from 0."""
    start = sum(len(each) + 1 for each in text.split("\n")[:line])
    return start, _end_of_key(text, start)


def end_of_entries(block: str) -> int:
    """Where the next entry goes: what stands below the last one belongs to the next key."""
    end = len(block)
    while True:
        start = block.rfind("\n", 0, max(0, end - 1)) + 1
        line = block[start:end]
        if start == 0 or (line.strip() and not line.startswith("#")):
            return end
        end = start


def bad_yaml(message: str) -> BadInput:
    return BadInput(message, code="bad_yaml")


def _end_of_key(text: str, start: int) -> int:
    found = _NEXT_KEY.search(text, start)
    return found.end() if found else len(text)
