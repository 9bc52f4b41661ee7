"""Validation of lines and cancellations before the SDK sees them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from retinue.mcp_server.cancelled_calls import CancelledCalls
from retinue.mcp_server.jsonrpc_validation import (
    KEPT,
    JsonRpcError,
    find_request_id,
    make_too_long_error,
    read_line,
)

ID = st.integers(min_value=-(2**53), max_value=2**53) | st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary())
def test_any_bytes_are_read_without_an_exception(line: bytes) -> None:
    read = read_line(line)
    assert read is None or isinstance(read, dict) or all(isinstance(w, JsonRpcError) for w in read)


@given(number=ID, params=st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=3))
def test_a_valid_request_is_returned_unchanged(
    number: int | str, params: dict[str, object]
) -> None:
    message = {"jsonrpc": "2.0", "id": number, "method": "m", "params": params}
    assert read_line(json.dumps(message).encode()) == message


@given(number=ID, cut=st.integers(min_value=1, max_value=30))
def test_the_id_of_a_cut_request_is_found(number: int | str, cut: int) -> None:
    message = {"jsonrpc": "2.0", "id": number, "method": "m", "params": {"id": 1, "x": "y" * 40}}
    line = json.dumps(message).encode()
    assert find_request_id(line[:-cut]) == number


def test_an_id_inside_the_parameters_is_not_the_requests() -> None:
    assert find_request_id(b'{"params":{"id":5},"method":NaN}') is None
    assert find_request_id(b'{"method":NaN,"params":{"id":5}}') is None


def test_the_id_of_a_long_line_is_found_at_either_end() -> None:
    filler = b"x" * KEPT
    assert make_too_long_error(b'{"id":7,"params":"' + filler, filler).id == 7
    assert make_too_long_error(b'{"params":"' + filler, filler + b'","id":"a"}').id == "a"
    assert make_too_long_error(filler, filler).id is None
    assert make_too_long_error(filler, filler + b'","id":07}').id is None


def test_a_timeout_of_a_call_is_reported_once() -> None:
    cuts = CancelledCalls()
    for reason in (
        "timed out after 1.0s",
        "McpError: MCP error -32001: Request timed out",
        "request timeout",
        "MCP response future dropped",
    ):
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": 7}}
        cancelled["params"]["reason"] = reason  # type: ignore[index]
        cuts.note(cancelled)
        assert cuts.was_cut(7) and not cuts.was_cut(7)
    cuts.note({"method": "notifications/cancelled", "params": {"requestId": 7, "reason": "no"}})
    assert not cuts.was_cut(7)


def test_the_answer_to_a_cancelled_call_is_undone_once() -> None:
    undone: list[str] = []
    cuts, cancelled = (
        CancelledCalls(),
        {"method": "notifications/cancelled", "params": {"requestId": 7}},
    )
    cuts.mark_answered(lambda: undone.append("late"), 7)
    cuts.note(cancelled, "another session")
    cuts.note(cancelled | {"id": 8})
    assert not undone
    cuts.note(cancelled)
    assert undone == ["late"]
    cuts.note(cancelled)
    cuts.mark_answered(lambda: undone.append("early"), "7")
    assert undone == ["late", "early"]
    cuts.mark_answered(lambda: undone.append("another"), 7)
    assert undone == ["late", "early"]
