"""Protocol between clients and the steward."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import KINDS, BadInput, LimitExceeded, RetinueError
from retinue.formats import steward_protocol
from retinue.version import VERSION

MANY = 100  # bytes of a line


def test_a_request_is_one_line_with_version_number_verb_and_parameters() -> None:
    line = steward_protocol.encode_request(7, "subagent.list", {"task": "site\né"})
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    assert steward_protocol.decode(line) == {
        "v": 1,
        "version": VERSION,
        "id": 7,
        "verb": "subagent.list",
        "params": {"task": "site\né"},
    }


def test_a_request_larger_than_a_steward_reads_is_refused_before_it_is_sent() -> None:
    with pytest.raises(BadInput, match="32 MiB"):
        steward_protocol.encode_request(1, "x", {"text": "x" * steward_protocol.MAX_REQUEST})


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"[]", b"7", b"null", b"{", b"\xff", b'{"a": NaN}', b'{"a": -Infinity}',
     b"[" * 100_000, b'{"a":1} {"b":2}', b'"{}"'],
)  # fmt: skip
def test_a_line_that_is_not_an_object_is_refused(line: bytes) -> None:
    with pytest.raises(BadInput) as refused:
        steward_protocol.decode(line)
    assert refused.value.code == "bad_message"


@given(st.binary())
def test_no_bytes_crash_the_decoder(line: bytes) -> None:
    with suppress(BadInput):
        assert isinstance(steward_protocol.decode(line), dict)


@pytest.mark.parametrize("kind", list(KINDS.values()))
def test_an_error_is_decoded_as_its_class(kind: type[RetinueError]) -> None:
    sent = kind("no, \u2028really", code="some_code", hint="do this")
    line = steward_protocol.encode({"error": steward_protocol.error_to_json(sent)})
    arrived = steward_protocol.error_from_json(json.loads(line)["error"])
    assert type(arrived) is kind
    assert (arrived.message, arrived.code, arrived.hint) == (sent.message, "some_code", "do this")
    assert arrived.exit_code == sent.exit_code
    assert steward_protocol.error_to_json(kind("no"))["hint"], "each kind names a next step"


@pytest.mark.parametrize("document", [{}, {"kind": "Other", "message": 7}, {"kind": None}])
def test_an_unknown_error_class_becomes_the_base_class(document: dict[str, Any]) -> None:
    assert type(steward_protocol.error_from_json(document)) is RetinueError


def test_every_error_has_a_code_and_an_exit_code_of_its_own_kind() -> None:
    assert LimitExceeded("x").code == "limit_exceeded"
    codes = {kind("x").code: kind.exit_code for kind in KINDS.values()}
    assert len(codes) == len(KINDS)
    assert set(codes.values()) == {1, 2, 3, 4, 5, 6, 7}
