"""Metering of token usage from the bytes of an answer.

The meter does no I/O. It accepts bytes in pieces of any size, and can be read at any time, also
when the answer is cut.
"""

from __future__ import annotations

import importlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from retinue.clock import read_monotonic_ms
from retinue.core.budget import Booking, Spending
from retinue.gateway.grants import Grant
from retinue.gateway.providers import Provider
from retinue.gateway.request_summary import RequestSummary, estimate_tokens
from retinue.gateway.vendors.base import Endpoint, Rates, UsageReading, Vendor

SAMPLE_TOKENS = 1_000  # tokens in a sample computation; small enough for the base price tier


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Price list. It is part of the package and never fetched from the network."""

    package: Any

    def compute_cost(self, provider: Provider, model: str, reading: UsageReading) -> float | None:
        """Return the cost in US dollars; None if the price is unknown."""
        if provider.free:
            return 0.0
        usage = self.package.Usage(
            input_tokens=reading.input_tokens or 0,
            output_tokens=reading.output_tokens or 0,
            cache_read_tokens=reading.cached_tokens,
            cache_write_tokens=reading.cache_written_tokens,
        )
        # The provider's answer may name a more exact model than the request.
        for name in dict.fromkeys([reading.model, model]):
            try:
                found = self.package.calc_price(usage, name, **_select_price_list(provider))
            except (LookupError, ValueError):
                continue
            return float(found.total_price)
        return None

    def estimate_rates(self, provider: Provider, model: str) -> Rates | None:
        """Return the price of a single token, ignoring volume tiers; None if it is unknown."""
        return _estimate_rates(self, provider, model)


@lru_cache(maxsize=256)
def _estimate_rates(prices: Prices, provider: Provider, model: str) -> Rates | None:
    readings = (
        UsageReading(input_tokens=SAMPLE_TOKENS),
        UsageReading(input_tokens=SAMPLE_TOKENS, cached_tokens=SAMPLE_TOKENS),
        UsageReading(input_tokens=SAMPLE_TOKENS, cache_written_tokens=SAMPLE_TOKENS),
        UsageReading(output_tokens=SAMPLE_TOKENS),
    )
    costs = [prices.compute_cost(provider, model, reading) for reading in readings]
    fresh, cached, written, output = [None if c is None else c / SAMPLE_TOKENS for c in costs]
    if fresh is None or cached is None or written is None or output is None:
        return None
    return Rates(fresh=fresh, cached=cached, cache_written=written, output=output)


def load() -> Prices:
    """Import the price list. It takes a good part of a second: call it in a thread."""
    return Prices(package=importlib.import_module("genai_prices"))


def _select_price_list(provider: Provider) -> dict[str, str]:
    if provider.priced_as:
        return {"provider_id": provider.priced_as}
    return {"provider_api_url": provider.base_url}


LARGEST_PIECE = 32 * 1024 * 1024  # longest event or document that is parsed
LARGEST_DEFERRED = 1024 * 1024  # bytes of deferred lines


class UsageMeter:
    """Token counter for one answer.

    In a stream, only events that contain usage are parsed at once. Other lines are deferred, and
    read only if the usage must be estimated from the text.
    """

    def __init__(
        self,
        vendor: Vendor,
        endpoint: Endpoint,
        *,
        content_type: str = "",
        content_encoding: str = "",
        collects_tools: bool = False,
    ) -> None:
        self.reading = UsageReading()
        self.called: set[str] = set()  # names of called tools, if `collects_tools` is set
        self._vendor = vendor
        self._tool_marker = endpoint.tool_marker if collects_tools else b""
        self._read_usage = endpoint.read_usage
        self._text_patterns = [_compile_text_pattern(name) for name in endpoint.text_fields]
        self._streams = "event-stream" in content_type
        self._inflate = _make_inflater(content_encoding)
        self._incomplete = bytearray()  # last line of a stream, or a document
        self._deferred: list[bytes] = []  # lines without usage
        self._deferred_size = 0
        self._skipping = endpoint.free

    def feed(self, data: bytes) -> None:
        """Read more bytes of the answer; malformed ones are ignored."""
        if self._skipping:
            return
        if self._inflate is not None:
            try:
                data = self._inflate(data)
            except zlib.error:
                self._skipping = True
                return
        # Fast path: the piece consists of whole lines and needs no buffer.
        if self._streams and not self._incomplete and data.endswith(b"\n"):
            self._read_lines(data)
            return
        # Line ends are in the new bytes only: what was kept before is a part of one line.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 if self._streams else 0
        if end:
            self._read_lines(bytes(self._incomplete) + data[:end])
            self._incomplete.clear()
        self._incomplete += data[end:]
        if len(self._incomplete) > LARGEST_PIECE:
            self._skipping = True
            self._incomplete.clear()

    def read_so_far(self) -> UsageReading:
        """Return the usage so far; more bytes may follow."""
        if not self.reading.whole:
            self._read_deferred()
        return self.reading

    def finish(self) -> UsageReading:
        """Return the final usage after the last byte."""
        if not self._skipping:
            rest = bytes(self._incomplete)
            self._incomplete = bytearray()
            self._collect_called_tools(rest)
            for document in _parse_event(rest) if self._streams else _parse_documents(rest):
                self._add(document)
        return self.read_so_far()

    def _add(self, document: dict[str, Any]) -> None:
        if self._read_usage is not None:
            try:
                self.reading = self._read_usage(self.reading, document)
            except (AttributeError, TypeError, ValueError, KeyError):
                return  # not in the vendor's documented format

    def _read_lines(self, lines: bytes) -> None:
        """Parse lines that contain usage and defer the others."""
        self._collect_called_tools(lines)
        if not _has_usage(lines):
            self._defer(lines)
            return
        for line in lines.splitlines():
            if _has_usage(line):
                for document in _parse_event(line):
                    self._add(document)
            else:
                self._defer(line)

    def _collect_called_tools(self, lines: bytes) -> None:
        if not self._tool_marker or self._tool_marker not in lines:
            return
        for line in lines.splitlines() if self._streams else [lines]:
            for document in _parse_event(line) if self._streams else _parse_documents(line):
                self.called |= self._vendor.list_called_tools(document)

    def _defer(self, lines: bytes) -> None:
        self._deferred.append(lines)
        self._deferred_size += len(lines)
        if self._deferred_size > LARGEST_DEFERRED:
            self._read_deferred()

    def _read_deferred(self) -> None:
        """Count the characters in deferred lines, with patterns instead of a JSON parser."""
        lines = b"\n".join(self._deferred)
        self._deferred = []
        self._deferred_size = 0
        at = -1 if self.reading.model else lines.find(b'"model')
        if at >= 0 and (model := _MODEL.search(lines, at)):
            self.reading = replace(self.reading, model=model[1].decode("utf-8", "replace"))
        # A substring test is faster than a pattern that does not match.
        patterns = [pattern for name, pattern in self._text_patterns if name in lines]
        found = [text for pattern in patterns for text in pattern.findall(lines)]
        text = b"".join(found).decode("utf-8", "replace")
        count = len(_ESCAPED.sub("?", text) if "\\" in text else text)
        self.reading = replace(self.reading, characters=self.reading.characters + count)


@cache
def _compile_text_pattern(name: str) -> tuple[bytes, re.Pattern[bytes]]:
    """Return a name and a pattern for the string value that follows it.

    A longer name with the same ending matches, too.
    """
    return name.encode(), re.compile(name.encode() + rb'"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"')


_MODEL = re.compile(rb'"model(?:Version)?"\s*:\s*"([^"\\]{1,200})"')
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")


def _has_usage(lines: bytes) -> bool:
    """Return whether the lines contain usage other than `"usage": null`."""
    # This runs for every piece. The search is faster for words that end in a rare letter.
    if b'"timing' in lines:
        return True
    if b'"usag' not in lines:
        return False
    none_yet = lines.count(b'"usage":null') + lines.count(b'"usage": null')
    return lines.count(b'"usage') != none_yet


def _parse_event(line: bytes) -> Iterator[dict[str, Any]]:
    if line.startswith(b"data:"):
        yield from _parse_documents(line[5:])


def _parse_documents(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield every complete object: a single one, or the elements of a list that may be cut."""
    decoder = json.JSONDecoder()
    text = data.decode("utf-8", "replace")
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n[],":
            at += 1
            continue
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        if isinstance(document, dict):
            yield document


