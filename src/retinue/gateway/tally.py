"""What one request took, told at any moment of its passing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from retinue.domain.budget import Booking, Spending
from retinue.domain.restraint import own_tools
from retinue.gateway import wires
from retinue.gateway.grants import Grant
from retinue.gateway.meters import Meter
from retinue.gateway.prices import Prices
from retinue.gateway.providers import Provider
from retinue.gateway.wires import Asked
from retinue.wire.vendors.readings import Reading


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request that a child sent, as it came."""

    grant: Grant
    provider: Provider
    kind: str
    method: str
    path: str  # without the name it began with
    query: str
    headers: list[tuple[str, str]]
    body: bytes = field(repr=False)
    asked: Asked


def _nothing() -> None:
    """Nobody wants to know."""


@dataclass(kw_only=True)
class Tally:
    """Moves with the request: sent, answered, whole."""

    call: Call
    sent: bool = False
    status: str = "cut"  # until the last byte has passed
    meter: Meter | None = None
    moved: Callable[[], None] = _nothing  # told whenever there is something new

    def meter_for(self, content_type: str, content_encoding: str = "") -> Meter:
        """What reads the answer from now on."""
        self.meter = Meter(
            self.call.kind,
            content_type=content_type,
            content_encoding=content_encoding,
            overhears=own_tools(self.call.grant.subagent.contract.command) is not None,
        )
        return self.meter

    def so_far(self, prices: Prices) -> Booking | None:
        """What would have to be booked if nothing more came."""
        booking = self._booking(prices, self.meter.so_far() if self.meter else Reading())
        return replace(booking, status="open") if booking else None

    def booking(self, prices: Prices) -> Booking | None:
        """What is to be booked; None where nobody was asked, or the asking cost nothing."""
        return self._booking(prices, self.meter.finish() if self.meter else Reading())

    def _booking(self, prices: Prices, read: Reading) -> Booking | None:
        call = self.call
        if not self.sent or call.kind == wires.FREE:
            return None
        reading = self._guessed(read)
        cost = prices.cost(call.provider, call.asked.model, reading)
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
            model=reading.model or call.asked.model,
            spending=spending,
            priced=cost is not None,
            status=self.status,
        )

    def _guessed(self, read: Reading) -> Reading:
        """What the provider said, and a guess at what it did not."""
        if read.whole:
            return read
        guessed = wires.tokens_in(read.characters)
        given = read.input_tokens
        return replace(
            read,
            input_tokens=self.call.asked.input_tokens if given is None else given,
            output_tokens=max(read.output_tokens or 0, guessed),
        )


def expected(call: Call, prices: Prices) -> tuple[Spending, bool]:
    """About what a request will take at most, and whether its price is known."""
    if call.kind == wires.FREE:
        return Spending(), True
    asked = call.asked
    most_input, most_output = asked.most_input_tokens, asked.most_output_tokens
    reading = Reading(input_tokens=most_input, output_tokens=most_output)
    cost = prices.cost(call.provider, asked.model, reading)
    spending = Spending(
        input_tokens=most_input,
        output_tokens=most_output,
        cost=cost or 0.0,
        turns=1,
    )
    return spending, cost is not None
