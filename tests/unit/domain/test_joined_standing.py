"""When output that has to be joined counts as settled."""

from __future__ import annotations

import pytest

from retinue.domain import event as events
from retinue.domain.event import Event
from retinue.domain.ids import SubagentId
from retinue.domain.lifecycle import JOIN, Standing, State, fold

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
def test_output_that_its_run_joins_settles_with_that(join: str, state: State, status: str) -> None:
    waiting = after(RUNNING, (events.SUBAGENT_WAITING, {"awaits": JOIN}))
    assert (waiting.settled, waiting.status, waiting.holds_slot) == (False, "running", False)
    joined = fold(waiting, Event(type=join, summary="", subagent=SubagentId("a")), 11)
    assert (joined.settled_seq, joined.state, joined.status) == (11, state, status)


def test_output_that_awaits_its_parent_settles_at_once_and_only_once() -> None:
    waiting = after(RUNNING, (events.SUBAGENT_WAITING, {"awaits": "parent"}))
    assert (waiting.settled_seq, waiting.status) == (10, "completed")
    closed = after(waiting, (events.MERGED, {}), (events.SUBAGENT_CLOSED, BOTH))
    assert (closed.settled_seq, closed.close_reason) == (10, "merged")
