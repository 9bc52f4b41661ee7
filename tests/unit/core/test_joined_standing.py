"""When a subagent with output to be joined settles."""

from __future__ import annotations

import pytest

from retinue.core import events
from retinue.core.events import Event
from retinue.core.ids import SubagentId
from retinue.core.lifecycle import JOIN, Standing, State, fold

RUNNING = Standing(state=State.RUNNING, attempt=1, settled_seq=3)  # it had asked something before
BOTH = {"final_status": "completed", "close_reason": "merged"}


def after(standing: Standing, *steps: tuple[str, dict[str, object]]) -> Standing:
    for seq, (kind, payload) in enumerate(steps, start=10):
        event = Event(type=kind, summary="", subagent=SubagentId("a"), payload=payload)
        standing = fold(standing, event, seq)
    return standing


@pytest.mark.parametrize(
    ("join", "state", "status"),
    [
        (events.MERGED, State.COMPLETED, "completed"),
        (events.COPIED, State.COMPLETED, "completed"),
        (events.OUTPUT_ACCEPTED, State.COMPLETED, "completed"),
        (events.MERGE_FAILED, State.FAILED, "failed"),
    ],
)
@pytest.mark.requirement("R120", "R143")
def test_output_joined_by_its_run_settles_with_the_join(
    join: str, state: State, status: str
) -> None:
    waiting = after(RUNNING, (events.SUBAGENT_WAITING, {"awaits": JOIN}))
    assert (waiting.settled, waiting.status, waiting.holds_slot) == (
        False,
        "waiting_for_merge",
        False,
    )
    joined = fold(waiting, Event(type=join, summary="", subagent=SubagentId("a")), 11)
    assert (joined.settled_seq, joined.state, joined.status) == (11, state, status)


def test_output_that_waits_for_its_parent_settles_twice() -> None:
    waiting = after(RUNNING, (events.SUBAGENT_WAITING, {"awaits": "parent"}))
    assert (waiting.settled_seq, waiting.status) == (10, "waiting_for_merge")
    merged = Event(
        type=events.MERGED, summary="", subagent=SubagentId("a"), payload={"settles": True}
    )
    joined = fold(waiting, merged, 11)
    assert (joined.settled_seq, joined.status) == (11, "completed")


def test_an_event_of_an_earlier_version_keeps_its_meaning() -> None:
    waiting = after(RUNNING, (events.SUBAGENT_WAITING, {"awaits": "parent"}))
    closed = after(waiting, (events.MERGED, {}), (events.SUBAGENT_CLOSED, BOTH))
    assert (closed.settled_seq, closed.close_reason) == (10, "merged")
