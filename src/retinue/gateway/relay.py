"""An answer on its way back: every byte as it came, read in passing."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from retinue.gateway import wires
from retinue.gateway.meters import Meter
from retinue.gateway.replay import Answer
from retinue.gateway.tally import Tally
from retinue.gateway.upstream import Silence
from retinue.wire.vendors.rates import RATES_HEADER, Rates, rates_to_text


async def stream(
    response: aiohttp.ClientResponse,
    tally: Tally,
    request: web.BaseRequest,
    *,
    kept: bool,
    rates: Rates | None = None,
) -> tuple[web.StreamResponse, Answer | None]:
    """Every byte has passed as it came, and has been read; who asked knows what tokens cost."""
    content_type = response.headers.get("Content-Type", "")
    encoding = response.headers.get("Content-Encoding", "")
    meter = tally.meter = Meter(
        tally.call.kind, content_type=content_type, content_encoding=encoding
    )
    passed = _head(response)
    if rates is not None:
        passed.headers[RATES_HEADER] = rates_to_text(rates)
    await passed.prepare(request)
    chunks: list[bytes] = []
    try:
        with Silence(response) as silence:
            while data := await response.content.readany():
                silence.broken = True
                meter.feed(data)
                tally.moved()
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


async def whole(
    response: aiohttp.ClientResponse, body: bytes, request: web.BaseRequest
) -> web.StreamResponse:
    passed = _head(response)
    await passed.prepare(request)
    await passed.write(body)
    await passed.write_eof()
    return passed


async def replayed(answer: Answer, tally: Tally, request: web.BaseRequest) -> web.StreamResponse:
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
