"""States, transitions, and the events that cause them."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core import events
from retinue.core.errors import IllegalTransition
from retinue.core.events import Event
from retinue.core.ids import SubagentId
from retinue.core.lifecycle import (
    MOVES,
    ROSTER_STATES,
    Standing,
    State,
    fold,
    require_move,
)

CLOSED = {"final_status": "failed", "close_reason": "timeout"}
LEGAL = {
    ("created", "running"),
    ("running", "waiting_for_merge"),
    ("running", "failed"),
    ("waiting_for_merge", "completed"),
    ("waiting_for_merge", "failed"),
    ("completed", "closed"),
    ("failed", "closed"),
}
EVERY_TYPE = [
    value
    for name, value in vars(events).items()
    if name.isupper() and isinstance(value, str) and value.startswith(("agent.", "gate."))
]


def event(kind: str, attempt: int = 1, by: str = "steward", **payload: object) -> Event:
    return Event(
        type=kind,
        subagent=SubagentId("bio"),
        attempt=attempt,
        by=by,
        summary="x",
        payload=payload or (CLOSED if kind == events.SUBAGENT_CLOSED else {}),
    )


def after(*kinds: str | Event) -> Standing:
    standing = Standing()
    for seq, kind in enumerate(kinds, start=2):
        each = event(kind) if isinstance(kind, str) else kind
        standing = fold(standing, each, seq)
    return standing


RUNNING = (events.SUBAGENT_STARTED, events.STARTED)
DELIVERED = (*RUNNING, events.COMPLETED, events.SUBAGENT_ATTEMPT, events.SUBAGENT_WAITING)
FAILED = (*RUNNING, events.FAILED, events.SUBAGENT_ATTEMPT, events.SUBAGENT_FAILED)
BLOCKED = (*RUNNING, events.BLOCKED, events.SUBAGENT_ATTEMPT, events.GATE_BLOCKED)


@pytest.mark.requirement("R105")
def test_the_states_are_the_six_of_the_contract() -> None:
    assert [state.value for state in State] == [
        "created",
        "running",
        "waiting_for_merge",
        "completed",
        "failed",
        "closed",
    ]


@pytest.mark.requirement("R79", "R105", "R143")
@pytest.mark.parametrize(("current", "to"), list(product(State, State)))
def test_only_the_moves_of_the_table_are_legal(current: State, to: State) -> None:
    if (current, to) in LEGAL:
        require_move(current, to)
    else:
        with pytest.raises(IllegalTransition, match=f"{current} cannot become {to}"):
            require_move(current, to)


def test_every_state_but_the_last_leads_somewhere() -> None:
    assert set(MOVES) == set(State)
    assert [state for state in State if not MOVES[state]] == [State.CLOSED]


@pytest.mark.parametrize(
    ("story", "status", "state"),
    [
        ((), "pending", "created"),
        (RUNNING, "running", "running"),
        (BLOCKED, "blocked", "running"),
        ((*BLOCKED, events.GATE_ANSWERED), "running", "running"),
        (DELIVERED, "waiting_for_merge", "waiting_for_merge"),
        ((*DELIVERED, events.OUTPUT_ACCEPTED), "completed", "completed"),
        ((*DELIVERED, events.MERGE_FAILED), "failed", "failed"),
        (FAILED, "failed", "failed"),
        ((*FAILED, events.SUBAGENT_CLOSED), "failed", "closed"),
        ((*RUNNING, events.CANCELLED, events.SUBAGENT_FAILED), "cancelled", "failed"),
        ((*BLOCKED, events.CANCELLED, events.SUBAGENT_FAILED), "cancelled", "failed"),
    ],
)
@pytest.mark.requirement("R28")
def test_status_is_computed_from_the_events_alone(
    story: tuple[str, ...], status: str, state: str
) -> None:
    standing = after(*story)
    assert (standing.status, standing.state) == (status, state)


@pytest.mark.requirement("R30", "R31", "R32", "R33", "R34")
def test_every_status_has_a_roster_state() -> None:
    assert dict(ROSTER_STATES) == {
        "pending": "pending",
        "running": "active",
        "blocked": "awaiting",
        "waiting_for_merge": "active",
        "completed": "completed",
        "failed": "failed",
        "cancelled": "failed",
    }


@pytest.mark.parametrize(
    "kind", [events.STARTED, events.COMPLETED, events.FAILED, events.BLOCKED, events.CANCELLED]
)
@pytest.mark.parametrize("story", [(), FAILED, (*FAILED, events.SUBAGENT_CLOSED), DELIVERED])
def test_attempt_events_are_refused_unless_running(story: tuple[str, ...], kind: str) -> None:
    with pytest.raises(IllegalTransition):
        fold(after(*story), event(kind), 99)


@pytest.mark.requirement("R113", "R132")
@given(st.lists(st.sampled_from(EVERY_TYPE), max_size=4))
def test_a_closed_subagent_stays_closed(kinds: list[str]) -> None:
    standing = after(*FAILED, events.SUBAGENT_CLOSED)
    for kind in kinds:
        try:
            standing = fold(standing, event(kind), 99)
        except IllegalTransition:
            continue
        assert standing.state is State.CLOSED
        assert (standing.final_status, standing.close_reason) == ("failed", "timeout")


@given(st.lists(st.sampled_from(EVERY_TYPE), max_size=25))
def test_any_legal_sequence_follows_the_order_of_states(kinds: list[str]) -> None:
    standing, visited = Standing(), [State.CREATED]
    for seq, kind in enumerate(kinds, start=1):
        try:
            standing = fold(standing, event(kind), seq)
        except IllegalTransition:
            continue
        if standing.state is not visited[-1]:
            visited.append(standing.state)
    pairs = list(pairwise(visited))
    assert set(pairs) <= LEGAL
    assert len(visited) == len(set(visited))


def test_a_refused_event_changes_nothing() -> None:
    standing = after(*RUNNING)
    with pytest.raises(IllegalTransition):
        fold(standing, event(events.SUBAGENT_CLOSED), 9)
    assert standing == after(*RUNNING)


@pytest.mark.parametrize(
    ("story", "holds"),
    [
        ((), True),
        (RUNNING, True),
        (BLOCKED, False),
        ((*BLOCKED, events.GATE_ANSWERED), True),
        (DELIVERED, False),
        (FAILED, False),
    ],
)
@pytest.mark.requirement("R23")
def test_a_slot_is_held_until_settled_except_while_blocked(
    story: tuple[str, ...], holds: bool
) -> None:
    assert after(*story).holds_slot is holds


def test_each_settling_has_its_own_sequence_number() -> None:
    blocked = after(*BLOCKED)
    assert blocked.settled and blocked.settled_seq == 4
    again = after(*BLOCKED, events.GATE_ANSWERED, event(events.STARTED, attempt=2))
    assert not again.settled
    done = after(
        *BLOCKED, events.GATE_ANSWERED, event(events.STARTED, attempt=2), events.SUBAGENT_FAILED
    )
    assert done.settled and done.settled_seq > blocked.settled_seq


@pytest.mark.parametrize("ran", [True, False, None, 1, "yes"])
def test_only_an_attempt_that_ran_something_counts(ran: Any) -> None:
    standing = after(*RUNNING, event(events.SUBAGENT_ATTEMPT, ran=ran))
    assert standing.tries == (1 if ran is True else 0)


def test_blocking_resets_the_retries() -> None:
    ran = event(events.SUBAGENT_ATTEMPT, ran=True)
    standing = after(*RUNNING, ran, ran, events.BLOCKED, ran)
    assert standing.tries == 0


def test_the_cancelling_party_is_remembered() -> None:
    asked = event(events.CANCEL_REQUESTED, by="parent", reason="enough")
    standing = after(*RUNNING, asked)
    assert (standing.cancel_by, standing.cancel_reason, standing.cancelled) == (
        "parent",
        "enough",
        False,
    )
    assert standing.status == "running"
