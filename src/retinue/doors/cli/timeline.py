"""Events for people: one line each, all that was recorded on demand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import click

from retinue.doors.cli import render
from retinue.doors.cli.options import TASK, Verb, given
from retinue.doors.cli.session import Session

MOST_LANES = 12
CREATED = "agent.subagent_created"
CLOSED = "agent.subagent_closed"
TONES = {  # what is in an event's type -> the status whose colour it has
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
    """A column for each open subagent, so that what runs side by side is seen side by side."""

    def __init__(self) -> None:
        self._lanes: list[str | None] = []

    def draw(self, event: dict[str, Any]) -> str:
        """The columns as they stand at this event: o begins one, * is in it, x ends it."""
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
        if None in self._lanes:
            at = self._lanes.index(None)
            self._lanes[at] = name
            return at
        if len(self._lanes) == MOST_LANES:
            return None
        self._lanes.append(name)
        return len(self._lanes) - 1


class Condensed:
    """One line for each event; the same words for every view of them."""

    def __init__(self, *, expand: bool = False, lanes: bool = False, colour: bool = False) -> None:
        self._expand = expand
        self._colour = colour
        self._lanes = Lanes() if lanes else None
        self._start: datetime | None = None

    def lines(self, event: dict[str, Any]) -> Iterator[str]:
        payload = event.get("payload") or {}
        kind = render.one_line(event.get("type", "?"))
        said = render.one_line(payload.get("summary", ""))
        stamp = render.one_line(event.get("ts", ""))
        if self._lanes is None:
            kind = self._painted(kind, 32)
            yield f"{event.get('seq', 0):>5}  {stamp[11:23]}  {kind}  {said}"
        else:
            drawn, kind = self._lanes.draw(event), self._painted(kind.removeprefix("agent."), 26)
            yield f"{self._offset(stamp):>10}  {drawn:<6}  {kind}  {said}"
        if self._expand:
            whole = json.dumps(event, indent=2, ensure_ascii=False)
            yield from (f"            {line}" for line in render.plain(whole).split("\n"))

    def _painted(self, kind: str, wide: int) -> str:
        tone = next((tone for part, tone in TONES.items() if part in kind), "")
        return render.status(tone, f"{kind:<{wide}}") if self._colour else f"{kind:<{wide}}"

    def _offset(self, stamp: str) -> str:
        try:
            moment = datetime.fromisoformat(stamp)
        except ValueError:
            return "?"
        self._start = self._start or moment
        return f"{(moment - self._start).total_seconds():+.3f}"


def show_events(
    session: Session, events: Iterable[dict[str, Any]], view: Condensed, *, at_once: bool
) -> None:
    """Every event is shown; while they are followed, as soon as it comes."""
    for event in events:
        if session.json:
            render.say_json(event)
        else:
            for line in view.lines(event):
                render.say(line)
        if at_once:
            render.flush()


@click.command(cls=Verb, example="retinue timeline site-1a2b3c --expand")
@TASK
@click.option("--expand", is_flag=True, help="Show all that was recorded of each event.")
@click.option("--follow", is_flag=True, help="Go on until the task is closed.")
@click.pass_obj
def timeline(session: Session, task: str, expand: bool, follow: bool) -> None:
    """What happened in a task, by the time since it began.

    Each open subagent has a column: o begins it, * is an event in it, x closes it.
    """
    with session.client() as client:
        events = client.stream("task.events", task=task, **given(follow=follow))
        view = Condensed(expand=expand, lanes=True, colour=render.in_colour())
        show_events(session, events, view, at_once=follow)
