"""The record that a child's init leaves of its end: exit.json."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from retinue.domain.ending import Ending, EndKind

LARGEST_RECORD = 65536
_LARGEST_NUMBER = 2**53


def parse_ending(data: bytes, attempt: int | None = None) -> Ending:
    """How the attempt ended; LOST, saying why, where the record cannot be believed.

    Unknown fields are passed over. Never raises: a child may have scribbled on its own record.
    """
    try:
        record = _strict_object(data)
        if attempt is not None and _number(record, "attempt") != attempt:
            raise ValueError(f"it is not that of attempt {attempt}")
        return _believed(record)
    except (ValueError, RecursionError) as fault:
        return Ending(kind=EndKind.LOST, error=f"unreadable exit record: {str(fault)[:200]}")


def _strict_object(data: bytes) -> dict[str, Any]:
    if len(data) > LARGEST_RECORD:
        raise ValueError(f"larger than {LARGEST_RECORD} bytes")
    record = _STRICT.decode(data.decode("utf-8"))
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)


def _believed(record: dict[str, Any]) -> Ending:
    signals_sent = record.get("signals_sent", [])
    if not isinstance(signals_sent, list) or not all(isinstance(s, str) for s in signals_sent):
        raise ValueError("signals_sent is not a list of names")
    exit_code, signal = _number(record, "exit_code"), _number(record, "signal")
    kind = EndKind(_text(record, "kind"))
    if kind is EndKind.EXITED and (exit_code is None) == (signal is None):
        raise ValueError("exited with neither or both of exit_code and signal")
    return Ending(
        kind=kind,
        exit_code=exit_code,
        signal=signal,
        signals_sent=tuple(signals_sent),
        duration_ms=_number(record, "duration_ms") or 0,
        stdout_cut=_truth(record, "stdout_cut"),
        stderr_cut=_truth(record, "stderr_cut"),
        error=_text(record, "error"),
        limit=_text(record, "limit")[:200],
        hopeless=_truth(record, "hopeless"),
    )


def _number(record: dict[str, Any], name: str) -> int | None:
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_NUMBER:
        raise ValueError(f"{name} is not a count")
    return value


def _truth(record: dict[str, Any], name: str) -> bool:
    value = record.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false")
    return value


def _text(record: dict[str, Any], name: str) -> str:
    value = record.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text")
    return value
