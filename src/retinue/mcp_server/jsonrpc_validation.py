"""Strict validation of JSON-RPC messages, before the SDK sees them.

The SDK does not answer some invalid lines, and accepts others. Here each invalid line gets one
error: with the id of its request if the line is JSON and has one, else with a null id.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from retinue.core.safe_text import clean_text

MAX_LINE = 8 * 1024 * 1024
MAX_DEPTH = 64
PARSE_ERROR = -32700
INVALID_REQUEST = -32600

Id = int | str | None


@dataclass(frozen=True)
class JsonRpcError:
    """Error response to an invalid line."""

    id: Id
    code: int
    message: str

    def to_json(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message}
        return {"jsonrpc": "2.0", "id": self.id, "error": error}


TOO_LONG = JsonRpcError(None, INVALID_REQUEST, f"Invalid request: longer than {MAX_LINE >> 20} MiB")


def read_line(line: bytes) -> dict[str, Any] | JsonRpcError | None:
    """Return the message on a line, or the error to send; None for an empty line."""
    if not line.strip():
        return None
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return JsonRpcError(None, PARSE_ERROR, "Parse error: not UTF-8")
    except RecursionError:
        return JsonRpcError(None, PARSE_ERROR, "Parse error: nested too deeply")
    except ValueError:
        return JsonRpcError(None, PARSE_ERROR, "Parse error: not JSON")
    if not isinstance(value, dict):
        what = "batches are not supported" if isinstance(value, list) else "not an object"
        return JsonRpcError(None, INVALID_REQUEST, f"Invalid request: {what}")
    try:
        require_plain(value)
    except ValueError as error:
        return JsonRpcError(_read_id(value), PARSE_ERROR, f"Parse error: {error}")
    problem = _find_problem(value)
    return value if problem is None else JsonRpcError(_read_id(value), INVALID_REQUEST, problem)


def require_plain(value: Any) -> None:
    """Check that a value can be encoded again.

    Raises:
        ValueError: it has half a surrogate pair, a number that is not finite, or too many levels.
    """
    # A loop instead of recursion: the depth is not checked yet.
    left = [(value, 1)]
    while left:
        each, depth = left.pop()
        if isinstance(each, str):
            if not each.isascii() and clean_text(each) != each:
                raise ValueError("half a surrogate pair")
        elif isinstance(each, float):
            if not math.isfinite(each):
                raise ValueError("a number is not finite")
        elif isinstance(each, dict | list):
            if depth > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} levels")
            inner = [*each, *each.values()] if isinstance(each, dict) else each
            left += [(item, depth + 1) for item in inner]


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