def _make_inflater(encoding: str) -> Callable[[bytes], bytes] | None:
    bits = {"gzip": 31, "x-gzip": 31, "deflate": zlib.MAX_WBITS}.get(encoding.lower())
    if bits is None:
        return None
    inflater = zlib.decompressobj(wbits=bits)

    def inflate(data: bytes) -> bytes:
        # Bounded, because a small piece can expand to any size.
        found = inflater.decompress(data, LARGEST_PIECE)
        if inflater.unconsumed_tail:
            raise zlib.error("the decompressed piece is too large")
        return found

    return inflate


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """Request of a child, with its grant and provider."""

    grant: Grant
    provider: Provider
    endpoint: Endpoint
    method: str
    path: str  # without the route, its first segment
    query: str
    headers: list[tuple[str, str]]
    body: bytes = field(repr=False)
    summary: RequestSummary
    member: str = ""  # the coding agent that asks; empty: not known


def _do_nothing() -> None:
    """Do nothing."""


@dataclass(kw_only=True)
class RequestUsage:
    """Progress and usage of one request."""

    call: ModelRequest
    refusal: bytes = b""  # start of the provider's error message
    sent: bool = False
    sent_ms: int | None = None  # when the provider was asked, by the monotonic clock
    status: str = "cut"  # until the last byte has passed
    meter: UsageMeter | None = None
    on_change: Callable[[], None] = _do_nothing  # called after each change

    def start_meter(self, content_type: str, content_encoding: str = "") -> UsageMeter:
        """Create the meter for the answer."""
        self.meter = UsageMeter(
            self.call.provider.vendor,
            self.call.endpoint,
            content_type=content_type,
            content_encoding=content_encoding,
            collects_tools=self.call.grant.is_held_to_tools(self.call.member),
        )
        return self.meter

    @property
    def has_whole_answer(self) -> bool:
        """Return whether the provider answered, and its answer told its usage at its end."""
        return self.meter is not None and not self.refusal and self.meter.read_so_far().whole

    def make_open_booking(self, prices: Prices) -> Booking | None:
        """Return the booking for the usage so far, with the status `open`."""
        booking = self._build_booking(
            prices, self.meter.read_so_far() if self.meter else UsageReading()
        )
        return replace(booking, status="open") if booking else None

    def make_booking(self, prices: Prices) -> Booking | None:
        """Return the final booking; None if no provider was asked or the request is free."""
        return self._build_booking(prices, self.meter.finish() if self.meter else UsageReading())

    def _build_booking(self, prices: Prices, read: UsageReading) -> Booking | None:
        call = self.call
        if not self.sent or call.endpoint.free:
            return None
        reading = self._estimate_missing(read)
        # A replayed answer counts its tokens, but costs nothing.
        cost = prices.compute_cost(call.provider, call.summary.model, reading)
        if self.status == "replayed":
            cost = 0.0
        spending = Spending(
            input_tokens=reading.input_tokens or 0,
            output_tokens=reading.output_tokens or 0,
            cached_tokens=reading.cached_tokens,
            reasoning_tokens=reading.reasoning_tokens,
            cost=cost or 0.0,
            turns=1,
            estimated=not reading.whole,
        )
        return Booking(
            task=call.grant.subagent.task,
            subagent=call.grant.subagent.id,
            attempt=call.grant.attempt,
            provider=call.provider.name,
            model=reading.model or call.summary.model,
            spending=spending,
            priced=cost is not None,
            status=self.status,
            seconds=None if self.sent_ms is None else (read_monotonic_ms() - self.sent_ms) / 1000,
        )

    def _estimate_missing(self, read: UsageReading) -> UsageReading:
        """Fill in estimates for counts that the provider did not report."""
        if read.whole:
            return read
        guessed = estimate_tokens(read.characters)
        given = read.input_tokens
        return replace(
            read,
            input_tokens=self.call.summary.input_tokens if given is None else given,
            output_tokens=max(read.output_tokens or 0, guessed),
        )


def estimate_spending(call: ModelRequest, prices: Prices) -> tuple[Spending, bool]:
    """Return an upper estimate of what a request will use, and whether its price is known."""
    if call.endpoint.free:
        return Spending(), True
    summary = call.summary
    most_input = summary.most_input_tokens
    most_output = summary.most_output_tokens
    reading = UsageReading(input_tokens=most_input, output_tokens=most_output)
    cost = prices.compute_cost(call.provider, summary.model, reading)
    spending = Spending(
        input_tokens=most_input,
        output_tokens=most_output,
        cost=cost or 0.0,
        turns=1,
    )
    return spending, cost is not None
