"""One request's way: its cost set aside, its turn awaited, its answer read as it passes."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict

import aiohttp
from aiohttp import web

from retinue.domain import event as events
from retinue.domain.errors import StorageFailed
from retinue.domain.event import Event
from retinue.domain.ids import TaskId
from retinue.gateway import providers, replay, wires
from retinue.gateway.grants import Accounts, BudgetUsedUp, Grant
from retinue.gateway.meters import Meter
from retinue.gateway.prices import Prices
from retinue.gateway.replay import Answer, Recordings
from retinue.gateway.reporting import Reporting
from retinue.gateway.tally import Call, Tally, expected
from retinue.gateway.turns import Turnstile
from retinue.gateway.upstream import (
    FOR_GOOD,
    OVERLOADED,
    Outgoing,
    Unreachable,
    Upstream,
    retry_after_ms,
)

PATIENCE_SECONDS = 600.0  # after that, a provider's refusal is passed on


class Passage:
    def __init__(
        self,
        upstream: Upstream,
        accounts: Accounts,
        prices: Prices,
        recordings: Recordings,
        reporting: Reporting,
    ) -> None:
        self._upstream = upstream
        self._accounts = accounts
        self._prices = prices
        self._recordings = recordings
        self._reporting = reporting
        self._turnstiles: dict[str, Turnstile] = defaultdict(Turnstile)
        self._told: dict[str, set[TaskId]] = defaultdict(set)  # of the pause that is on

    async def carry(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        """The answer has passed, and what it took is on record, whole or cut."""
        estimate, priced = expected(call, self._prices)
        if call.grant.subagent.contract.budget.usd is not None and not priced:
            return _price_unknown(call)
        if call.kind == wires.FREE:
            return await self._exchange(call, Tally(call=call), request)
        try:
            await self._accounts.reserve(call.grant, estimate)
        except BudgetUsedUp as why:
            return self._used_up(call, str(why))
        tally = Tally(call=call)
        try:
            return await self._exchange(call, tally, request)
        finally:
            try:
                booking = tally.booking(self._prices)
                self._accounts.settle(call.grant, estimate, booking)
            except StorageFailed as error:
                self._reporting.complain(f"{call.grant.subagent.id}: not booked: {error.message}")

    async def _exchange(
        self, call: Call, tally: Tally, request: web.BaseRequest
    ) -> web.StreamResponse:
        place = None
        if call.grant.traffic.mode != "live" and call.kind != wires.FREE:
            place = self._recordings.place(call.grant, call.provider.wire, call.path, call.body)
        if place is not None and call.grant.traffic.mode == "replay":
            answer = replay.recall(place)
            if answer is None:
                message = f"no answer to this request was recorded (looked for {place.name})"
                return refusal(call.provider.wire, 404, "not_recorded", message)
            return await _replayed(answer, tally, request)
        key = call.provider.key(os.environ)
        if unfit := _unfit(call, key):
            return unfit
        out = Outgoing(
            method=call.method,
            url=wires.target(call.provider, call.path, call.query),
            headers=wires.passed_on(call.headers, call.provider, key),
            body=call.body,
        )
        try:
            response, answer = await self._send(call, tally, out, request, kept=place is not None)
        except Unreachable as why:
            tally.sent = False
            message = f"{call.provider.name} cannot be reached: {why}"
            return refusal(call.provider.wire, 502, "upstream_unreachable", message)
        if place is not None and answer is not None and tally.status == "completed":
            replay.keep(place, call.body, answer)
        return response

    async def _send(
        self, call: Call, tally: Tally, out: Outgoing, request: web.BaseRequest, *, kept: bool
    ) -> tuple[web.StreamResponse, Answer | None]:
        """The provider's answer, however often it first said "too much"."""
        turnstile = self._turnstiles[call.provider.name]
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + PATIENCE_SECONDS
        while True:
            await self._turn(call, turnstile)
            over = turnstile.dropped
            try:
                tally.sent = True
                async with self._upstream.ask(out) as response:
                    if response.status in OVERLOADED:
                        tally.sent = False
                        body = await response.read()
                        patient = loop.time() < patient_until
                        if patient and not any(words in body for words in FOR_GOOD):
                            over = _nothing
                            self._cool_down(call, turnstile, response)
                            continue
                        return await _whole(response, body, request), None
                    over = _nothing
                    turnstile.answered()
                    tally.sent = response.status < 400
                    return await _stream(response, tally, request, kept=kept)
            finally:
                over()

    async def _turn(self, call: Call, turnstile: Turnstile) -> None:
        task = call.grant.subagent.task
        if pause := turnstile.pause_seconds:
            call.grant.waits_for = f"{call.provider.name} cools down for {pause:.1f} s"
            told = self._told[call.provider.name]
            if task not in told:
                told.add(task)
                self._reporting.tell(task, _cooldown(call, pause, turnstile.waiting))
        try:
            await turnstile.enter(call.grant.owner)
        finally:
            call.grant.waits_for = ""

    def _cool_down(
        self, call: Call, turnstile: Turnstile, response: aiohttp.ClientResponse
    ) -> None:
        if turnstile.refused(retry_after_ms(response.headers.get("Retry-After"))):
            self._told[call.provider.name].clear()

    def _used_up(self, call: Call, limit: str) -> web.Response:
        """The agent is told to come to its end, and given a little time for it."""
        grant = call.grant
        grace_ms = grant.subagent.contract.execution.grace_turn_ms
        if not grant.over_budget:
            grant.over_budget = limit
            self._reporting.tell(grant.subagent.task, _exceeded(grant, limit, grace_ms))
            asyncio.get_running_loop().call_later(grace_ms / 1000, grant.stop)
        message = (
            f"budget exceeded: {limit} are used up. No further request will be answered: write "
            f"your answer now, you are stopped {grace_ms / 1000:g} seconds after the first of these"
        )
        return refusal(call.provider.wire, 402, "budget_exceeded", message)


