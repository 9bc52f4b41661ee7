"""Strict validation of JSON-RPC messages, before the SDK sees them.

The SDK does not answer some invalid lines, and accepts others. Here each invalid line gets an
error with the id of its request, if the id can be found.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from retinue.core.result import clean_text

MAX_LINE = 8 * 1024 * 1024
MAX_DEPTH = 64
KEPT = 64 * 1024  # bytes kept of each end of a line that is too long, to find its id
PARSE_ERROR = -32700
INVALID_REQUEST = -32600

Id = int | str | None

# An id that ends the message, for messages whose error comes before it.
_TAIL_ID = re.compile(
    rb'[,{]\s*"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{0,200}")\s*(,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
)
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class JsonRpcError:
    """Error response to an invalid line."""

    id: Id
    code: int
    message: str

    def to_json(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message}
        return {"jsonrpc": "2.0", "id": self.id, "error": error}


class _InvalidJson(ValueError):
    pass


def read_line(line: bytes) -> dict[str, Any] | list[JsonRpcError] | None:
    """Return the message on a line, or the errors to send; None for an empty line."""
    if not line.strip():
        return None
    try:
        text = line.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse, parse_float=_refuse_infinite)
        require_plain(value)
    except UnicodeDecodeError:
        return [JsonRpcError(find_request_id(line), PARSE_ERROR, "Parse error: not UTF-8")]
    except _InvalidJson as error:
        return [JsonRpcError(find_request_id(line), PARSE_ERROR, f"Parse error: {error}")]
    except RecursionError:
        return [JsonRpcError(find_request_id(line), PARSE_ERROR, "Parse error: nested too deeply")]
    except ValueError:
        return [JsonRpcError(find_request_id(line), PARSE_ERROR, "Parse error: not JSON")]
    if isinstance(value, list):
        return _answer_batch(value)
    if not isinstance(value, dict):
        return [JsonRpcError(None, INVALID_REQUEST, "Invalid request: not an object")]
    problem = _find_problem(value)
    return value if problem is None else [JsonRpcError(_read_id(value), INVALID_REQUEST, problem)]


def make_too_long_error(head: bytes, tail: bytes) -> JsonRpcError:
    """Return the error for a line of which only the ends were kept."""
    found = find_request_id(head)
    if found is None:
        found = _find_trailing_id(tail)
    return JsonRpcError(
        found, INVALID_REQUEST, f"Invalid request: longer than {MAX_LINE >> 20} MiB"
    )


def require_plain(value: Any) -> None:
    """Check that a value can be encoded again.

    Raises:
        ValueError: it has half a surrogate pair, or too many levels.
    """
    # A loop instead of recursion: the depth is not checked yet.
    left = [(value, 1)]
    while left:
        each, depth = left.pop()
        if isinstance(each, str):
            if not each.isascii() and clean_text(each) != each:
                raise _InvalidJson("half a surrogate pair")
        elif isinstance(each, dict | list):
            if depth > MAX_DEPTH:
                raise _InvalidJson(f"more than {MAX_DEPTH} levels")
            inner = [*each, *each.values()] if isinstance(each, dict) else each
            left += [(item, depth + 1) for item in inner]


def find_request_id(line: bytes) -> Id:
    """Find the id of an invalid request among its members before the error, or at its end."""
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
            # Without a delimiter behind it, a number may have been cut.
            if key == "id":
                whole = text[at : at + 1] in (",", "}")
                return _read_id({"id": value}) if whole else None
            if text[at : at + 1] != ",":
                return None
    except (ValueError, RecursionError):
        return _find_trailing_id(line)


def _find_trailing_id(line: bytes) -> Id:
    """Find an id that is the last member of the message."""
    found = _TAIL_ID.search(line[-1024:])
    try:
        return None if found is None else _read_id({"id": json.loads(found.group(1))})
    except ValueError:
        # The pattern also matches a leading zero, control characters and invalid UTF-8.
        return None


def _answer_batch(items: list[Any]) -> list[JsonRpcError]:
    message = "Invalid request: batches are not part of this protocol"
    ids = [_read_id(item) for item in items if isinstance(item, dict) and "method" in item]
    known = [each for each in ids if each is not None]
    return [JsonRpcError(each, INVALID_REQUEST, message) for each in known] or [
        JsonRpcError(None, INVALID_REQUEST, message)
    ]


def _find_problem(message: dict[str, Any]) -> str | None:
    """Return why an object is no JSON-RPC message, or None."""
    if message.get("jsonrpc") != "2.0":
        return 'Invalid request: jsonrpc must be "2.0"'
    if "id" in message and _read_id(message) is None:
        # JSON-RPC allows a null id in an error response.
        answers = "error" in message and message["id"] is None
        return None if answers else "Invalid request: id must be a string or a whole number"
    if "method" in message:
        if not isinstance(message["method"], str):
            return "Invalid request: method must be a string"
        params = message.get("params")
        if params is not None and not isinstance(params, dict):
            return "Invalid request: params must be an object"
    elif "result" not in message and "error" not in message:
        return "Invalid request: it has no method"
    return None


def _read_id(message: dict[str, Any]) -> Id:
    value = message.get("id")
    if isinstance(value, str):
        return value if clean_text(value) == value else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _refuse(constant: str) -> Any:
    raise _InvalidJson(f"{constant} is no JSON")


def _refuse_infinite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _InvalidJson(f"{text[:20]} is too large a number")
    return number
