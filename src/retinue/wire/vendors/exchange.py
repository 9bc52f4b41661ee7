"""What the formats of all vendors have in common."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from retinue.domain.conversation import Call, Reply, Tool, Turn, Used
from retinue.wire.vendors.rates import Rates
from retinue.wire.vendors.readings import Reading

ANSWERS = {"choices", "content", "candidates", "error"}  # what an answer has, or why there is none
NOTHING = "(nothing)"  # in place of words that a vendor would not take empty

Document = dict[str, Any]


class Faulted(Exception):
    """The vendor broke off in the middle of its answer, and said why."""


class Unreadable(Exception):
    """The answer is in no format that its vendor documents."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """One request: where it goes, with which headers, and what it says."""

    path: str
    headers: dict[str, str]
    document: Document


class Format(Protocol):
    def asking(
        self, model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]
    ) -> Asking:
        """The request for what a model says next."""

    def heard(self, documents: Iterable[Document], rates: Rates) -> Reply:
        """What the pieces of an answer come to, or all of it in one.

        Raises:
            Faulted, Unreadable, ModelFailed: to nothing.
        """


def documents(body: bytes) -> Iterator[Document]:
    """The data of server-sent events, or an answer in one piece: not every server streams.

    Raises:
        Faulted: it is an error.
        Unreadable: there is none, or it is no JSON object.
    """
    found = False
    for line in body.splitlines():
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if not data or data == b"[DONE]":
            continue
        found = True
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"a part of the answer is no JSON: {error}") from None
        if not isinstance(document, dict):
            raise Unreadable("a part of the answer is no JSON object")
        yield _sound(document)
    if not found:
        yield _whole(body.strip())


def _whole(said: bytes) -> Document:
    if not said or said.startswith(b":"):
        raise Unreadable("there is nothing in the answer")
    with suppress(ValueError, RecursionError):
        document = json.loads(said)
        if isinstance(document, dict) and document.keys() & ANSWERS:
            return _sound(document)
    begins = said[:60].decode(errors="replace")
    raise Unreadable(f"the answer was not streamed, and is none in one piece: {begins!a}")


def _sound(document: Document) -> Document:
    if document.get("error"):
        raise Faulted(message_of(document) or "it broke off")
    return document


def message_of(document: object) -> str:
    """What an error says in words; all vendors put it in the same place."""
    error = document.get("error", document) if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""


def called(name: object, tool: object, arguments: object) -> Call:
    """A call, whose arguments are an object or the text of one."""
    known = name if isinstance(name, str) and name else f"call_{uuid.uuid4().hex[:12]}"
    tool = tool if isinstance(tool, str) else ""
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        return Call(id=known, tool=tool, malformed=str(error)[:200])
    if not isinstance(given, dict):
        return Call(id=known, tool=tool, malformed="not an object")
    return Call(id=known, tool=tool, arguments=given)


def used(reading: Reading, rates: Rates) -> Used:
    return Used(
        input_tokens=reading.input_tokens or 0,
        output_tokens=reading.output_tokens or 0,
        cost=rates.cost(reading),
    )


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""
