"""The commands `retinue timeline` and `retinue top`, and the formatting of events as lines."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from retinue.cli import render, tables
from retinue.cli.options import TASK, CliCommand, select_given
from retinue.cli.steward_session import CliSession

if TYPE_CHECKING:
    from retinue.client.blocking_client import Client


MOST_LANES = 12
CREATED = "agent.subagent_created"
CLOSED = "agent.subagent_closed"
# Part of an event's type -> the status whose colour the event gets
TONES = {
    "fail": "failed",
    "exceeded": "failed",
    "denied": "failed",
    "cancel": "cancelled",
    "block": "blocked",
    "gate.": "blocked",
    "completed": "completed",
    "merged": "completed",
    "accepted": "completed",
    "copied": "completed",
    "started": "running",
}


class Lanes:
    """Columns of a timeline, one for each open subagent."""

    def __init__(self) -> None:
        self._lanes: list[str | None] = []

    def render_event(self, event: dict[str, Any]) -> str:
        """Return the columns at this event: o creates a subagent, * is an event, x closes it."""
        name = event.get("agentInstance")
        at = self._place(name) if name else None
        marks = ["|" if owner else " " for owner in self._lanes]
        if at is not None:
            kind = event.get("type")
            marks[at] = "o" if kind == CREATED else "x" if kind == CLOSED else "*"
            if kind == CLOSED:
                self._lanes[at] = None
        return "".join(marks).rstrip()

    def _place(self, name: str) -> int | None:
        if name in self._lanes:
            return self._lanes.index(name)
        # Reuse the column of a closed subagent before adding one.
        if None in self._lanes:
            at = self._lanes.index(None)
            self._lanes[at] = name
            return at
        if len(self._lanes) == MOST_LANES:
            return None
        self._lanes.append(name)
        return len(self._lanes) - 1


class EventFormatter:
    """Formatter of events, one line each."""

    def __init__(self, *, expand: bool = False, lanes: bool = False, colour: bool = False) -> None:
        self._expand = expand
        self._colour = colour
        self._lanes = Lanes() if lanes else None
        self._start: datetime | None = None

    def format_event(self, event: dict[str, Any]) -> Iterator[str]:
        payload = event.get("payload") or {}
        kind = render.to_one_line(event.get("type", "?"))
        said = render.to_one_line(payload.get("summary", ""))
        stamp = render.to_one_line(event.get("ts", ""))
        if self._lanes is None:
            kind = self._format_kind(kind, 32)
            yield f"{event.get('seq', 0):>5}  {stamp[11:23]}  {kind}  {said}"
        else:
            drawn = self._lanes.render_event(event)
            kind = self._format_kind(kind.removeprefix("agent."), 26)
            yield f"{self._format_offset(stamp):>10}  {drawn:<6}  {kind}  {said}"
        if self._expand:
            whole = json.dumps(event, indent=2, ensure_ascii=False)
            yield from (f"            {line}" for line in render.escape_text(whole).split("\n"))

    def _format_kind(self, kind: str, wide: int) -> str:
        tone = next((tone for part, tone in TONES.items() if part in kind), "")
        return render.format_status(tone, f"{kind:<{wide}}") if self._colour else f"{kind:<{wide}}"

    def _format_offset(self, stamp: str) -> str:
        try:
            moment = datetime.fromisoformat(stamp)
        except ValueError:
            return "?"
        self._start = self._start or moment
        return f"{(moment - self._start).total_seconds():+.3f}"


def show_events(
    session: CliSession, events: Iterable[dict[str, Any]], view: EventFormatter, *, at_once: bool
) -> None:
    """Print the events; with `at_once`, flush after each."""
    for event in events:
        if session.json:
            render.print_json(event)
        else:
            for line in view.format_event(event):
                render.print_line(line)
        if at_once:
            render.flush()


@click.command(cls=CliCommand, example="retinue timeline site-1a2b3c --expand")
@TASK
@click.option("--expand", is_flag=True, help="Show each event as JSON, too.")
@click.option("--follow", is_flag=True, help="Wait for new events until the task is closed.")
@click.pass_obj
def timeline(session: CliSession, task: str, expand: bool, follow: bool) -> None:
    """Show the events of a task, with the time since its first event.

    Each open subagent has a column: o marks its creation, * an event, x its close.
    """
    with session.open_client() as client:
        events = client.stream("task.events", task=task, **select_given(follow=follow))
        view = EventFormatter(expand=expand, lanes=True, colour=render.has_colour())
        show_events(session, events, view, at_once=follow)


# The steward answers at the next change, or after this time so that elapsed times go on.
REFRESH_SECONDS = 1
MOST_TASKS = 50
MOST_CLOSED = 5  # newest closed subagents of an open task
CLEAR = "\x1b[H\x1b[J"
ENTER = "\x1b[?1049h\x1b[?25l"  # other screen, no cursor
LEAVE = "\x1b[?25h\x1b[?1049l"
HEADINGS = ("TASK", "SUBAGENT", "STATUS", "PHASE", "DONE", "TOKENS", "COST", "TIME")
NUMBERS = (4, 5, 6, 7)


@click.command(cls=CliCommand, example="retinue top\nretinue top --once")
@click.option("--once", is_flag=True, help="Print the table once and exit.")
@click.option("--all", "everyone", is_flag=True, help="Also show closed tasks.")
@click.pass_obj
def top(session: CliSession, once: bool, everyone: bool) -> None:
    """Watch the subagents of a root in the terminal; Ctrl-C ends it.

    The table changes as soon as an event is recorded. Without a terminal, or with --once, it
    is printed once.
    """
    with session.open_client() as client:
        if once or session.json or not render.is_read_by_a_person():
            session.answer(_read_rows(client, everyone), _format_rows)
            return
        _watch(client, everyone)


def _watch(client: Client, everyone: bool) -> None:
    """Draw the table at every change until the user interrupts."""
    # Such as of `timeout 60 retinue top`: it must not leave its screen behind.
    before = signal.signal(signal.SIGTERM, _interrupt)
    sys.stdout.write(ENTER)
    try:
        seen = 0
        while True:
            rows = _read_rows(client, everyone)
            sys.stdout.write(CLEAR + _fit_to_screen(rows))
            sys.stdout.flush()
            # Blocks in the steward until something changes.
            found = client.call("look.changes", after=seen, wait_seconds=REFRESH_SECONDS)
            seen = found["changes"]
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _read_rows(client: Client, everyone: bool) -> list[dict[str, Any]]:
    """Return a row for each subagent of open tasks, those at work first."""
    rows: list[dict[str, Any]] = []
    for task in client.call("task.list", limit=MOST_TASKS):
        if task["state"] != "open" and not everyone:
            continue
        given = select_given(task=task["task_id"], limit=MOST_CLOSED)
        found = client.call("subagent.list", **given)
        rows += [row | {"task_id": task["task_id"]} for row in found]
    return sorted(rows, key=lambda row: row["status"] not in tables.AT_WORK)


def _format_rows(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no subagents in open tasks"
    return render.format_table(HEADINGS, map(_format_row, rows), paint=2, right=NUMBERS)


def _format_row(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["task_id"],
        row["agentInstance"],
        row["status"],
        *tables.format_progress(row),
        render.format_seconds(row.get("elapsed_seconds")),
    )


def _fit_to_screen(rows: list[dict[str, Any]]) -> str:
    """Return the heading and as many rows as the screen has lines; cut lines that are too long."""
    size = shutil.get_terminal_size()
    work = sum(row["status"] in tables.AT_WORK for row in rows)
    spent = sum((row.get("token_usage") or {}).get("estimated_cost") or 0.0 for row in rows)
    lines = [
        render.format_strong(f"{work} at work, {len(rows)} shown, ${spent:.4f}; Ctrl-C ends"),
        "",
        *_format_rows(rows).split("\n"),
    ]
    left = len(lines) - (size.lines - 1)
    if left > 0:
        lines = [*lines[: size.lines - 2], f"and {left + 1} more"]
    return "\n".join(render.cut_to_screen(line) for line in lines)
