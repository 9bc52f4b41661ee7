"""What the lines of a log tell, as far as they can be believed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retinue.domain import event as events
from retinue.domain.errors import IllegalTransition
from retinue.domain.event import Event, Recorded
from retinue.domain.gate import RunOutcome
from retinue.domain.ids import TaskId
from retinue.domain.lifecycle import Standing, fold
from retinue.wire.event import event_from_json, event_to_line

# What is never the last event of a transaction: a log that ends with one was cut within.
WITHIN = frozenset(
    {
        events.SUBAGENT_STARTED,
        events.COMPLETED,
        events.FAILED,
        events.BLOCKED,
        events.CANCELLED,
        events.RUN_ENDED,
    }
)


@dataclass(frozen=True, kw_only=True)
class Story:
    """The events of one task from its first on, and what is wrong with the line after them."""

    lines: tuple[bytes, ...] = ()
    events: tuple[Recorded, ...] = ()
    damage: str = ""

    def continues(self, other: Story) -> bool:
        """Whether this one begins with all that the other tells."""
        return self.lines[: len(other.lines)] == other.lines

    def whole(self) -> Story:
        """The same without the beginning of a transaction whose end is not told."""
        end = len(self.events)
        while end and _is_within(self.events[end - 1].event):
            end -= 1
        return Story(lines=self.lines[:end], events=self.events[:end], damage=self.damage)


class _Teller:
    """Believes one line after the other, as long as each fits what was told before."""

    def __init__(self, task: TaskId) -> None:
        self._task = task
        self._run = ""
        self._known: dict[str, tuple[Recorded, Standing]] = {}

    def believe(self, seq: int, line: bytes) -> Recorded:
        """Raises:
        ValueError: what is wrong with the line.
        """
        recorded = _parsed(line)
        if recorded.seq != seq:
            raise ValueError(f"line holds event {recorded.seq} instead of {seq}")
        self._run = self._run or recorded.run
        if (recorded.task, recorded.run) != (self._task, self._run):
            raise ValueError("line belongs to another task or run")
        if seq == 1 and recorded.event.type != events.TASK_CREATED:
            raise ValueError("the first event does not create the task")
        self._follow(recorded)
        return recorded

    def _follow(self, recorded: Recorded) -> None:
        event = recorded.event
        if event.type == events.RUN_ENDED and event.payload.get("outcome") not in set(RunOutcome):
            raise ValueError("the run ended with no known outcome")
        if event.subagent is None:
            return
        if event.type == events.SUBAGENT_CREATED:
            if event.subagent in self._known or recorded.step_idx is None:
                raise ValueError(f"{event.subagent} was created before, or has no step")
            self._known[event.subagent] = recorded, Standing()
            return
        if event.subagent not in self._known:
            raise ValueError(f"{event.subagent} was never created")
        created, standing = self._known[event.subagent]
        same = (created.step_idx, created.contract_sha256)
        if (recorded.step_idx, recorded.contract_sha256) != same:
            raise ValueError(f"{event.subagent} has another step or contract than before")
        try:
            self._known[event.subagent] = created, fold(standing, event, recorded.seq)
        except (IllegalTransition, KeyError) as error:
            raise ValueError(f"the event does not fit: {error}") from None


def read_story(task: TaskId, lines: Iterable[bytes]) -> Story:
    """What the lines tell, up to the first that cannot be believed."""
    teller = _Teller(task)
    kept: list[bytes] = []
    told: list[Recorded] = []
    for number, line in enumerate(lines, start=1):
        try:
            told.append(teller.believe(number, line))
        except ValueError as error:
            return Story(lines=tuple(kept), events=tuple(told), damage=str(error))
        kept.append(line)
    return Story(lines=tuple(kept), events=tuple(told))


def to_lines(recorded: Sequence[Recorded]) -> list[bytes]:
    return [event_to_line(each) for each in recorded]


def _parsed(line: bytes) -> Recorded:
    if not line.endswith(b"\n"):
        raise ValueError("line is torn")
    if b"\0" in line:
        raise ValueError("line holds NUL bytes")
    try:
        recorded = event_from_json(json.loads(line))
        sound = event_to_line(recorded) == line and isinstance(recorded.event.attempt, int)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("line is not an event") from None
    if not sound:
        raise ValueError("line is not an event as retinue writes them")
    return recorded


def _is_within(event: Event) -> bool:
    if event.type == events.SUBAGENT_ATTEMPT:
        return event.payload.get("next") != "retry"
    return event.type in WITHIN
