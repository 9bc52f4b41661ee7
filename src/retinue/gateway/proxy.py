"""Forwarding of model requests: check, reserve, wait for the rate limit, relay, settle."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import time

from aiohttp import web

from retinue.clock import read_monotonic_ms
from retinue.core import events
from retinue.core.agent_cli_tools import list_native_tools
from retinue.core.default_models import NOT_SET, SET_IT
from retinue.core.errors import StorageFailed
from retinue.core.events import Event
from retinue.core.ids import TaskId
from retinue.core.safe_text import shorten
from retinue.gateway import recordings as replay
from retinue.gateway.grants import BudgetAccounts, BudgetUsedUp, EventReporter, Grant, LedgerEntry
from retinue.gateway.local_model.model_client import LocalModel, NoLocalModel
from retinue.gateway.providers import Provider
from retinue.gateway.rate_limiter import RateLimiter
from retinue.gateway.recordings import RecordedAnswer, Recordings
from retinue.gateway.request_policy import (
    MOST_RECORDED,
    build_request_headers,
    build_url,
    filter_response_headers,
    make_denial_event,
)
from retinue.gateway.request_summary import parse_document
from retinue.gateway.upstream import (
    EMPTY_ACCOUNT,
    OVERLOADED,
    AnswerCut,
    OutgoingRequest,
    ProviderReply,
    Unreachable,
    Upstream,
    parse_retry_after,
)
from retinue.gateway.usage_meter import ModelRequest, Prices, RequestUsage, estimate_spending
from retinue.gateway.vendors.base import (
    RATES_HEADER,
    Rates,
    Vendor,
    rates_to_text,
    read_error_message,
)

# Relay of answers to the child: bytes pass unchanged while the usage meter reads them.

MOST_OF_A_REFUSAL = 8 * 1024  # bytes of an error message that are kept


async def relay_answer(
    reply: ProviderReply,
    usage: RequestUsage,
    request: web.BaseRequest,
    *,
    record: bool,
    rates: Rates | None,
) -> tuple[web.StreamResponse, RecordedAnswer | None]:
    """Relay and meter the answer; return the response, and the answer if `record` is set."""
    content_type = reply.headers.get("content-type", "")
    encoding = reply.headers.get("content-encoding", "")
    meter = usage.start_meter(content_type, encoding)
    response = _make_response(reply.status, reply.headers.items(), reason=reply.reason)
    response.content_length = reply.length
    # Replaces the header if a provider sends one: the rates must be the gateway's own.
    if rates is not None:
        response.headers[RATES_HEADER] = rates_to_text(rates)
    pieces: list[bytes] = []
    try:
        # The head goes out now: the first piece may take a while.
        await response.prepare(request)
        while piece := await reply.read_piece():
            # Before the piece is sent: what the provider sent counts even if the child is gone.
            meter.feed(piece)
            usage.on_change()
            if record:
                pieces.append(piece)
            if reply.status >= 400:
                usage.refusal = (usage.refusal + piece)[:MOST_OF_A_REFUSAL]
            # Waits while the child does not read, and so pauses reading from the provider.
            await response.write(piece)
        usage.status = "completed"
        # The child has its answer before the usage is recorded.
        await response.write_eof()
    except AnswerCut:
        # Abort, so that the client does not take this for the end of the answer.
        if request.transport is not None:
            request.transport.abort()
        return response, None
    except ConnectionError:
        return response, None  # the child closed its connection
    if not record or encoding or reply.status >= 400:
        return response, None
    return response, RecordedAnswer(
        status=reply.status, content_type=content_type, chunks=tuple(pieces)
    )


def make_whole_response(reply: ProviderReply, body: bytes) -> web.StreamResponse:
    response = web.Response(status=reply.status, reason=reply.reason, body=body)
    response.headers.update(filter_response_headers(reply.headers.items()))
    return response


async def replay_answer(
    answer: RecordedAnswer, usage: RequestUsage, request: web.BaseRequest
) -> web.StreamResponse:
    usage.sent = True
    meter = usage.start_meter(answer.content_type)
    response = _make_response(answer.status, [("Content-Type", answer.content_type)])
    await response.prepare(request)
    for chunk in answer.chunks:
        meter.feed(chunk)
        await response.write(chunk)
    usage.status = "replayed"
    await response.write_eof()
    return response


def _make_response(
    status: int, headers: Iterable[tuple[str, str]], reason: str | None = None
) -> web.StreamResponse:
    response = web.StreamResponse(status=status, reason=reason)
    response.headers.extend(filter_response_headers(headers))
    return response


# Denied tools reported in one attempt. The model chooses the names, so there is a limit.
MOST_DENIED = 16
NOT_OFFERED = "its contract does not grant this tool, so its agent does not offer it"
PATIENCE_SECONDS = 600.0  # after this time the provider's refusal goes to the child


class RequestProxy:
    """Proxy between children and providers."""

    def __init__(
        self,
        upstream: Upstream,
        accounts: BudgetAccounts,
        prices: Prices,
        recordings: Recordings,
        reporting: EventReporter,
        local: LocalModel,
    ) -> None:
        self._upstream = upstream
        self._local = local
        self._accounts = accounts
        self._prices = prices
        self._recordings = recordings
        self._reporting = reporting
        self._limiters: dict[tuple[str, str], RateLimiter] = defaultdict(RateLimiter)
        # Tasks that have an event for the provider's current pause.
        self._notified: dict[tuple[str, str], set[TaskId]] = defaultdict(set)

    async def forward(self, call: ModelRequest, request: web.BaseRequest) -> web.StreamResponse:
        """Relay one request and its answer, and record what it used, even if it is cut."""
        usage = RequestUsage(call=call)
        if not call.member or call.endpoint.free:
            return await self._forward(call, usage, request)
        traffic = call.grant.find_member_traffic(call.member)
        traffic.begin(call.body)
        status, error = 0, "the request was cut"
        try:
            response = await self._forward(call, usage, request)
            status = response.status
            error = _describe_refusal(call.provider, response, usage) if status >= 400 else ""
            return response
        finally:
            # Codex closes the connection as soon as it has read the end of an answer.
            if not status and usage.has_whole_answer:
                status, error = 200, ""
            traffic.end(status, error)

    async def _forward(
        self, call: ModelRequest, usage: RequestUsage, request: web.BaseRequest
    ) -> web.StreamResponse:
        estimate, priced = estimate_spending(call, self._prices)
        # A budget in dollars cannot be enforced for a model without a price.
        if call.grant.subagent.contract.budget.usd is not None and not priced:
            return _refuse_unpriced(call)
        if call.method == "POST" and (
            why := call.grant.policy.find_violation(call.provider, call.summary)
        ):
            self.record_denial(call, why.subject, why.message)
            return make_refusal(call.provider.vendor, why.status, why.code, why.message)
        if call.endpoint.free:
            return await self._answer_call(call, usage, request)
        # Reserve before sending, so that parallel requests cannot overspend the budget.
        try:
            await self._accounts.reserve(call.grant, estimate)
        except BudgetUsedUp as why:
            return self._refuse_over_budget(call, str(why))
        row = LedgerEntry(
            lambda entry: self._accounts.write_entry(usage.make_open_booking(self._prices), entry)
        )
        usage.on_change = row.schedule_write
        try:
            return await self._answer_call(call, usage, request)
        finally:
            # Settle on every path. A cancelled request costs what the provider sent until then.
            try:
                booking = usage.make_booking(self._prices)
                if call.member and booking is not None:
                    call.grant.find_member_traffic(call.member).spent += booking.spending
                self._accounts.settle(call.grant, estimate, booking, row.finish())
            except StorageFailed as error:
                self._reporting.complain(
                    f"{call.grant.subagent.id}: usage was not recorded: {error.message}"
                )
            for event in _make_denial_events(usage):
                self._reporting.report(call.grant.subagent.task, event)

    def record_denial(self, call: ModelRequest, subject: str, reason: str) -> None:
        """Record a refusal, once for each subject and at most MOST_RECORDED times in an attempt."""
        grant = call.grant
        if subject not in grant.refused and len(grant.refused) < MOST_RECORDED:
            grant.refused.add(subject)
            event = make_denial_event(grant.subagent, grant.attempt, call.provider, subject, reason)
            self._reporting.report(grant.subagent.task, event)

    async def _answer_call(
        self, call: ModelRequest, usage: RequestUsage, request: web.BaseRequest
    ) -> web.StreamResponse:
        recording = None
        if call.grant.traffic.mode != "live" and not call.endpoint.free:
            recording = self._recordings.find_path(
                call.grant, call.provider.wire, call.path, call.body
            )
        if recording is not None and call.grant.traffic.mode == "replay":
            answer = replay.load_answer(recording)
            if answer is None:
                return make_refusal(
                    call.provider.vendor, 404, "not_recorded", replay.describe_missing(recording)
                )
            return await replay_answer(answer, usage, request)
        if refusal := _find_refusal(call):
            return refusal
        try:
            async with self._resolve_endpoint(call) as (provider, key):
                out = OutgoingRequest(
                    method=call.method,
                    url=build_url(provider, call.path, call.query),
                    headers=build_request_headers(call.headers, provider, key),
                    body=call.body,
                )
                record = recording is not None
                response, answer = await self._send(call, usage, out, request, record=record)
        except Unreachable as why:
            # No answer came, so nothing is booked.
            usage.sent = False
            message = f"{call.provider.name} cannot be reached: {why}"
            return make_refusal(call.provider.vendor, 502, "upstream_unreachable", message)
        except NoLocalModel as why:
            return make_refusal(call.provider.vendor, 404, "model_not_installed", str(why))
        # A cut answer must not be replayed as a whole one.
        if recording is not None and answer is not None and usage.status == "completed":
            replay.save_answer(recording, call.body, answer)
        return response

    @asynccontextmanager
    async def _resolve_endpoint(
        self, call: ModelRequest
    ) -> AsyncIterator[tuple[Provider, str | None]]:
        """Yield the provider with its address, and its key; keep the local model running.

        Raises:
            NoLocalModel: the local model is not installed or does not start.
        """
        if not call.provider.local:
            yield call.provider, call.provider.read_key(os.environ)
            return
        call.grant.waits_for = "the local model"
        try:
            async with self._local.acquire_endpoint() as endpoint:
                call.grant.waits_for = ""
                yield replace(call.provider, base_url=endpoint.url), endpoint.key
        finally:
            call.grant.waits_for = ""

    async def _send(
        self,
        call: ModelRequest,
        usage: RequestUsage,
        out: OutgoingRequest,
        request: web.BaseRequest,
        *,
        record: bool,
    ) -> tuple[web.StreamResponse, RecordedAnswer | None]:
        """Send the request, again while the provider is overloaded, and relay its answer."""
        limiter = self._limiters[call.provider.place]
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + PATIENCE_SECONDS
        while True:
            await self._wait_turn(call, limiter)
            # The rate limiter must learn the end of each turn exactly once. An exception counts
            # as a drop; the branches below that report an end themselves reset this.
            release = limiter.record_drop
            try:
                usage.sent = True
                usage.sent_ms = read_monotonic_ms()
                usage.on_change()
                async with self._upstream.ask(out) as reply:
                    if reply.status in OVERLOADED:
                        # A refused request is not booked.
                        usage.sent = False
                        body = await reply.read()
                        patient = loop.time() < patient_until
                        if patient and not any(text in body for text in EMPTY_ACCOUNT):
                            release = _skip_release
                            self._pause_provider(call, limiter, reply)
                            continue
                        return make_whole_response(reply, body), None
                    release = _skip_release
                    limiter.record_answer()
                    # Nor is one that ends with an error.
                    usage.sent = reply.status < 400
                    rates = self._prices.estimate_rates(call.provider, call.summary.model)
                    return await relay_answer(reply, usage, request, record=record, rates=rates)
            finally:
                release()

    async def _wait_turn(self, call: ModelRequest, limiter: RateLimiter) -> None:
        task = call.grant.subagent.task
        if pause := limiter.pause_seconds:
            call.grant.waits_for = f"{call.provider.name} cools down for {pause:.1f} s"
            # One event for each task and pause, not one for each request.
            notified = self._notified[call.provider.place]
            if task not in notified:
                notified.add(task)
                self._reporting.report(task, _make_cooldown_event(call, pause, limiter.waiting))
        try:
            await limiter.enter(call.grant.owner)
        finally:
            call.grant.waits_for = ""

    def _pause_provider(
        self, call: ModelRequest, limiter: RateLimiter, reply: ProviderReply
    ) -> None:
        retry_after = parse_retry_after(reply.headers.get("retry-after", ""), time())
        if limiter.record_refusal(retry_after):
            self._notified[call.provider.place].clear()

    def _refuse_over_budget(self, call: ModelRequest, limit: str) -> web.Response:
        """Refuse the request; at the first refusal, schedule the stop of the child."""
        grant = call.grant
        grace_ms = grant.subagent.contract.execution.grace_turn_ms
        if not grant.over_budget:
            grant.over_budget = limit
            self._reporting.report(
                grant.subagent.task, _make_exceeded_event(grant, limit, grace_ms)
            )
            asyncio.get_running_loop().call_later(grace_ms / 1000, grant.stop)
        message = (
            f"budget exceeded: {limit} are used up. Further requests are refused. Write your "
            f"answer now: you are stopped {grace_ms / 1000:g} seconds after the first refusal"
        )
        return make_refusal(call.provider.vendor, 402, "budget_exceeded", message)


def _make_denial_events(usage: RequestUsage) -> list[Event]:
    """Return an event for each tool that the model called but was not offered.

    Each tool is reported once in an attempt.
    """
    grant = usage.call.grant
    called = usage.meter.called if usage.meter else set()
    own = list_native_tools(grant.subagent.contract.command) or frozenset()
    unknown = called - own - grant.denied
    if not unknown or len(grant.denied) >= MOST_DENIED:
        return []
    try:
        request = parse_document(usage.call.body.decode())
    except ValueError:
        return []  # no vendor answers an unreadable request with a tool call
    offered = usage.call.provider.vendor.list_offered_tools(request)
    new = sorted(unknown - offered)[: MOST_DENIED - len(grant.denied)]
    grant.denied.update(new)
    subagent = grant.subagent
    return [
        Event(
            type=events.TOOL_DENIED,
            subagent=subagent.id,
            attempt=grant.attempt,
            summary=shorten(f"{subagent.id} may not use {tool}: {NOT_OFFERED}"),
            payload={
                "member": usage.call.member or subagent.id,
                "tool": shorten(tool, 80),
                "reason": NOT_OFFERED,
            },
        )
        for tool in new
    ]


def _describe_refusal(provider: Provider, response: web.StreamResponse, usage: RequestUsage) -> str:
    """Return a refusal in words: the gateway's own, or the provider's."""
    body = response.body if isinstance(response, web.Response) else usage.refusal
    said = body.decode("utf-8", "replace") if isinstance(body, bytes) else ""
    with suppress(ValueError, RecursionError):
        said = read_error_message(json.loads(said)) or said
    words = shorten(said, 400) if said.isprintable() else ""
    if words and isinstance(response, web.Response):
        return words  # the gateway refused by itself: the provider answered nothing
    return f"{provider.name} answered {response.status}" + (f": {words}" if words else "")


def make_refusal(vendor: Vendor, status: int, code: str, message: str) -> web.Response:
    return web.json_response(vendor.build_error(status, code, message), status=status)


def _find_refusal(call: ModelRequest) -> web.Response | None:
    provider = call.provider
    model = call.summary.model
    if provider.local and model not in ("", LocalModel.name):
        message = f"unknown local model {model!r}; the only one is {LocalModel.name}"
        return make_refusal(provider.vendor, 404, "model_not_found", message)
    if key := provider.find_missing_variable(os.environ):
        message = f"{key} {NOT_SET}; {SET_IT}"
        return make_refusal(provider.vendor, 401, "no_key", message)
    return None


def _refuse_unpriced(call: ModelRequest) -> web.Response:
    message = (
        f"the price of {call.summary.model!r} at {call.provider.name} is unknown, so a budget in "
        "USD cannot be enforced: use another model, or a budget in tokens or turns"
    )
    return make_refusal(call.provider.vendor, 402, "price_unknown", message)


def _make_cooldown_event(call: ModelRequest, pause: float, waiting: int) -> Event:
    name = call.provider.name
    return Event(
        type=events.PROVIDER_COOLDOWN,
        summary=f"{name} is overloaded: all requests to it wait {pause:.1f} s",
        payload={"provider": name, "seconds": round(pause, 3), "waiting": waiting},
    )


def _make_exceeded_event(grant: Grant, limit: str, grace_ms: int) -> Event:
    return Event(
        type=events.BUDGET_EXCEEDED,
        subagent=grant.subagent.id,
        attempt=grant.attempt,
        summary=f"{grant.subagent.id} used up its budget: {limit}",
        payload={"limit": limit, "grace_ms": grace_ms},
    )


def _skip_release() -> None:
    """Do nothing, because the end of the turn was already reported."""
