"""A run as it happens: its events, and below them a row for each subagent."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from retinue.domain.errors import RetinueError
from retinue.doors.cli import render
from retinue.doors.cli.session import Session, connect
from retinue.doors.cli.timeline import Condensed

if TYPE_CHECKING:
    from retinue.steward.client import Client

AT_WORK = ("pending", "running", "blocked")
REFRESH_SECONDS = 1.0  # of elapsed times; anything else is shown as it happens
MOST_ROWS = 12
ASKED = "gate.blocked"
HEADING = ("subagent", "status", "phase", "done", "tokens", "cost", "time")
WIDTHS = (18, 10, 14, 4, 7, 8, 6)
RIGHT = 3  # columns from here on are numbers
# What the rows say already, or what follows by itself from what is shown.
NOT_SHOWN = {
    *("task.created", "task.closed", "run.started", "run.ended"),
    *("agent.subagent_started", "agent.started", "agent.completed", "agent.subagent_attempt"),
    *("agent.subagent_waiting_for_merge", "agent.output_accepted"),
}


class Live:
    """On standard error, while something else is awaited; where no terminal is, only questions."""

    def __init__(self, session: Session, task: str, *, gates: bool) -> None:
        """`gates`: whether what is asked holds the run up, until somebody answers."""
        self._session = session
        self._task = task
        self._gates = gates
        self._over = Event()
        self._painting = Lock()
        self._rows = 0  # how many lines of the table are on the screen
        self._shown = not session.json and sys.stderr is not None and sys.stderr.isatty()
        self._clients: list[Client] = []
        self._followers: list[Thread] = []

    def __enter__(self) -> Live:
        courses = [self._follow, self._refresh] if self._shown else []
        if self._shown:
            sys.stderr.write(f"{self._task}: Ctrl-C cancels, twice kills\n")
        elif self._gates and sys.stderr is not None:
            courses = [self._listen]
        with suppress(RetinueError, OSError):
            self._clients = [connect(self._session.folder()) for _ in courses]
            self._followers = [Thread(target=course, daemon=True) for course in courses]
        for follower in self._followers:
            follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The last word is the table as it stands at the end."""
        self._over.set()
        if self._followers:
            self._clients[0].hang_up()
            for follower in self._followers:
                follower.join(timeout=2.0)
        if self._followers and self._shown:
            self._paint()
        for client in self._clients:
            client.close()

    def _follow(self) -> None:
        """Each event as one line, above the rows."""
        condensed = Condensed(lanes=True, colour=True)
        with suppress(RetinueError, OSError, ValueError):
            for event in self._clients[0].stream("task.events", task=self._task, follow=True):
                lines = [f"{_fitted(line)}\n" for line in condensed.lines(event)]
                if self._gates and event.get("type") == ASKED:
                    lines.append(_question(self._task, event))
                self._paint("" if event.get("type") in NOT_SHOWN else "".join(lines))

    def _listen(self) -> None:
        """Each question as one line."""
        about: dict[str, Any] = {"task": self._task, "type_prefix": ASKED, "follow": True}
        with suppress(RetinueError, OSError, ValueError):
            for event in self._clients[0].stream("task.events", **about):
                sys.stderr.write(_question(self._task, event))
                sys.stderr.flush()

    def _refresh(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            self._paint()

    def _paint(self, lines: str = "") -> None:
        """Whoever comes first paints first: two at once would tear the screen."""
        with self._painting:
            table = self._table()
            clear = f"\x1b[{self._rows}A\x1b[J" if self._rows else ""
            self._rows = len(table)
            sys.stderr.write(clear + lines + "".join(f"{line}\n" for line in table))
            sys.stderr.flush()

    def _table(self) -> list[str]:
        """As many rows as leave room for events; those at work first, where not all have room."""
        try:
            rows = self._clients[1].call("subagent.list", task=self._task, limit=100)
        except (RetinueError, OSError, ValueError):
            return []
        most = min(MOST_ROWS, max(1, shutil.get_terminal_size().lines // 2 - 2))
        first = sorted(rows, key=lambda row: row["status"] not in AT_WORK)[:most]
        lines = [_line(HEADING), *(_row(row) for row in rows if row in first)]
        left = len(rows) - len(first)
        return [*lines, f"and {left} more"] if left else lines


def _question(task: str, event: dict[str, Any]) -> str:
    """What is asked, and how to answer: whole, however narrow the screen is."""
    payload = event.get("payload") or {}
    asked = render.one_line("; ".join(map(str, payload.get("questions") or ())) or "an answer")
    gate = render.one_line(payload.get("gateId", "?"))
    who = render.one_line(event.get("agentInstance") or "?")
    return f"{who} asks: {asked} (retinue gate approve {task} {gate} --answer TEXT)\n"


def _row(row: dict[str, Any]) -> str:
    usage = row.get("token_usage") or {}
    tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    percentage = row.get("completion_percentage")
    texts = (
        render.one_line(row["agentInstance"]),
        render.one_line(row["status"]),
        render.one_line(row.get("phase") or ""),
        "" if percentage is None else f"{percentage:.0f}%",
        f"{tokens:,}",
        f"${usage.get('estimated_cost') or 0.0:.4f}",
        f"{row['elapsed_seconds']:.0f} s",
    )
    return _line(texts, status=row["status"])


def _line(texts: tuple[str, ...], status: str = "") -> str:
    """In columns, cut to the width of the screen: a row that wraps could not be painted over."""
    cells = [
        text[:width].rjust(width) if column >= RIGHT else text[:width].ljust(width)
        for column, (text, width) in enumerate(zip(texts, WIDTHS, strict=True))
    ]
    whole = _fitted("  ".join(cells))
    return whole.replace(cells[1], render.status(status, cells[1]), 1) if status else whole


def _fitted(line: str) -> str:
    """What is longer than the screen is wide is cut; colour takes no room and is kept whole."""
    width, room, kept = shutil.get_terminal_size().columns - 1, 0, ""
    for number, part in enumerate(render.ESCAPE.split(line)):
        if number % 2:
            kept += part
        else:
            kept += part[: width - room]
            room = min(width, room + len(part))
    return kept
