"""Parser of exit.json, the record that a child's init writes about its end."""

from __future__ import annotations

import re
from typing import Any

from retinue.core.result import Ending, EndKind
from retinue.formats.json_text import parse_strict_json

LARGEST_RECORD = 65536
_LARGEST_NUMBER = 2**53
_MOST_COUNTS = 10
_COUNTED = re.compile(r"[a-z0-9_ ]{1,40}")


def parse_ending(data: bytes, attempt: int | None = None) -> Ending:
    """Return how the attempt ended; LOST with the reason if the record is invalid.

    Unknown fields are ignored. Never raises: the child may have overwritten its own record.
    """
    try:
        record = _parse_object(data)
        if attempt is not None and _parse_number(record, "attempt") != attempt:
            raise ValueError(f"it does not belong to attempt {attempt}")
        return _check_fields(record)
    except (ValueError, RecursionError) as fault:
        return Ending(kind=EndKind.LOST, error=f"unreadable exit record: {str(fault)[:200]}")


def _parse_object(data: bytes) -> dict[str, Any]:
    if len(data) > LARGEST_RECORD:
        raise ValueError(f"larger than {LARGEST_RECORD} bytes")
    record = parse_strict_json(data.decode("utf-8"))
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def _check_fields(record: dict[str, Any]) -> Ending:
    signals_sent = record.get("signals_sent", [])
    if not isinstance(signals_sent, list) or not all(isinstance(s, str) for s in signals_sent):
        raise ValueError("signals_sent is not a list of names")
    exit_code = _parse_number(record, "exit_code")
    signal = _parse_number(record, "signal")
    kind = EndKind(_parse_text(record, "kind"))
    if kind is EndKind.EXITED and (exit_code is None) == (signal is None):
        raise ValueError("exited with neither or both of exit_code and signal")
    return Ending(
        kind=kind,
        exit_code=exit_code,
        signal=signal,
        signals_sent=tuple(signals_sent),
        duration_ms=_parse_number(record, "duration_ms") or 0,
        stdout_cut=_parse_bool(record, "stdout_cut"),
        stderr_cut=_parse_bool(record, "stderr_cut"),
        error=_parse_text(record, "error"),
        limit=_parse_text(record, "limit")[:200],
        refused_calls=_parse_counts(record, "refused_calls"),
        hopeless=_parse_bool(record, "hopeless"),
    )


def _parse_number(record: dict[str, Any], name: str) -> int | None:
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_NUMBER:
        raise ValueError(f"{name} is not a count")
    return value


def _parse_counts(record: dict[str, Any], name: str) -> tuple[tuple[str, int], ...]:
    """Return the first few counts by name."""
    # The names reach warnings, so only plain characters are accepted.
    value = record.get(name, {})
    if not isinstance(value, dict) or not all(map(_COUNTED.fullmatch, value)):
        raise ValueError(f"{name} does not count calls by their names")
    counts = [(key, _parse_number(value, key) or 0) for key in list(value)[:_MOST_COUNTS]]
    return tuple(counts)


def _parse_bool(record: dict[str, Any], name: str) -> bool:
    value = record.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false")
    return value


def _parse_text(record: dict[str, Any], name: str) -> str:
    value = record.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text")
    return value
