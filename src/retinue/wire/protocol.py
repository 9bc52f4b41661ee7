"""What clients and the steward say to each other: one JSON object a line, both ways.

-> {"v": 1, "id": 7, "verb": "subagent.list", "params": {"task": "site-1a2b3c"}}
<- {"id": 7, "item": …}     any number of times, for verbs that stream
<- {"id": 7, "result": …}   or
<- {"id": 7, "error": {"kind", "code", "message", "hint"}}

-> {"v": 1, "id": 8, "verb": "request.forget", "params": {"request": 7}}

The last takes a request back that nobody waits for any more; it has no answer. With
"leave": true only the waiting ends: what it had started goes on. With "tell": true it is
answered, once nothing of the request is under way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from retinue.domain.errors import KINDS, BadInput, RetinueError

SOCKET = "steward.sock"  # in the root
DESK = "desk"  # a folder of the root: the same socket, as children see it that may delegate
VERSION = 1
FORGET = "request.forget"
ANOTHER = "'retinue steward stop' ends it, its subagents go on, and the next command starts another"
OTHER_VERSION = f"is it misspelled? Else the steward is of another version than who asks: {ANOTHER}"
DEEP = 8  # no verb asks for more within each other
MAX_REQUEST = 32 * 1024 * 1024  # while it is read, a steward holds it three times
MAX_OF_CHILD = 2 * 1024 * 1024  # and while it does, nobody else is served
MOST_FILES = 2000  # of a workspace, that are named in one answer; one more says that there are more


def encode(message: Mapping[str, Any]) -> bytes:
    """Raises:
    TypeError, ValueError: it holds what JSON has no words for.
    """
    text = json.dumps(message, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.encode("ascii") + b"\n"


def request(number: int, verb: str, params: Mapping[str, Any], most: int = MAX_REQUEST) -> bytes:
    """Raises:
    BadInput: more than a steward would read, or what cannot be told to one.
    """
    try:
        line = encode({"v": VERSION, "id": number, "verb": verb, "params": params})
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(
            f"a request that cannot be sent: {next(_unspeakable(params), error)}",
            code="invalid_request",
            hint="give texts, finite numbers, true or false, and lists of these; str() of a path",
        ) from None
    if len(line) > most:
        raise too_long(most)
    return line


def as_sent(verb: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as a steward would read them.

    Raises:
        BadInput: they cannot be told to one.
    """
    told: dict[str, Any] = decode(request(0, verb, params).rstrip())["params"]
    return told


def too_long(most: float) -> BadInput:
    return BadInput(
        f"a request may have {most / (1 << 20):g} MiB at most",
        code="message_too_long",
        hint="put large data in files of context_paths",
    )


def decode(line: bytes | bytearray) -> dict[str, Any]:
    """Raises:
    BadInput: the line is not one JSON object.
    """
    try:
        message = json.loads(line, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        raise BadInput("not a JSON object", code="bad_message") from None
    if not isinstance(message, dict):
        raise BadInput("not a JSON object", code="bad_message")
    return message


class Lines:
    """What comes over a connection, cut into lines; the one that has only begun is kept."""

    def __init__(self, most: float = math.inf) -> None:
        """Args: most: bytes of a line. A steward's answer is as long as what was asked for."""
        self.most = most
        self._begun = bytearray()

    def whole(self, data: bytes) -> Iterator[bytearray]:
        """The lines that end in this data, without their ends.

        Raises:
            BadInput: the next one is too long.
        """
        self._begun += data
        if b"\n" in data:
            *lines, self._begun = self._begun.split(b"\n")
            for line in lines:
                if len(line) > self.most:
                    raise too_long(self.most)
                yield line
        if len(self._begun) > self.most:
            raise too_long(self.most)


def error_to_json(error: RetinueError) -> dict[str, str]:
    return {
        "kind": type(error).__name__,
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
    }


def error_from_json(document: Mapping[str, Any]) -> RetinueError:
    kind = KINDS.get(str(document.get("kind")), RetinueError)
    return kind(
        str(document.get("message", "")),
        code=str(document.get("code", "error")),
        hint=str(document.get("hint", "")),
    )


def _unspeakable(value: Any, place: str = "", deep: int = DEEP) -> Iterator[str]:
    """What of a value JSON has no words for, and where it stands."""
    if deep and isinstance(value, Mapping):
        for name, each in value.items():
            yield from _unspeakable(each, f"{place}.{name}" if place else str(name), deep - 1)
    elif deep and isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _unspeakable(each, f"{place}[{number}]", deep - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{place} is {value}"
    elif value is not None and not isinstance(value, str | int | float | Mapping | list | tuple):
        yield f"{place} is of type {type(value).__name__}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)
