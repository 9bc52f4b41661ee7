"""Events at a real terminal: coloured by us, obeyed by nobody else's word."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from support.roots import Root, sh

ESCAPES = re.compile(rb"\x1b(\[[0-9;]*[A-Za-z]|.)", re.DOTALL)
OURS = re.compile(rb"\[(0|1|2|3[1-6])m")
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202ered"


def at_a_terminal(*words: str) -> bytes:
    """All that the command wrote to a terminal of its own."""
    ours, theirs = pty.openpty()
    environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "retinue", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    try:
        while piece := _read(ours):
            said += piece
    finally:
        os.close(ours)
    assert process.wait(20) == 0, said
    return said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how a terminal says that its other end is closed
        return b""


@pytest.mark.parametrize("words", [("timeline", "--expand"), ("timeline",), ("task", "events")])
def test_nothing_a_child_wrote_moves_the_cursor(
    root: Root, task: str, words: tuple[str, ...]
) -> None:
    root.run(task, sh("printf 'x\\033[2Jy' >&2; exit 3", title=HOSTILE, subagent_id="bad"))
    said = at_a_terminal("--root", str(root.path), *words, task)
    assert all(OURS.fullmatch(found) for found in ESCAPES.findall(said)), said
    assert b"\x1b[31m" in said, "what failed is red"
    assert b"\\x1b[2J" in said, "and what it wrote can be seen"
    assert b"\x07" not in said and b"\x9b" not in said.replace("\u2026".encode(), b"")
