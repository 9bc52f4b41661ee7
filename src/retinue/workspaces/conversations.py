"""Conversation of a subagent over all attempts, kept out of the child's reach."""

from __future__ import annotations

from pathlib import Path

from retinue.files import NotPlainFile, list_entries, read_plain
from retinue.workspaces.child_files import UnreadableFile, read_child_file

CONVERSATION = "conversation.jsonl"
LIMIT_BYTES = 16 * 1024 * 1024


def read_conversation(folder: Path) -> bytes:
    """Return the lines of all attempts of a subagent, in order."""
    attempts = folder / "runtime" / "attempts"
    numbers = sorted(int(each.name) for each in list_entries(attempts) if each.name.isdecimal())
    places = [attempts / str(number) / "full_logs" for number in numbers]
    return b"".join(_read_lines(place) for place in (*places, folder / "full_logs"))


def read_last_attempt(folder: Path) -> bytes:
    """Return the lines of the current attempt."""
    return _read_lines(folder / "full_logs")


def read_own(path: Path) -> bytes:
    """Return the content of one of Retinue's files; empty if it is missing or not a plain file."""
    try:
        return read_plain(path)
    except (FileNotFoundError, NotPlainFile):
        return b""


def _read_lines(logs: Path) -> bytes:
    """Return the whole lines of a conversation."""
    try:
        data = read_child_file(logs, CONVERSATION, LIMIT_BYTES, cut=True).data
    except UnreadableFile:
        return b""
    # The child's end, or the limit, may have cut the last line.
    return data[: data.rfind(b"\n") + 1]
