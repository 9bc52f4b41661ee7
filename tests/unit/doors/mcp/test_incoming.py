"""Lines are judged before the SDK sees them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from retinue.doors.mcp.cuts import Cuts
from retinue.doors.mcp.incoming import KEPT, Wrong, read_line, readable_id, too_long

ID = st.integers(min_value=-(2**53), max_value=2**53) | st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary())
def test_any_bytes_are_read_without_an_error_of_ours(line: bytes) -> None:
    read = read_line(line)
    assert read is None or isinstance(read, dict) or all(isinstance(w, Wrong) for w in read)


@given(number=ID, params=st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=3))
def test_a_request_is_taken_as_it_is(number: int | str, params: dict[str, object]) -> None:
    message = {"jsonrpc": "2.0", "id": number, "method": "m", "params": params}
    assert read_line(json.dumps(message).encode()) == message


@given(number=ID, cut=st.integers(min_value=1, max_value=30))
def test_the_id_of_a_torn_request_is_read(number: int | str, cut: int) -> None:
    message = {"jsonrpc": "2.0", "id": number, "method": "m", "params": {"id": 1, "x": "y" * 40}}
    line = json.dumps(message).encode()
    assert readable_id(line[:-cut]) == number


def test_an_id_inside_the_parameters_is_not_taken_for_the_requests() -> None:
    assert readable_id(b'{"params":{"id":5},"method":NaN}') is None
    assert readable_id(b'{"method":NaN,"params":{"id":5}}') is None


def test_the_id_of_a_long_line_is_found_at_either_end() -> None:
    filler = b"x" * KEPT
    assert too_long(b'{"id":7,"params":"' + filler, filler).id == 7
    assert too_long(b'{"params":"' + filler, filler + b'","id":"a"}').id == "a"
    assert too_long(filler, filler).id is None
    assert too_long(filler, filler + b'","id":07}').id is None


def test_a_call_that_was_cut_for_its_length_is_known_once() -> None:
    cuts = Cuts()
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


def test_an_answer_to_a_call_that_is_taken_back_is_undone_once() -> None:
    undone: list[str] = []
    cuts, cancelled = Cuts(), {"method": "notifications/cancelled", "params": {"requestId": 7}}
    cuts.answered(lambda: undone.append("late"), 7)
    cuts.note(cancelled, "another session")
    cuts.note(cancelled | {"id": 8})
    assert not undone
    cuts.note(cancelled)
    assert undone == ["late"]
    cuts.note(cancelled)
    cuts.answered(lambda: undone.append("early"), "7")
    assert undone == ["late", "early"]
    cuts.answered(lambda: undone.append("another"), 7)
    assert undone == ["late", "early"]
