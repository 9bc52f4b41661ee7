"""JSON as text: one line of ASCII to write, and a strict parser to read."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

to_text = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def to_line(record: Any) -> bytes:
    return to_text(record).encode("ascii") + b"\n"


def parse_strict_json(text: str | bytes | bytearray) -> Any:
    """Parse JSON without NaN and infinities, which Python's decoder accepts by default.

    Raises:
        ValueError: the text is not JSON, or a number in it is too large for a float.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name[:20]} is not a number")


def _parse_finite(digits: str) -> float:
    number = float(digits)
    # Digits such as 1e999 become infinity.
    return number if math.isfinite(number) else _refuse_constant(digits)
