"""Events as lines of events.jsonl."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core import events
from retinue.core.events import Event, Recorded
from retinue.core.ids import RunId, SubagentId, TaskId
from retinue.core.safe_text import SUMMARY_LIMIT, shorten
from retinue.formats.event_json import event_from_json, event_to_json, event_to_line

NASTY = 'a\n{"type":"agent.subagent_closed"}\r\x1b[31m\u2028\x85\0\ud800é'
CLOSED = Recorded(
    seq=7,
    ts="2026-01-01T00:00:00.000Z",
    task=TaskId("site"),
    run=RunId("site-run-1"),
    step_idx=2,
    contract_sha256="f" * 64,
    event=Event(
        type=events.SUBAGENT_CLOSED,
        subagent=SubagentId("bio"),
        attempt=0,
        by="user",
        summary="bio closed: failed (timeout)",
        payload={"final_status": "failed", "close_reason": "timeout"},
    ),
)


@pytest.mark.requirement("R47", "R125", "R133", "R134", "R135", "R136")
def test_a_record_has_its_keys_outside_and_inside_the_payload() -> None:
    assert event_to_json(CLOSED) == {
        "seq": 7,
        "id": "site:7",
        "ts": "2026-01-01T00:00:00.000Z",
        "type": "agent.subagent_closed",
        "taskId": "site",
        "run_id": "site-run-1",
        "agentInstance": "bio",
        "attempt": None,
        "by": "user",
        "contract_sha256": "f" * 64,
        "payload": {
            "agentInstance": "bio",
            "sub_agent_id": "bio",
            "step_idx": 2,
            "summary": "bio closed: failed (timeout)",
            "final_status": "failed",
            "close_reason": "timeout",
        },
    }


def test_an_event_of_the_task_names_no_subagent() -> None:
    plain = replace(
        CLOSED,
        step_idx=None,
        contract_sha256=None,
        event=Event(type=events.TASK_CREATED, summary="task created"),
    )
    record = event_to_json(plain)
    assert record["agentInstance"] is None
    assert record["payload"] == {"summary": "task created"}
    assert event_from_json(record) == plain


@given(st.text(), st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3))
def test_a_line_is_read_back_as_the_same_event(text: str, extra: dict[str, object]) -> None:
    ours = {"agentInstance", "sub_agent_id", "step_idx", "summary"}
    payload = {key: value for key, value in extra.items() if key not in ours}
    event = replace(CLOSED.event, summary=text, payload=payload, attempt=3)
    recorded = replace(CLOSED, event=event)
    assert event_from_json(json.loads(event_to_line(recorded))) == recorded


@pytest.mark.requirement("R124")
def test_text_of_a_child_cannot_end_a_line() -> None:
    event = replace(CLOSED.event, summary=NASTY, payload={"reason": NASTY})
    line = event_to_line(replace(CLOSED, event=event))
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert line.isascii() and b"\r" not in line and b"\x1b" not in line
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line)["payload"]["reason"] == NASTY


@pytest.mark.parametrize(
    "damage", [{"seq": "x"}, {"payload": None}, {"payload": {}}, {"attempt": "1"}, {"run_id": None}]
)
def test_an_invalid_record_is_refused(damage: dict[str, object]) -> None:
    record = event_to_json(CLOSED) | damage
    try:
        read = event_from_json(record)
    except (KeyError, TypeError, ValueError):
        return
    assert read != CLOSED


@pytest.mark.requirement("R125")
@given(st.text())
def test_a_summary_is_one_line_of_at_most_120_characters(text: str) -> None:
    short = shorten(text)
    assert len(short) <= SUMMARY_LIMIT == 120
    assert len(short.splitlines()) <= 1


@pytest.mark.requirement("R45", "R46", "R49", "R50", "R51", "R52", "R53")
def test_lifecycle_events_have_the_names_that_readers_know() -> None:
    names = {value for value in vars(events).values() if isinstance(value, str)}
    assert names >= {
        "agent.started", "agent.completed", "agent.failed", "agent.blocked", "agent.cancelled",
        "agent.subagent_created", "agent.subagent_started", "agent.subagent_attempt",
        "agent.subagent_waiting_for_merge", "agent.subagent_failed", "agent.subagent_closed",
    }  # fmt: skip
