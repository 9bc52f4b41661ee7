"""Relay of answers to the child: bytes pass unchanged while the usage meter reads them."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from retinue.gateway.header_policy import filter_response_headers
from retinue.gateway.recordings import RecordedAnswer
from retinue.gateway.upstream import AnswerCut, ProviderReply
from retinue.gateway.usage_meter import RequestUsage
from retinue.gateway.vendors.usage_reading import RATES_HEADER, Rates, rates_to_text

MOST_OF_A_REFUSAL = 8 * 1024  # bytes of an error message that are kept


async def stream(
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
