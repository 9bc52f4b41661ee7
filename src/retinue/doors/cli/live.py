"""A run as it happens: its events, and a row for each subagent that is at work."""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any

from retinue.domain.errors import RetinueError
from retinue.doors.cli import render
from retinue.doors.cli.session import Session
from retinue.doors.cli.timeline import Condensed

AT_WORK = ("pending", "running", "blocked")
REFRESH_SECONDS = 1.0  # of elapsed times; anything else is shown as it happens


class Live:
    """On standard error, while something else is awaited; nothing where nobody looks."""

    def __init__(self, session: Session, task: str) -> None:
        self._session = session
        self._task = task
        self._over = Event()
        self._painting = Lock()
        self._rows = 0  # how many are on the screen
        self._shown = sys.stderr is not None and not session.json
        self._terminal = self._shown and sys.stderr.isatty()
        self._followers: list[Thread] = []

    def __enter__(self) -> Live:
        if self._shown:
            self._followers.append(Thread(target=self._follow, daemon=True))
        if self._terminal:
            sys.stderr.write(f"{self._task}: Ctrl-C cancels, twice kills\n")
            self._followers.append(Thread(target=self._refresh, daemon=True))
        for follower in self._followers:
            follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for follower in self._followers:
            follower.join(timeout=2.0)
        if self._terminal:
            self._paint()

    def _follow(self) -> None:
        """Each event as one line, above the rows."""
        condensed = Condensed()
        with suppress(RetinueError, OSError), self._session.client() as client:
            for event in client.stream("task.events", task=self._task, follow=True):
                lines = "".join(f"{line}\n" for line in condensed.lines(event))
                self._paint(lines)
                if self._over.is_set():
                    return

    def _refresh(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            self._paint()

    def _table(self) -> str:
        if not self._terminal or self._over.is_set():
            return ""
        with suppress(RetinueError, OSError), self._session.client() as client:
            rows = client.call("subagent.list", task=self._task, limit=20)
            lines = [
                _row(row) for row in rows if row["status"] in ("pending", "running", "blocked")
            ]
            self._rows = len(lines)
            return "".join(f"{line}\n" for line in lines)
        return ""

    def _cleared(self) -> str:
        """The cursor is where the rows began, and they are gone."""
        rows, self._rows = self._rows, 0
        return f"\x1b[{rows}A\x1b[J" if rows else ""

    def _paint(self, lines: str = "") -> None:
        """Whoever comes first paints first: two at once would tear the screen."""
        with self._painting:
            sys.stderr.write(self._cleared() + lines + self._table())
            sys.stderr.flush()


def _row(row: dict[str, Any]) -> str:
    usage = row.get("token_usage") or {}
    tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    cost = usage.get("estimated_cost") or 0.0
    percentage = row.get("completion_percentage")
    parts = [
        render.one_line(row["agentInstance"])[:24].ljust(24),
        render.status(row["status"]),
        render.one_line(row.get("phase") or "").ljust(15),
        ("" if percentage is None else f"{percentage:g} %").rjust(5),
        f"{tokens} tokens".rjust(14),
        f"${cost:.4f}",
        f"{row['elapsed_seconds']:.0f} s".rjust(6),
    ]
    return "  ".join(parts)
