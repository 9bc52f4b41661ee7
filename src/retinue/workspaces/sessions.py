"""What was said in a subagent, from its first attempt on, kept out of the child's reach."""

from __future__ import annotations

from pathlib import Path

from retinue.files import NotPlain, entries, read_plain
from retinue.workspaces.reader import Unreadable, read_child_file

CONVERSATION = "conversation.jsonl"
LIMIT_BYTES = 16 * 1024 * 1024


def told(folder: Path) -> bytes:
    """The lines of every attempt of a subagent in its folder, in order."""
    attempts = folder / "runtime" / "attempts"
    numbers = sorted(int(each.name) for each in entries(attempts) if each.name.isdecimal())
    places = [attempts / str(number) / "full_logs" for number in numbers]
    return b"".join(_lines(place) for place in (*places, folder / "full_logs"))


def last_told(folder: Path) -> bytes:
    """The lines of the present attempt alone."""
    return _lines(folder / "full_logs")


def read_own(path: Path) -> bytes:
    """A file of ours; nothing where it is not there, or something else is."""
    try:
        return read_plain(path)
    except (FileNotFoundError, NotPlain):
        return b""


def _lines(logs: Path) -> bytes:
    """Whole lines only: the last one may have been cut by the child's end, or by our limit."""
    try:
        data = read_child_file(logs, CONVERSATION, LIMIT_BYTES, cut=True).data
    except Unreadable:
        return b""
    return data[: data.rfind(b"\n") + 1]
