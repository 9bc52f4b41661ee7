"""Events as JSON objects, one line each in events.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from retinue.core.events import Event, Recorded
from retinue.core.ids import RunId, SubagentId, TaskId
from retinue.formats.json_text import to_line

COPIES = ("context_json", "result", "result_sha256")  # keys of a payload for rebuilds alone


def event_to_json(recorded: Recorded) -> dict[str, Any]:
    event = recorded.event
    payload: dict[str, Any] = {}
    if event.subagent is not None:
        payload = {
            "agentInstance": event.subagent,
            "sub_agent_id": event.subagent,
            "step_idx": recorded.step_idx,
        }
    return {
        "seq": recorded.seq,
        "id": f"{recorded.task}:{recorded.seq}",
        "ts": recorded.ts,
        "type": event.type,
        "taskId": recorded.task,
        "run_id": recorded.run,
        "agentInstance": event.subagent,
        "attempt": event.attempt or None,
        "by": event.by,
        "contract_sha256": recorded.contract_sha256,
        "payload": payload | {"summary": event.summary} | dict(event.payload),
    }


def event_to_view(recorded: Recorded) -> dict[str, Any]:
    """Return an event for clients, without the copies of contract and result.

    The log needs these copies; clients read contracts and results by verbs of their own.
    """
    document = event_to_json(recorded)
    for key in COPIES:
        document["payload"].pop(key, None)
    return document


def event_from_json(record: Mapping[str, Any]) -> Recorded:
    """Parse an event from its record in events.jsonl.

    Raises:
        KeyError, TypeError, ValueError: the record is invalid.
    """
    # These three keys repeat the record's own; `event_to_json` adds them.
    payload = dict(record["payload"])
    payload.pop("agentInstance", None)
    payload.pop("sub_agent_id", None)
    instance = record["agentInstance"]
    return Recorded(
        seq=int(record["seq"]),
        ts=str(record["ts"]),
        task=TaskId(record["taskId"]),
        run=RunId(record["run_id"]),
        step_idx=payload.pop("step_idx", None),
        contract_sha256=record["contract_sha256"],
        event=Event(
            type=str(record["type"]),
            summary=str(payload.pop("summary")),
            by=str(record["by"]),
            subagent=None if instance is None else SubagentId(instance),
            attempt=record["attempt"] or 0,
            payload=payload,
        ),
    )


def event_to_line(recorded: Recorded) -> bytes:
    """Return one ASCII line: some readers also split lines at certain Unicode characters."""
    return to_line(event_to_json(recorded))


def events_to_lines(recorded: Iterable[Recorded]) -> bytes:
    """Return the lines of these events, as the log has them."""
    return b"".join(map(event_to_line, recorded))
