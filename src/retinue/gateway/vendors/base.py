"""Types and parsers shared by all vendor formats."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from retinue.core.conversation import Call, Reply, Tool, Turn, Used
from retinue.gateway.vendors.usage_fields import Rates, UsageReading

ANSWERS = {"choices", "content", "candidates", "error"}  # an answer has at least one of these
NOTHING = "(nothing)"  # stands for an empty text, which vendors refuse

Document = dict[str, Any]


class VendorError(Exception):
    """The vendor reported an error inside its answer."""


class UnreadableAnswer(Exception):
    """The answer is not in the vendor's documented format."""


@dataclass(frozen=True, kw_only=True)
class VendorRequest:
    """Path, headers and body of one request."""

    path: str
    headers: dict[str, str]
    document: Document


class VendorFormat(Protocol):
    """Translator between conversations and one vendor's format."""

    def build_request(
        self, model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]
    ) -> VendorRequest:
        """Return the request for the model's next turn."""

    def parse_reply(self, documents: Iterable[Document], rates: Rates) -> Reply:
        """Return the reply from the events of a stream, or from a single document.

        Raises:
            VendorError, UnreadableAnswer, ModelFailed: there is no usable reply.
        """


def parse_documents(body: bytes) -> Iterator[Document]:
    """Yield the data of server-sent events, or the single document of a server without streams.

    Raises:
        VendorError: the answer contains an error.
        UnreadableAnswer: the answer is empty or not a JSON object.
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
            raise UnreadableAnswer(f"a part of the answer is not valid JSON: {error}") from None
        if not isinstance(document, dict):
            raise UnreadableAnswer("a part of the answer is not a JSON object")
        yield _refuse_error(document)
    if not found:
        yield _parse_whole(body.strip())


def _parse_whole(said: bytes) -> Document:
    if not said or said.startswith(b":"):
        raise UnreadableAnswer("there is nothing in the answer")
    with suppress(ValueError, RecursionError):
        document = json.loads(said)
        if isinstance(document, dict) and document.keys() & ANSWERS:
            return _refuse_error(document)
    begins = said[:60].decode(errors="replace")
    raise UnreadableAnswer(f"the answer was not streamed and is no known document: {begins!a}")


def _refuse_error(document: Document) -> Document:
    if document.get("error"):
        raise VendorError(read_error_message(document) or "the vendor gave no reason")
    return document


def read_error_message(document: object) -> str:
    """Return the message of an error; all vendors put it in the same place."""
    error = document.get("error", document) if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""


def make_call(name: object, tool: object, arguments: object) -> Call:
    """Return a call; its arguments are an object or the JSON text of one."""
    # Some servers send no id, but the answer to the call needs one.
    known = name if isinstance(name, str) and name else f"call_{uuid.uuid4().hex[:12]}"
    tool = tool if isinstance(tool, str) else ""
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        return Call(id=known, tool=tool, malformed=str(error)[:200])
    if not isinstance(given, dict):
        return Call(id=known, tool=tool, malformed="not an object")
    return Call(id=known, tool=tool, arguments=given)


def to_used(reading: UsageReading, rates: Rates) -> Used:
    return Used(
        input_tokens=reading.input_tokens or 0,
        output_tokens=reading.output_tokens or 0,
        cost=rates.compute_cost(reading),
    )


def to_text(value: object) -> str:
    return value if isinstance(value, str) else ""
