"""Events for people: short by default, whole on demand."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.cli.timeline_commands import MOST_LANES, EventFormatter, Lanes


def event(seq: int, kind: str, who: str | None = None, **payload: Any) -> dict[str, Any]:
    return {
        "seq": seq,
        "ts": f"2026-01-02T03:04:{seq:02}.500Z",
        "type": kind,
        "agentInstance": who,
        "payload": {"summary": f"{kind} happened"} | payload,
    }


LIFE = [
    event(1, "task.created"),
    event(2, "agent.subagent_created", "a"),
    event(3, "agent.subagent_created", "b"),
    event(4, "agent.started", "a"),
    event(5, "agent.subagent_closed", "a"),
    event(6, "agent.subagent_created", "c"),
    event(7, "agent.subagent_closed", "b"),
]


@pytest.mark.requirement("R125")
def test_an_event_is_one_short_line_unless_all_of_it_is_asked_for() -> None:
    hostile = event(7, "agent.failed", "a", reason="x\n\x1b[2J", summary="a failed:\nx\x1b")
    assert list(EventFormatter().format_event(hostile)) == [
        "    7  03:04:07.500  agent.failed                      a failed: x\\x1b"
    ]
    first, *whole = EventFormatter(expand=True).format_event(hostile)
    assert "a failed: x\\x1b" in first
    assert any('"reason": "x\\n\\u001b[2J"' in line for line in whole)
    assert all(line.isprintable() for line in whole)


def test_a_timeline_counts_from_its_first_event() -> None:
    view = EventFormatter(lanes=True)
    lines = [line for each in LIFE for line in view.format_event(each)]
    assert lines[0].split() == ["+0.000", "task.created", "task.created", "happened"]
    assert lines[4].split()[:3] == ["+4.000", "x|", "subagent_closed"]


def test_an_event_without_a_usable_time_is_shown_all_the_same() -> None:
    odd = event(1, "task.created") | {"ts": "yesterday\x1b"}
    (line,) = EventFormatter(lanes=True).format_event(odd)
    assert line.split()[0] == "?"


def test_subagents_that_run_side_by_side_have_columns_of_their_own() -> None:
    lanes = Lanes()
    assert [lanes.render_event(each) for each in LIFE] == ["", "o", "|o", "*|", "x|", "o|", "|x"]


def test_more_subagents_than_columns_are_shown_without_one() -> None:
    lanes = Lanes()
    drawn = [
        lanes.render_event(event(number, "agent.subagent_created", f"s{number}"))
        for number in range(MOST_LANES + 3)
    ]
    assert drawn[-1] == "|" * MOST_LANES
