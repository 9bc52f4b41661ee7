"""Output for the terminal: tables, colours, and escaping of control characters."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

WIDEST_CELL = 80
MOST_NAMED = 5
# Colour sequences that `format_status` and `format_strong` write
ESCAPE = re.compile("(\x1b\\[[0-9;]*m)")

# Characters that move the cursor, start an escape sequence, end a line early, change the
# direction of text, or cannot be encoded. Line feed and tab stay as they are.
_ACTIVE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_COLOURS = {
    "completed": "32",
    "ok": "32",
    "ready": "32",
    "no key": "33",
    "not logged in": "33",
    "failed": "31",
    "error": "31",
    "cancelled": "33",
    "timeout": "31",
    "partial": "33",
    "completed_but_timeout": "32",
    "blocked": "35",
    "waiting_for_merge": "36",
    "running": "36",
    "pending": "2",
}


def escape_text(text: object) -> str:
    """Return the text with control characters escaped.

    All text from children, models and files passes here before it reaches a terminal.
    """
    text = str(text)
    return text if text.isprintable() else re.sub(_ACTIVE, _escape_character, text)


def to_one_line(text: object) -> str:
    """Return the escaped text on a single line."""
    return escape_text(
        " ".join(str(text).split()) if "\n" in str(text) or "\t" in str(text) else text
    )


def format_cell(text: object, widest: int = WIDEST_CELL) -> str:
    """Return the escaped text on a single line, cut to the width of a column."""
    line = to_one_line(text)
    return line if len(line) <= widest else line[: widest - 3] + "..."


def format_bytes(number: int) -> str:
    """Return a size with a unit, such as `1.5 MB`."""
    size = float(number)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def cut_to_screen(line: str) -> str:
    """Return the line without the part that exceeds the width of the screen."""
    # Odd parts are colour sequences: they take no columns and are kept.
    room = shutil.get_terminal_size().columns - 1
    kept = ""
    for number, part in enumerate(ESCAPE.split(line)):
        if number % 2:
            kept += part
        else:
            shown = cut_to_width(part, room)
            kept += shown
            room = 0 if len(shown) < len(part) else room - measure_width(shown)
    return kept


def cut_to_width(text: str, width: int) -> str:
    """Return as much of the text as fits into this many columns."""
    if text.isascii():
        return text[:width]
    columns = accumulate(map(measure_width, text))
    return text[: next((at for at, each in enumerate(columns) if each > width), len(text))]


def fit_to_width(text: str, width: int, *, right: bool = False) -> str:
    """Return the text cut or filled to this many columns."""
    shown = cut_to_width(text, width)
    space = " " * (width - measure_width(shown))
    return space + shown if right else shown + space


def print_line(text: str = "") -> None:
    """Write a line to standard output, unless that is closed."""
    print_part(text + "\n")


def print_part(text: str) -> None:
    """Write to standard output without a line feed."""
    if sys.stdout is not None:
        sys.stdout.write(text)


def print_json(document: Any) -> None:
    """Write a document as one line of ASCII, which is safe in every locale and terminal."""
    import json

    print_line(json.dumps(document, ensure_ascii=True).replace("\x7f", "\\u007f"))


def note(text: str) -> None:
    """Write a note to standard error, so that standard output stays parseable."""
    if sys.stderr is not None:
        sys.stderr.write(f"note: {to_one_line(text)}\n")


def warn(document: Any) -> None:
    """Write the warnings of an answer to standard error."""
    for each in document.get("warnings", ()) if sys.stderr is not None else ():
        sys.stderr.write(f"warning: {to_one_line(each)}\n")


def flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def has_colour() -> bool:
    return is_read_by_a_person() and not os.environ.get("NO_COLOR")


def is_read_by_a_person() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def format_status(word: str, shown: str | None = None) -> str:
    """Return the word, coloured by status if standard output shows colours."""
    shown = word if shown is None else shown
    colour = _COLOURS.get(word)
    return f"\x1b[{colour}m{shown}\x1b[0m" if colour and has_colour() else shown


def format_strong(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if has_colour() else text


def format_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    paint: int | None = None,
    right: Iterable[int] = (),
    widest: int = WIDEST_CELL,
) -> str:
    """Return an aligned table.

    Args:
        paint: the column that is coloured as a status.
        right: the columns that are aligned to the right.
    """
    cells = [[format_cell(each, widest) for each in row] for row in rows]
    widths = [max(map(measure_width, column)) for column in zip(headings, *cells, strict=True)]
    leaning = set(right)

    def format_line(row: Sequence[str], brush: Callable[[str, str], str] | None) -> str:
        parts = []
        for index, text in enumerate(row):
            # Pad by the visible width: colour sequences take no columns.
            space = " " * (widths[index] - measure_width(text))
            shown = brush(text, text) if brush and index == paint else text
            parts.append(space + shown if index in leaning else shown + space)
        return "  ".join(parts).rstrip()

    return "\n".join(
        [format_line(headings, None), *(format_line(row, format_status) for row in cells)]
    )


def format_facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Return lines of names and values; pairs without a value are left out."""
    known = [(name, to_one_line(value)) for name, value in pairs if value not in (None, "")]
    widest = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name:<{widest}}  {value}" for name, value in known)


def format_names(names: list[str]) -> str:
    """Return the first names in one line, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def measure_width(text: str) -> int:
    """Return how many terminal columns the text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(2 if east_asian_width(c) in "WF" else 0 if combining(c) else 1 for c in text)


def measure_columns() -> int:
    """Return the width for help texts."""
    known = os.environ.get("COLUMNS", "")
    try:
        wide = int(known) if known.isdecimal() else os.get_terminal_size().columns
    except (OSError, ValueError):
        wide = 80
    return max(50, min(wide, 100) - 2)


def format_seconds(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-"
    if value < 60:
        return f"{value:.1f}s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def format_tokens(usage: object) -> str:
    if not isinstance(usage, dict) or not usage:
        return "-"
    known = [usage.get("input_tokens"), usage.get("output_tokens")]
    return "/".join("?" if each is None else str(each) for each in known)


def _escape_character(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "surrogatepass").decode("ascii")