def refusal(wire: str, status: int, code: str, message: str) -> web.Response:
    body = wires.refusal(wire, status, code, message)
    return web.Response(status=status, body=body, content_type="application/json")


async def _stream(
    response: aiohttp.ClientResponse, tally: Tally, request: web.BaseRequest, *, kept: bool
) -> tuple[web.StreamResponse, Answer | None]:
    """Every byte has passed as it came, and has been read."""
    content_type = response.headers.get("Content-Type", "")
    encoding = response.headers.get("Content-Encoding", "")
    meter = tally.meter = Meter(
        tally.call.kind, content_type=content_type, content_encoding=encoding
    )
    passed = _head(response)
    await passed.prepare(request)
    chunks: list[bytes] = []
    try:
        async for data in response.content.iter_any():
            meter.feed(data)
            await passed.write(data)
            if kept:
                chunks.append(data)
    except (aiohttp.ClientPayloadError, TimeoutError, aiohttp.ClientConnectionError):
        # Cut as it was cut for us: a client must not take this for the end.
        if request.transport is not None:
            request.transport.abort()
        return passed, None
    tally.status = "completed"
    await passed.write_eof()
    if not kept or encoding or response.status >= 400:
        return passed, None
    return passed, Answer(status=response.status, content_type=content_type, chunks=tuple(chunks))


async def _whole(
    response: aiohttp.ClientResponse, body: bytes, request: web.BaseRequest
) -> web.StreamResponse:
    passed = _head(response)
    await passed.prepare(request)
    await passed.write(body)
    await passed.write_eof()
    return passed


async def _replayed(answer: Answer, tally: Tally, request: web.BaseRequest) -> web.StreamResponse:
    tally.sent = True
    tally.meter = Meter(tally.call.kind, content_type=answer.content_type)
    passed = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
    passed.enable_chunked_encoding()
    await passed.prepare(request)
    for chunk in answer.chunks:
        tally.meter.feed(chunk)
        await passed.write(chunk)
    tally.status = "replayed"
    await passed.write_eof()
    return passed


def _head(response: aiohttp.ClientResponse) -> web.StreamResponse:
    passed = web.StreamResponse(status=response.status, reason=response.reason)
    for name, value in wires.passed_back(response.headers.items()):
        passed.headers.add(name, value)
    if response.content_length is not None:
        passed.content_length = response.content_length
    else:
        passed.enable_chunked_encoding()
    return passed


def _unfit(call: Call, key: str | None) -> web.Response | None:
    provider = call.provider
    if provider.name == providers.LOCAL:
        message = f"{providers.NOT_INSTALLED}: configure another backend"
        return refusal(provider.wire, 503, "model_not_installed", message)
    if key is None and provider.key_variables:
        message = (
            f"{' or '.join(provider.key_variables)} is not set where the steward was started; "
            "set it, then 'retinue steward stop': the next command starts a new one"
        )
        return refusal(provider.wire, 401, "no_key", message)
    return None


def _price_unknown(call: Call) -> web.Response:
    message = (
        f"no price is known for {call.asked.model!r} of {call.provider.name}, so a budget in USD "
        "cannot be kept: use another model, or a budget in tokens or turns"
    )
    return refusal(call.provider.wire, 402, "price_unknown", message)


def _cooldown(call: Call, pause: float, waiting: int) -> Event:
    name = call.provider.name
    return Event(
        type=events.PROVIDER_COOLDOWN,
        summary=f"{name} is overloaded: everybody waits {pause:.1f} s",
        payload={"provider": name, "seconds": round(pause, 3), "waiting": waiting},
    )


def _exceeded(grant: Grant, limit: str, grace_ms: int) -> Event:
    return Event(
        type=events.BUDGET_EXCEEDED,
        subagent=grant.subagent.id,
        attempt=grant.attempt,
        summary=f"{grant.subagent.id} used up its budget: {limit}",
        payload={"limit": limit, "grace_ms": grace_ms},
    )


def _nothing() -> None:
    """Its turn is over already."""
