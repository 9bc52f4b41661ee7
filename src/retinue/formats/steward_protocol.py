"""Protocol between clients and the steward: one JSON object a line in both directions.

-> {"v": 1, "version": "0.2.0", "id": 7, "verb": "subagent.list", "params": {"task": "site-1a2b3c"}}
<- {"id": 7, "item": …}     any number of times, for verbs that stream
<- {"id": 7, "result": …}   or
<- {"id": 7, "error": {"kind", "code", "message", "hint"}}

-> {"v": 1, "version": "0.2.0", "id": 8, "verb": "request.forget", "params": {"request": 7}}

The last one cancels a request whose client has stopped waiting; it has no reply. With
"leave": true only the wait ends, and the work it started continues. With "tell": true a
reply follows once nothing of the request is in progress.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from retinue.core.errors import KINDS, BadInput, Refused, RetinueError
from retinue.formats.json_text import parse_strict_json
from retinue.version import VERSION as RELEASE

SOCKET = "steward.sock"  # in the root
DESK = "desk"  # folder in the root with a socket for children that may delegate
NEW_ROOT = "--new-root"  # option of a steward whose root was just created
STAY = "--stay"  # option of a steward that ends with its parent and not for lack of work
LISTENER = "--listener"  # option: the descriptor of its listening socket follows
VERSION = 1
FORGET = "request.forget"
REPLACE_STEWARD = (
    "'retinue steward stop' ends it, its subagents keep running, and the next command starts a "
    "new steward"
)
OTHER_VERSION_HINT = (
    f"if it is not misspelled, client and steward are of different versions: {REPLACE_STEWARD}"
)
# Verbs that show and stop a steward work with clients of any release.
FOR_EVERY_VERSION = ("steward.status", "steward.stop", FORGET)
MAX_SEARCH_DEPTH = 8  # levels of nesting that are searched; no verb needs more
# The steward holds a request three times while it reads it. A child gets a lower limit, because
# the steward serves no other client meanwhile.
MAX_REQUEST = 32 * 1024 * 1024
MAX_CHILD_REQUEST = 2 * 1024 * 1024
MOST_FILES = 2000  # files of a workspace in one reply; one more entry means that there are more


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode a message as one line.

    Raises:
        TypeError, ValueError: it holds a value that JSON cannot represent.
    """
    text = json.dumps(message, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.encode("ascii") + b"\n"


def encode_request(
    number: int, verb: str, params: Mapping[str, Any], most: int = MAX_REQUEST
) -> bytes:
    """Encode a request.

    Raises:
        BadInput: it is too long, or holds a value that JSON cannot represent.
    """
    try:
        message = {"v": VERSION, "version": RELEASE, "id": number, "verb": verb, "params": params}
        line = encode(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(
            f"the request cannot be sent: {next(_find_unencodable(params), error)}",
            code="invalid_request",
            hint="use texts, finite numbers, booleans and lists of these; str() for a path",
        ) from None
    if len(line) > most:
        raise make_too_long_error(most)
    return line


def require_version(message: Mapping[str, Any]) -> None:
    """Refuse a client of another release, except for verbs that must always work.

    A verb's parameters and stored values may change between releases: an old steward could do
    the wrong thing for a new client without any error. A client that names no release is allowed.

    Raises:
        Refused: the client is of another release.
    """
    release = message.get("version")
    verb = message.get("verb")
    if release in (None, RELEASE) or verb in FOR_EVERY_VERSION:
        return
    raise Refused(
        f"the steward is retinue {RELEASE}, and this program is retinue {str(release)[:40]}",
        code="steward_version",
        hint=f"{REPLACE_STEWARD}; restart a program that was running during an upgrade",
    )


def to_received_params(verb: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as a steward would decode them.

    Raises:
        BadInput: they cannot be encoded.
    """
    received: dict[str, Any] = decode(encode_request(0, verb, params).rstrip())["params"]
    return received


def make_too_long_error(most: float) -> BadInput:
    return BadInput(
        f"a request may have {most / (1 << 20):g} MiB at most",
        code="message_too_long",
        hint="put large data in files of context_paths",
    )


def decode(line: bytes | bytearray) -> dict[str, Any]:
    """Decode one line.

    Raises:
        BadInput: it is not a JSON object.
    """
    try:
        message = parse_strict_json(line)
    except (ValueError, RecursionError):
        raise BadInput("not a JSON object", code="bad_message") from None
    if not isinstance(message, dict):
        raise BadInput("not a JSON object", code="bad_message")
    return message


def error_to_json(error: RetinueError) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": type(error).__name__,
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
    }
    return document | ({"hints": error.hints} if error.hints else {})


def error_from_json(document: Mapping[str, Any]) -> RetinueError:
    kind = KINDS.get(str(document.get("kind")), RetinueError)
    hints = document.get("hints")
    return kind(
        str(document.get("message", "")),
        code=str(document.get("code", "error")),
        hint=str(document.get("hint", "")),
        hints={str(k): str(v) for k, v in hints.items()} if isinstance(hints, Mapping) else None,
    )


def _find_unencodable(value: Any, place: str = "", deep: int = MAX_SEARCH_DEPTH) -> Iterator[str]:
    """Yield the values that JSON cannot represent, each with its place."""
    if deep and isinstance(value, Mapping):
        for name, each in value.items():
            yield from _find_unencodable(each, f"{place}.{name}" if place else str(name), deep - 1)
    elif deep and isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _find_unencodable(each, f"{place}[{number}]", deep - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{place} is {value}"
    elif value is not None and not isinstance(value, str | int | float | Mapping | list | tuple):
        yield f"{place} is of type {type(value).__name__}"
