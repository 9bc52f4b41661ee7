"""Base class of vendors, parsers that all of them use, token counts and rates."""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import unquote

from retinue.core.conversation import Call, Reply, ReplyUsage, Tool, Turn

# Token counts read from an answer, and token rates, in the same form for all vendors.

RATES_HEADER = "retinue-rates"


@dataclass(frozen=True, kw_only=True)
class UsageReading:
    """Token counts read from an answer so far."""

    input_tokens: int | None = None  # includes cached tokens
    output_tokens: int | None = None  # includes reasoning tokens
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    reasoning_tokens: int = 0
    characters: int = 0  # text received
    model: str = ""
    whole: bool = False  # the counts are final


def read_count(section: Mapping[str, Any], name: str) -> int:
    """Return a token count; 0 for a wrong type or a huge number, since providers may send any."""
    value = section.get(name)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12
    return int(value) if good and value is not None else 0


def read_detail(usage: Mapping[str, Any], section: str, name: str) -> int:
    details = usage.get(section)
    return read_count(details, name) if isinstance(details, Mapping) else 0


def select_objects(value: object) -> list[Document]:
    """Return the objects of a list; an empty list for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def collect_names(values: Iterable[object]) -> set[str]:
    """Return the `name` of each object that has one."""
    named = (each.get("name") for each in values if isinstance(each, dict))
    return {name for name in named if isinstance(name, str)}


def count_characters(value: object) -> int:
    return len(value) if isinstance(value, str) else 0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """US dollars for each token, for estimates."""

    fresh: float = 0.0
    cached: float = 0.0
    cache_written: float = 0.0
    output: float = 0.0

    def compute_cost(self, reading: UsageReading) -> float:
        fresh = (reading.input_tokens or 0) - reading.cached_tokens - reading.cache_written_tokens
        return (
            max(0, fresh) * self.fresh
            + reading.cached_tokens * self.cached
            + reading.cache_written_tokens * self.cache_written
            + (reading.output_tokens or 0) * self.output
        )


def rates_to_text(rates: Rates) -> str:
    return f"{rates.fresh} {rates.cached} {rates.cache_written} {rates.output}"


def rates_from_text(text: str) -> Rates:
    """Parse rates; return zero rates if the text is malformed."""
    try:
        fresh, cached, cache_written, output = map(float, text.split())
    except ValueError:
        return Rates()
    return Rates(fresh=fresh, cached=cached, cache_written=cache_written, output=output)


ANSWERS = {"choices", "content", "candidates", "error"}  # an answer has at least one of these
NOTHING = "(nothing)"  # stands for an empty text, which vendors refuse
LONGEST_MODEL_NAME = 200

# Patterns for the paths of endpoints.
SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._:@+~-]*"  # no "..", no "..;", no percent-encoding
MODELS = rf"/models(?:/{SEGMENT}){{0,3}}"

Document = dict[str, Any]
Headers = list[tuple[str, str]]
Features = Iterator[tuple[str, str]]  # names of features, each with a description


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


def _find_nothing(document: Document) -> Features:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Endpoint of a vendor's API that the gateway forwards."""

    method: str
    path: str  # regular expression for the whole path
    read_usage: Callable[[UsageReading, Document], UsageReading] | None = None  # None: it is free
    find_features: Callable[[Document], Features] = _find_nothing
    output_limits: tuple[str, ...] = ()  # documented names of the output limit
    text_fields: tuple[str, ...] = ()  # names of text in stream events
    tool_marker: bytes = b""  # part of each event that calls a tool, if `list_called_tools` is used

    @property
    def free(self) -> bool:
        return self.read_usage is None


