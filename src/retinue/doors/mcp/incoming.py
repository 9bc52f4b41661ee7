"""Lines from a client: one strict JSON-RPC message each, or one error that names its id.

The SDK stays silent where a line is no message, and takes some that are none. Everything is
judged here before it reaches the SDK.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from retinue.domain.result import clean_text

MAX_LINE = 8 * 1024 * 1024
MAX_DEPTH = 64
KEPT = 64 * 1024  # of a line that is too long, for its id
PARSE_ERROR = -32700
INVALID_REQUEST = -32600

Id = int | str | None

_TAIL_ID = re.compile(
    rb'[,{]\s*"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{0,200}")\s*(,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
)
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class Wrong:
    """Why a line was not taken, for whoever waits for an answer to it."""

    id: Id
    code: int
    message: str

    def to_json(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message}
        return {"jsonrpc": "2.0", "id": self.id, "error": error}


class _Refused(ValueError):
    pass


def read_line(line: bytes) -> dict[str, Any] | list[Wrong] | None:
    """The message on a line; or an error for each request in it; nothing for an empty line."""
    if not line.strip():
        return None
    try:
        text = line.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        require_plain(value)
    except UnicodeDecodeError:
        return [Wrong(readable_id(line), PARSE_ERROR, "Parse error: not UTF-8")]
    except _Refused as error:
        return [Wrong(readable_id(line), PARSE_ERROR, f"Parse error: {error}")]
    except RecursionError:
        return [Wrong(readable_id(line), PARSE_ERROR, "Parse error: nested too deeply")]
    except ValueError:
        return [Wrong(readable_id(line), PARSE_ERROR, "Parse error: not JSON")]
    if isinstance(value, list):
        return _batch(value)
    if not isinstance(value, dict):
        return [Wrong(None, INVALID_REQUEST, "Invalid request: not an object")]
    problem = _malformed(value)
    return value if problem is None else [Wrong(_id(value), INVALID_REQUEST, problem)]


def too_long(head: bytes, tail: bytes) -> Wrong:
    """The error for a line of which only the ends were kept."""
    found = readable_id(head)
    if found is None:
        found = _later_id(tail)
    return Wrong(found, INVALID_REQUEST, f"Invalid request: longer than {MAX_LINE >> 20} MiB")


def require_plain(value: Any) -> None:
    """Raises:
    ValueError: something in it could not be passed on: half a character, or too many levels.
    """
    left = [(value, 1)]
    while left:
        each, depth = left.pop()
        if isinstance(each, str):
            if not each.isascii() and clean_text(each) != each:
                raise _Refused("half a surrogate pair")
        elif isinstance(each, dict | list):
            if depth > MAX_DEPTH:
                raise _Refused(f"more than {MAX_DEPTH} levels")
            inner = [*each, *each.values()] if isinstance(each, dict) else each
            left += [(item, depth + 1) for item in inner]


def readable_id(line: bytes) -> Id:
    """The request's id, from the members before whatever is wrong."""
    text = line[:KEPT].decode("utf-8", errors="replace")
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return None
    try:
        while True:
            key, at = decoder.raw_decode(text, _skip(text, at + 1))
            at = _skip(text, at)
            if text[at : at + 1] != ":":
                return None
            value, at = decoder.raw_decode(text, _skip(text, at + 1))
            at = _skip(text, at)
            if key == "id":
                whole = text[at : at + 1] in (",", "}")
                return _id({"id": value}) if whole else None
            if text[at : at + 1] != ",":
                return None
    except (ValueError, RecursionError):
        return _later_id(line)


def _later_id(line: bytes) -> Id:
    """An id that stands last, behind what is wrong."""
    found = _TAIL_ID.search(line[-1024:])
    try:
        return None if found is None else _id({"id": json.loads(found.group(1))})
    except ValueError:  # it only looks like one: a zero in front, a control character, no UTF-8
        return None


def _batch(items: list[Any]) -> list[Wrong]:
    message = "Invalid request: batches are not part of this protocol"
    ids = [_id(item) for item in items if isinstance(item, dict) and "method" in item]
    known = [each for each in ids if each is not None]
    return [Wrong(each, INVALID_REQUEST, message) for each in known] or [
        Wrong(None, INVALID_REQUEST, message)
    ]


def _malformed(message: dict[str, Any]) -> str | None:
    """What keeps an object from being a JSON-RPC message."""
    if message.get("jsonrpc") != "2.0":
        return 'Invalid request: jsonrpc must be "2.0"'
    if "id" in message and _id(message) is None:
        answers = "error" in message and message["id"] is None
        return None if answers else "Invalid request: id must be a text or a whole number"
    if "method" in message:
        if not isinstance(message["method"], str):
            return "Invalid request: method must be a text"
        params = message.get("params")
        if params is not None and not isinstance(params, dict):
            return "Invalid request: params must be an object"
    elif "result" not in message and "error" not in message:
        return "Invalid request: it has no method"
    return None


def _id(message: dict[str, Any]) -> Id:
    value = message.get("id")
    if isinstance(value, str):
        return value if clean_text(value) == value else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _refuse(constant: str) -> Any:
    raise _Refused(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused(f"{text[:20]} is too large a number")
    return number
