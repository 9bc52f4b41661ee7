"""Text for people: aligned, folded, and with nothing in it that a terminal would obey."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

WIDEST_CELL = 80
MOST_NAMED = 5
ESCAPE = re.compile("(\x1b\\[[0-9;]*m)")  # a change of colour, of our own making

# Everything that moves the cursor, starts an escape sequence, ends a line early, turns the
# direction of text, or cannot be encoded at all. Line feed and tab are text.
_ACTIVE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_COLOURS = {
    "completed": "32",
    "ok": "32",
    "failed": "31",
    "error": "31",
    "cancelled": "33",
    "timeout": "31",
    "partial": "33",
    "completed_but_timeout": "32",
    "blocked": "35",
    "running": "36",
    "pending": "2",
}


def plain(text: object) -> str:
    """The text with every active character made visible: what others wrote passes here."""
    text = str(text)
    return text if text.isprintable() else re.sub(_ACTIVE, _visible, text)


def one_line(text: object) -> str:
    """The same on a single line."""
    return plain(" ".join(str(text).split()) if "\n" in str(text) or "\t" in str(text) else text)


def cell(text: object, widest: int = WIDEST_CELL) -> str:
    """The same, short enough for a column."""
    line = one_line(text)
    return line if len(line) <= widest else line[: widest - 3] + "..."


def say(text: str = "") -> None:
    """One text on standard output; whoever closed that wants none of it."""
    say_part(text + "\n")


def say_part(text: str) -> None:
    """The same without the end of a line."""
    if sys.stdout is not None:
        sys.stdout.write(text)


def say_json(document: Any) -> None:
    """One document on one line. ASCII: it survives every locale and moves no cursor."""
    import json

    say(json.dumps(document, ensure_ascii=True).replace("\x7f", "\\u007f"))


def note(text: str) -> None:
    """One line for people on standard error, where it is in no program's way."""
    if sys.stderr is not None:
        sys.stderr.write(f"note: {one_line(text)}\n")


def warn(document: Any) -> None:
    """What an answer warns of is on standard error, a line each."""
    for each in document.get("warnings", ()) if sys.stderr is not None else ():
        sys.stderr.write(f"warning: {one_line(each)}\n")


def flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def in_colour() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def status(word: str, shown: str | None = None) -> str:
    """The word, in the colour of what it means where that can be seen."""
    shown = word if shown is None else shown
    colour = _COLOURS.get(word)
    return f"\x1b[{colour}m{shown}\x1b[0m" if colour and in_colour() else shown


def strong(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if in_colour() else text


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    paint: int | None = None,
    right: Iterable[int] = (),
    widest: int = WIDEST_CELL,
) -> str:
    """Columns under their headings. One column may be painted as a status, some lean right."""
    cells = [[cell(each, widest) for each in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(headings, *cells, strict=True)]
    leaning = set(right)

    def line(row: Sequence[str], brush: Callable[[str, str], str] | None) -> str:
        parts = []
        for index, text in enumerate(row):
            space = " " * (widths[index] - width(text))
            shown = brush(text, text) if brush and index == paint else text
            parts.append(space + shown if index in leaning else shown + space)
        return "  ".join(parts).rstrip()

    return "\n".join([line(headings, None), *(line(row, status) for row in cells)])


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values below each other; what has no value is left out."""
    known = [(name, one_line(value)) for name, value in pairs if value not in (None, "")]
    widest = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name:<{widest}}  {value}" for name, value in known)


def several(names: list[str]) -> str:
    """Names in one line; of many, the first and how many more."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def width(text: str) -> int:
    """How many columns a terminal gives it."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(2 if east_asian_width(c) in "WF" else 0 if combining(c) else 1 for c in text)


def columns() -> int:
    """How wide a help text may be."""
    known = os.environ.get("COLUMNS", "")
    try:
        wide = int(known) if known.isdecimal() else os.get_terminal_size().columns
    except (OSError, ValueError):
        wide = 80
    return max(50, min(wide, 100) - 2)


def seconds(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-"
    if value < 60:
        return f"{value:.1f}s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def tokens(usage: object) -> str:
    if not isinstance(usage, dict) or not usage:
        return "-"
    known = [usage.get("input_tokens"), usage.get("output_tokens")]
    return "/".join("?" if each is None else str(each) for each in known)


def _visible(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "surrogatepass").decode("ascii")