class Vendor(ABC):
    """One vendor's API. The gateway uses the HTTP part, team members build and parse messages."""

    name: ClassVar[str]
    base_url: ClassVar[str]
    key_variables: ClassVar[tuple[str, ...]]
    priced_as: ClassVar[str]  # name in the price list
    endpoints: ClassVar[tuple[Endpoint, ...]]
    # Version with which a configured address may end, although requests contain it in their path.
    url_version: ClassVar[str] = ""
    models_path: ClassVar[str]  # lists the models, relative to the base URL
    # Small models that coding agents call on their own, for titles, summaries and file names.
    helper_models: ClassVar[tuple[str, ...]] = ()

    def find_endpoint(self, method: str, path: str) -> Endpoint | None:
        """Return the endpoint of a request; None if such requests are not forwarded."""
        # Decode once. A path that is still encoded matches no pattern.
        plain = unquote(path)
        for endpoint in self.endpoints:
            if endpoint.method == method and re.fullmatch(endpoint.path, plain):
                return endpoint
        return None

    def to_provider_path(self, path: str) -> str:
        """Return the path of a request relative to the provider's base URL."""
        return path

    def list_models(self, path: str, document: Document) -> list[str]:
        """Return the models that a request names; the first is the one that answers."""
        return [str(document.get("model") or "")[:LONGEST_MODEL_NAME]]

    def list_called_tools(self, document: Document) -> set[str]:
        """Return the tools that an answer, or an event of its stream, calls."""
        return set()

    def list_offered_tools(self, request: Document) -> set[str]:
        """Return the tools that a request offers the model."""
        return set()

    @abstractmethod
    def build_authorization(self, key: str) -> Headers:
        """Return the headers that carry a key."""

    def build_list_headers(self, key: str | None) -> Headers:
        """Return the headers of a request for the list of models."""
        return [] if key is None else self.build_authorization(key)

    @abstractmethod
    def build_environment(self, address: str, token: str) -> dict[str, str]:
        """Return the variables with which the vendor's clients find the gateway."""

    @abstractmethod
    def build_error(self, status: int, code: str, message: str) -> Document:
        """Return an error in the vendor's format, so that its clients can show it."""

    @abstractmethod
    def build_request(
        self, model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]
    ) -> VendorRequest:
        """Return the request for the model's next turn."""

    @abstractmethod
    def parse_reply(self, documents: Iterable[Document], rates: Rates) -> Reply:
        """Return the reply from the events of a stream, or from a single document.

        Raises:
            VendorError, UnreadableAnswer, ModelFailed: there is no usable reply.
        """

    @abstractmethod
    def build_events(self, text: str, call: Call | None = None) -> list[Document]:
        """Return the events of a short answer with a text or a call, for the warm-up of teams."""


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


def _parse_whole(body: bytes) -> Document:
    if not body or body.startswith(b":"):
        raise UnreadableAnswer("there is nothing in the answer")
    with suppress(ValueError, RecursionError):
        document = json.loads(body)
        if isinstance(document, dict) and document.keys() & ANSWERS:
            return _refuse_error(document)
    start = body[:60].decode(errors="replace")
    raise UnreadableAnswer(f"the answer was not streamed and is no known document: {start!a}")


def _refuse_error(document: Document) -> Document:
    if document.get("error"):
        raise VendorError(read_error_message(document) or "the vendor gave no reason")
    return document


def read_error_message(document: object) -> str:
    """Return the message of an error; all vendors put it in the same place."""
    error = document.get("error", document) if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""


def make_call(call_id: object, tool: object, arguments: object) -> Call:
    """Return a call; its arguments are an object or the JSON text of one."""
    # Some servers send no id, but the answer to the call needs one.
    known = call_id if isinstance(call_id, str) and call_id else f"call_{uuid.uuid4().hex[:12]}"
    tool = tool if isinstance(tool, str) else ""
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        return Call(id=known, tool=tool, malformed=str(error)[:200])
    if not isinstance(given, dict):
        return Call(id=known, tool=tool, malformed="not an object")
    return Call(id=known, tool=tool, arguments=given)


def to_reply_usage(reading: UsageReading, rates: Rates) -> ReplyUsage:
    return ReplyUsage(
        input_tokens=reading.input_tokens or 0,
        output_tokens=reading.output_tokens or 0,
        cost=rates.compute_cost(reading),
    )


def to_text(value: object) -> str:
    return value if isinstance(value, str) else ""
