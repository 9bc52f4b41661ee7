"""exit.json is accepted only if it is consistent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.result import Ending, EndKind
from retinue.formats.exit_record import LARGEST_RECORD, parse_ending

COMPLETE: dict[str, Any] = {
    "attempt": 2,
    "kind": "deadline",
    "exit_code": None,
    "signal": 9,
    "signals_sent": ["SIGINT", "SIGTERM", "SIGKILL"],
    "duration_ms": 1234,
    "stdout_cut": True,
    "stderr_cut": False,
    "error": "",
}


def record(**changes: Any) -> bytes:
    return json.dumps(COMPLETE | changes).encode()


def test_a_complete_record_is_read_whole() -> None:
    assert parse_ending(record()) == Ending(
        kind=EndKind.DEADLINE,
        signal=9,
        signals_sent=("SIGINT", "SIGTERM", "SIGKILL"),
        duration_ms=1234,
        stdout_cut=True,
    )


@pytest.mark.parametrize("kind", list(EndKind))
def test_every_kind_of_end_can_be_recorded(kind: EndKind) -> None:
    assert parse_ending(record(kind=kind.value)).kind is kind


def test_a_minimal_record_is_accepted() -> None:
    ending = parse_ending(b'{"kind": "exited", "exit_code": 0}')
    assert ending == Ending(kind=EndKind.EXITED, exit_code=0)
    assert ending.clean


def test_unknown_fields_are_ignored() -> None:
    assert parse_ending(record(colour="blue")).kind is EndKind.DEADLINE


def test_the_record_of_another_attempt_is_refused() -> None:
    assert parse_ending(record(), attempt=2).kind is EndKind.DEADLINE
    assert parse_ending(record(), attempt=3).error == (
        "unreadable exit record: it does not belong to attempt 3"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"\x00" * 100,
        b"[" * 20_000,
        b"9" * 20_000,
        b" " * (LARGEST_RECORD + 1),
        record()[:-1],
        record() + record(),
        b'{"kind": "exited", "exit_code": NaN}',
        b'{"kind": "exited", "exit_code": 0, "duration_ms": Infinity}',
        b'{"kind": "exited", "exit_code": 0, "duration_ms": 1e400}',
        b'{"kind": "exited", "exit_code": 0, "duration_ms": ' + b"9" * 5000 + b"}",
        record(kind="finished"),
        record(kind=None),
        record(kind=["exited"]),
        record(kind="exited", exit_code=None, signal=None),
        record(kind="exited", exit_code=0, signal=9),
        record(exit_code=-1),
        record(exit_code=True),
        record(exit_code="0"),
        record(signal=1.5),
        record(duration_ms=-1),
        record(duration_ms=2**64),
        record(signals_sent="SIGINT"),
        record(signals_sent=[2]),
        record(stdout_cut=1),
        record(error=None),
    ],
)
def test_an_invalid_record_is_lost_with_the_reason(data: bytes) -> None:
    ending = parse_ending(data)
    assert ending.kind is EndKind.LOST
    assert ending.error.startswith("unreadable exit record: ")
    assert len(ending.error) < 300


@given(st.binary())
def test_no_bytes_raise(data: bytes) -> None:
    assert parse_ending(data).kind is EndKind.LOST


@given(
    st.dictionaries(
        st.sampled_from(list(COMPLETE)),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text()),
    )
)
def test_no_values_raise_and_no_duration_is_negative(changes: dict[str, Any]) -> None:
    assert parse_ending(record(**changes)).duration_ms >= 0
