"""One request's way: its cost set aside, its turn awaited, its answer read as it passes."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from time import time

from aiohttp import web

from retinue.domain import event as events
from retinue.domain.defaults import NOT_SET, SET_IT
from retinue.domain.errors import StorageFailed
from retinue.domain.event import Event
from retinue.domain.ids import TaskId
from retinue.gateway import relay, replay, wires
from retinue.gateway.grants import Accounts, BudgetUsedUp, Grant
from retinue.gateway.local.lease import LocalModel, NoLocalModel
from retinue.gateway.notes import Note
from retinue.gateway.overheard import denials
from retinue.gateway.prices import Prices
from retinue.gateway.providers import Provider
from retinue.gateway.replay import Answer, Recordings
from retinue.gateway.reporting import Reporting
from retinue.gateway.tally import Call, Tally, expected
from retinue.gateway.turns import Turnstile
from retinue.gateway.upstream import (
    FOR_GOOD,
    OVERLOADED,
    Outgoing,
    Reply,
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
        local: LocalModel,
    ) -> None:
        self._upstream = upstream
        self._local = local
        self._accounts = accounts
        self._prices = prices
        self._recordings = recordings
        self._reporting = reporting
        self._turnstiles: dict[tuple[str, str], Turnstile] = defaultdict(Turnstile)
        self._told: dict[tuple[str, str], set[TaskId]] = defaultdict(set)  # of the pause that is on

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
        note = Note(lambda entry: self._accounts.note(tally.so_far(self._prices), entry))
        tally.moved = note.soon
        try:
            return await self._exchange(call, tally, request)
        finally:
            try:
                booking, entry = tally.booking(self._prices), note.over()
                self._accounts.settle(call.grant, estimate, booking, entry)
            except StorageFailed as error:
                self._reporting.complain(f"{call.grant.subagent.id}: not booked: {error.message}")
            for event in denials(tally):
                self._reporting.tell(call.grant.subagent.task, event)

    async def _exchange(
        self, call: Call, tally: Tally, request: web.BaseRequest
    ) -> web.StreamResponse:
        place = None
        if call.grant.traffic.mode != "live" and call.kind != wires.FREE:
            place = self._recordings.place(call.grant, call.provider.wire, call.path, call.body)
        if place is not None and call.grant.traffic.mode == "replay":
            answer = replay.recall(place)
            if answer is None:
                return refusal(call.provider.wire, 404, "not_recorded", replay.missing(place))
            return await relay.replayed(answer, tally, request)
        if unfit := _unfit(call):
            return unfit
        try:
            async with self._whereabouts(call) as (provider, key):
                out = Outgoing(
                    method=call.method,
                    url=wires.target(provider, call.path, call.query),
                    headers=wires.passed_on(call.headers, provider, key),
                    body=call.body,
                )
                kept = place is not None
                response, answer = await self._send(call, tally, out, request, kept=kept)
        except Unreachable as why:
            tally.sent = False
            message = f"{call.provider.name} cannot be reached: {why}"
            return refusal(call.provider.wire, 502, "upstream_unreachable", message)
        except NoLocalModel as why:
            return refusal(call.provider.wire, 404, "model_not_installed", str(why))
        if place is not None and answer is not None and tally.status == "completed":
            replay.keep(place, call.body, answer)
        return response

    @asynccontextmanager
    async def _whereabouts(self, call: Call) -> AsyncIterator[tuple[Provider, str | None]]:
        """Where the provider is and what opens it; the local model stays there meanwhile.

        Raises:
            NoLocalModel: it cannot be used here.
        """
        if not call.provider.local:
            yield call.provider, call.provider.key(os.environ)
            return
        call.grant.waits_for = "the local model"
        try:
            async with self._local.lease() as place:
                call.grant.waits_for = ""
                yield replace(call.provider, base_url=place.url), place.key
        finally:
            call.grant.waits_for = ""

    async def _send(
        self, call: Call, tally: Tally, out: Outgoing, request: web.BaseRequest, *, kept: bool
    ) -> tuple[web.StreamResponse, Answer | None]:
        """The provider's answer, however often it first said "too much"."""
        turnstile = self._turnstiles[call.provider.place]
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + PATIENCE_SECONDS
        while True:
            await self._turn(call, turnstile)
            over = turnstile.dropped
            try:
                tally.sent = True
                tally.moved()
                async with self._upstream.ask(out) as reply:
                    if reply.head.status in OVERLOADED:
                        tally.sent = False
                        body = await reply.read()
                        patient = loop.time() < patient_until
                        if patient and not any(words in body for words in FOR_GOOD):
                            over = _nothing
                            self._cool_down(call, turnstile, reply)
                            continue
                        return relay.whole(reply, body, request), None
                    over = _nothing
                    turnstile.answered()
                    tally.sent = reply.head.status < 400
                    rates = self._prices.rates(call.provider, call.asked.model)
                    return await relay.stream(reply, tally, request, kept=kept, rates=rates)
            finally:
                over()

    async def _turn(self, call: Call, turnstile: Turnstile) -> None:
        task = call.grant.subagent.task
        if pause := turnstile.pause_seconds:
            call.grant.waits_for = f"{call.provider.name} cools down for {pause:.1f} s"
            told = self._told[call.provider.place]
            if task not in told:
                told.add(task)
                self._reporting.tell(task, _cooldown(call, pause, turnstile.waiting))
        try:
            await turnstile.enter(call.grant.owner)
        finally:
            call.grant.waits_for = ""

    def _cool_down(self, call: Call, turnstile: Turnstile, reply: Reply) -> None:
        if turnstile.refused(retry_after_ms(reply.head.get("retry-after"), time())):
            self._told[call.provider.place].clear()

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


def _unfit(call: Call) -> web.Response | None:
    provider, asked = call.provider, call.asked.model
    if provider.local and asked not in ("", LocalModel.name):
        message = f"there is no local model {asked!r}; there is {LocalModel.name}"
        return refusal(provider.wire, 404, "model_not_found", message)
    if key := provider.lacks(os.environ):
        message = f"{key} {NOT_SET}; {SET_IT}"
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
