"""What clients and the steward say to each other."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.errors import KINDS, BadInput, LimitExceeded, RetinueError
from retinue.wire import protocol

MANY = 100  # bytes of a line


def test_a_request_is_one_line_with_version_number_verb_and_parameters() -> None:
    line = protocol.request(7, "subagent.list", {"task": "site\né"})
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    assert protocol.decode(line) == {
        "v": 1,
        "id": 7,
        "verb": "subagent.list",
        "params": {"task": "site\né"},
    }


def test_a_request_larger_than_a_steward_reads_is_refused_before_it_is_sent() -> None:
    with pytest.raises(BadInput, match="32 MiB"):
        protocol.request(1, "x", {"text": "x" * protocol.MAX_REQUEST})


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"[]", b"7", b"null", b"{", b"\xff", b'{"a": NaN}', b'{"a": -Infinity}',
     b"[" * 100_000, b'{"a":1} {"b":2}', b'"{}"'],
)  # fmt: skip
def test_what_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(BadInput) as refused:
        protocol.decode(line)
    assert refused.value.code == "bad_message"


@given(st.binary())
def test_no_bytes_break_the_reader(line: bytes) -> None:
    with suppress(BadInput):
        assert isinstance(protocol.decode(line), dict)


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line)), st.integers(1, 9))
def test_lines_are_the_same_wherever_they_are_cut(sent: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in sent) + b"begun"
    lines = protocol.Lines(MANY)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [line for piece in pieces for line in lines.whole(piece)] == sent


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\nlater\n"])
def test_lines_before_one_that_is_too_long_are_found_and_none_after_it(
    size: int, end: bytes
) -> None:
    data = b"one\n" + b"x" * MANY + b"\n" + b"x" * (MANY + 1) + end
    lines = protocol.Lines(MANY)
    found: list[bytes] = []
    with pytest.raises(BadInput) as refused:
        for start in range(0, len(data), size):
            for line in lines.whole(data[start : start + size]):
                found.append(bytes(line))
    assert refused.value.code == "message_too_long"
    assert found == [b"one", b"x" * MANY]


@pytest.mark.parametrize("kind", list(KINDS.values()))
def test_an_error_arrives_as_what_it_was(kind: type[RetinueError]) -> None:
    sent = kind("no, \u2028really", code="some_code", hint="do this")
    line = protocol.encode({"error": protocol.error_to_json(sent)})
    arrived = protocol.error_from_json(json.loads(line)["error"])
    assert type(arrived) is kind
    assert (arrived.message, arrived.code, arrived.hint) == (sent.message, "some_code", "do this")
    assert arrived.exit_code == sent.exit_code
    assert protocol.error_to_json(kind("no"))["hint"], "each kind names a next step"


@pytest.mark.parametrize("document", [{}, {"kind": "Other", "message": 7}, {"kind": None}])
def test_an_error_of_another_version_is_still_an_error(document: dict[str, Any]) -> None:
    assert type(protocol.error_from_json(document)) is RetinueError


def test_every_error_has_a_code_and_an_exit_code_of_its_own_kind() -> None:
    assert LimitExceeded("x").code == "limit_exceeded"
    codes = {kind("x").code: kind.exit_code for kind in KINDS.values()}
    assert len(codes) == len(KINDS)
    assert set(codes.values()) == {1, 2, 3, 4, 5, 6, 7}
