"""Events at a real terminal: coloured by us, obeyed by nobody else's word."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli import CONFIG, Cli
from support.repositories import plan, step
from support.roots import Root, holder, sh, until

ESCAPES = re.compile(rb"\x1b(\[[0-9;]*[A-Za-z]|.)", re.DOTALL)
OURS = re.compile(rb"\[(0|1|2|3[1-6])m")
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202ered"


def at_a_terminal(
    *words: str, folder: Path | None = None, watch: Callable[[bytes], object] = bool
) -> bytes:
    """All that the command wrote to a terminal of its own; `watch` is given each state of it."""
    ours, theirs = pty.openpty()
    environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "retinue", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    try:
        while piece := _read(ours):
            said += piece
            watch(said)
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


def screen(said: bytes) -> list[str]:
    """The lines that a terminal of endless length shows in the end."""
    lines = [""]
    for part in re.split(rb"(\x1b\[[0-9;]*[A-Za-z]|\r\n|\r)", said):
        if part == b"\r\n":
            lines.append("")
        elif part.endswith(b"A") and part.startswith(b"\x1b["):
            del lines[-1 - int(part[2:-1]) :]  # what follows is always the erasing of the rest
            lines.append("")
        elif part == b"\r":
            lines[-1] = ""  # what follows overwrites it
        elif not part.startswith(b"\x1b["):
            lines[-1] += part.decode()
    return lines


def test_a_run_shows_one_table_also_when_its_steward_is_lost(cli: Cli) -> None:
    waits = step("waits", "while ! [ -e go ]; do sleep 0.05; done; echo done")
    (cli.folder / "p.yaml").write_text(plan(waits, base=None))
    (cli.folder / "c.yaml").write_text(CONFIG)

    shown = threading.Event()

    def watch(said: bytes) -> None:
        if any(line.split()[:2] == ["waits", "running"] for line in screen(said)):
            shown.set()

    def lose_the_steward() -> None:
        assert shown.wait(20)
        steward = until(lambda: holder(cli.root))
        os.kill(steward, signal.SIGKILL)
        until(lambda: holder(cli.root) not in (None, steward))
        (workspace,) = cli.root.glob("tasks/*/agents/waits/workspace")
        (workspace / "go").touch()

    loses = threading.Thread(target=lose_the_steward)
    loses.start()
    words = ("run", "--plan", "p.yaml", "--config", "c.yaml")
    seen = screen(at_a_terminal(*words, folder=cli.folder, watch=watch))
    loses.join()
    assert "note: the steward ended during the request: continuing with the next one" in seen
    assert [line.split() for line in seen if line.startswith("subagent  ")] == [
        ["subagent", "status", "phase", "done", "tokens", "cost", "time"]
    ]
    assert "waits  result: completed" in seen


def test_a_table_that_is_watched_leaves_the_terminal_as_it_was_also_if_it_is_terminated(
    root: Root, task: str
) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "retinue", "--root", str(root.path), "top"]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while piece := _read(ours):
            if b"Ctrl-C ends" in piece and b"Ctrl-C ends" not in said:
                process.send_signal(signal.SIGTERM)
            said += piece
    finally:
        os.close(ours)
    process.wait(20)
    assert said.startswith(b"\x1b[?1049h\x1b[?25l") and said.endswith(b"\x1b[?25h\x1b[?1049l")
