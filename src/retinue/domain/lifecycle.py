"""A subagent's states, the moves between them, and how events make them.

There is no way to set a state: a recorded event moves it, or is refused.

    created ──> running ──> waiting_for_merge ──> completed ──┐
                   │                 │                        ├──> closed
                   └─────────────────┴──────────> failed ─────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from retinue.domain import event as events
from retinue.domain.changing import changed
from retinue.domain.errors import IllegalTransition
from retinue.domain.event import Event


class State(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    WAITING_FOR_MERGE = "waiting_for_merge"
    COMPLETED = "completed"
    FAILED = "failed"
    CLOSED = "closed"


MOVES: Mapping[State, frozenset[State]] = {
    State.CREATED: frozenset({State.RUNNING}),
    State.RUNNING: frozenset({State.WAITING_FOR_MERGE, State.FAILED}),
    State.WAITING_FOR_MERGE: frozenset({State.COMPLETED, State.FAILED}),
    State.COMPLETED: frozenset({State.CLOSED}),
    State.FAILED: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}

LEADS_TO: Mapping[str, State] = {
    events.SUBAGENT_STARTED: State.RUNNING,
    events.SUBAGENT_WAITING: State.WAITING_FOR_MERGE,
    events.SUBAGENT_FAILED: State.FAILED,
    events.OUTPUT_ACCEPTED: State.COMPLETED,
    events.MERGED: State.COMPLETED,
    events.COPIED: State.COMPLETED,
    events.MERGE_FAILED: State.FAILED,
    events.SUBAGENT_CLOSED: State.CLOSED,
}

JOIN = "join"  # what output awaits that its run joins by itself: it settles with that

WHILE_RUNNING = frozenset(
    {
        events.SUBAGENT_ATTEMPT,
        events.STARTED,
        events.COMPLETED,
        events.FAILED,
        events.BLOCKED,
        events.CANCELLED,
    }
)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a subagent stands: the fold of its events, nothing else."""

    state: State = State.CREATED
    attempt: int = 0  # the newest attempt's number
    in_attempt: bool = False  # that attempt has started and has no recorded end
    tries: int = 0  # ended attempts that ran anything, since it was last blocked
    blocked: bool = False
    cancel_by: str = ""  # who asked for the end, before it came
    cancel_reason: str = ""
    cancelled: bool = False
    settled_seq: int = 0  # the event that last gave a waiter something to see
    final_status: str = ""
    close_reason: str = ""

    @property
    def holds_slot(self) -> bool:
        return self.state in _BEFORE_ITS_END and not self.blocked

    @property
    def ended(self) -> bool:
        """Whether it has come to its end; all that can follow is that it is joined and closed."""
        return self.state not in _BEFORE_ITS_END

    @property
    def settled(self) -> bool:
        return self.settled_seq > 0 and (self.blocked or self.state not in _BEFORE_ITS_END)

    @property
    def status(self) -> str:
        """The one word that people and agents are shown."""
        if self.state is State.CREATED:
            return "pending"
        if self.state is State.RUNNING:
            return "blocked" if self.blocked else "running"
        if self.state is State.WAITING_FOR_MERGE and not self.settled_seq:
            return "running"  # its end is not known before its output is joined
        if self.cancelled:
            return "cancelled"
        if self.state is State.FAILED or self.final_status == "failed":
            return "failed"
        return "completed"


_BEFORE_ITS_END = (State.CREATED, State.RUNNING)

ROSTER_STATES: Mapping[str, str] = {
    "pending": "pending",
    "running": "active",
    "blocked": "awaiting",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "failed",
}


def require_move(current: State, to: State) -> None:
    """Raises:
    IllegalTransition: the table has no such move.
    """
    if to not in MOVES[current]:
        raise IllegalTransition(f"a subagent that is {current} cannot become {to}")


def fold(standing: Standing, event: Event, seq: int) -> Standing:
    """Where the subagent stands after this event.

    Raises:
        IllegalTransition: the event does not fit where it stands now.
    """
    kind = event.type
    if kind in WHILE_RUNNING and standing.state is not State.RUNNING:
        raise IllegalTransition(f"{kind} cannot follow while {standing.state}")
    if kind in LEADS_TO:
        require_move(standing.state, LEADS_TO[kind])
        standing = changed(standing, state=LEADS_TO[kind])
    return _details(standing, event, seq)


def _details(standing: Standing, event: Event, seq: int) -> Standing:
    match event.type:
        case events.STARTED:
            return changed(standing, attempt=event.attempt, in_attempt=True, blocked=False)
        case events.COMPLETED | events.FAILED:
            return changed(standing, attempt=event.attempt, in_attempt=False)
        case events.SUBAGENT_ATTEMPT:
            return changed(standing, tries=standing.tries + (event.payload.get("ran") is True))
        case events.CANCELLED:
            return changed(standing, in_attempt=False, blocked=False, cancelled=True)
        case events.BLOCKED:
            return changed(standing, in_attempt=False, blocked=True, tries=-1, settled_seq=seq)
        case events.GATE_ANSWERED:  # its slot is held again from here on
            return changed(standing, blocked=False)
        case events.CANCEL_REQUESTED:
            reason = str(event.payload.get("reason", ""))
            return changed(standing, cancel_by=event.by, cancel_reason=reason)
        case events.SUBAGENT_WAITING if event.payload.get("awaits") == JOIN:
            return changed(standing, blocked=False, settled_seq=0)
        case events.SUBAGENT_WAITING | events.SUBAGENT_FAILED:
            return changed(standing, blocked=False, settled_seq=seq)
        case events.OUTPUT_ACCEPTED | events.MERGED | events.COPIED | events.MERGE_FAILED:
            return changed(standing, settled_seq=standing.settled_seq or seq)
        case events.SUBAGENT_CLOSED:
            return changed(
                standing,
                final_status=str(event.payload["final_status"]),
                close_reason=str(event.payload["close_reason"]),
            )
    return standing
