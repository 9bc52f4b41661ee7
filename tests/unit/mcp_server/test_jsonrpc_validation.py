"""Validation of lines and cancellations before the SDK sees them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from retinue.mcp_server.cancelled_calls import CancelledCalls
from retinue.mcp_server.jsonrpc_validation import JsonRpcError, read_line

ID = st.integers(min_value=-(2**53), max_value=2**53) | st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary())
def test_any_bytes_are_read_without_an_exception(line: bytes) -> None:
    read = read_line(line)
    assert read is None or isinstance(read, dict | JsonRpcError)


@given(number=ID, params=st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=3))
def test_a_valid_request_is_returned_unchanged(
    number: int | str, params: dict[str, object]
) -> None:
    message = {"jsonrpc": "2.0", "id": number, "method": "m", "params": params}
    assert read_line(json.dumps(message).encode()) == message


@given(number=ID, cut=st.integers(min_value=1, max_value=30))
def test_a_cut_request_gets_an_error_with_a_null_id(number: int | str, cut: int) -> None:
    message = {"jsonrpc": "2.0", "id": number, "method": "m", "params": {"id": 1, "x": "y" * 40}}
    read = read_line(json.dumps(message).encode()[:-cut])
    assert isinstance(read, JsonRpcError) and read.id is None


def test_json_that_cannot_be_encoded_again_keeps_its_request_id() -> None:
    for odd in (b"NaN", b"1e999", b'"\\ud800"', b"[" * 70 + b"]" * 70):
        read = read_line(b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"x":' + odd + b"}}")
        assert isinstance(read, JsonRpcError) and read.id == 7


def test_a_timeout_of_a_call_is_reported_once() -> None:
    cuts = CancelledCalls()
    for reason in (
        "timed out after 1.0s",
        "McpError: MCP error -32001: Request timed out",
        "request timeout",
        "MCP response future dropped",
        "MCP request cancelled by caller",
    ):
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": 7}}
        cancelled["params"]["reason"] = reason  # type: ignore[index]
        cuts.note(cancelled)
        assert cuts.was_cut(7) and not cuts.was_cut(7)
    cuts.note({"method": "notifications/cancelled", "params": {"requestId": 7, "reason": "no"}})
    assert not cuts.was_cut(7)


def test_a_client_that_cancels_whatever_was_answered_has_read_the_answers() -> None:
    undone: list[int] = []
    cuts = CancelledCalls()

    def answer(number: int) -> None:
        cuts.mark_answered(lambda: undone.append(number), number)

    def cancel(number: int) -> None:
        cuts.note({"method": "notifications/cancelled", "params": {"requestId": number}})

    for number in range(1, 5):
        answer(number)
        cancel(number)
    assert undone == [1], "once may be a coincidence"
    for number in range(5, 8):
        answer(number)
    cancel(7)
    assert undone == [1, 7], "it did not cancel those before"
    answer(8)
    cuts.take_back(8, "", cut=True)
    assert undone == [1, 7, 8], "a lost connection is no habit"


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
