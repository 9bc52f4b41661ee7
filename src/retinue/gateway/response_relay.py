"""Relay of answers to the child: bytes pass unchanged while the usage meter reads them."""

from __future__ import annotations

from aiohttp import HttpVersion11, web

from retinue.gateway import vendor_http
from retinue.gateway.http_connection import ConnectionCut, Take
from retinue.gateway.recordings import RecordedAnswer
from retinue.gateway.upstream import ProviderReply, SilenceTimeout
from retinue.gateway.usage_meter import RequestUsage
from retinue.gateway.vendors.usage_fields import RATES_HEADER, Rates, rates_to_text
from retinue.http_framing import BODILESS, ResponseHead

FULL = 64 * 1024  # unsent bytes in the child's connection at which reading pauses


class RelayResponse(web.StreamResponse):
    """Answer written directly to the child's connection; aiohttp's own writer is not used.

    The head goes out together with the first piece if that has arrived, otherwise alone.
    """

    def __init__(
        self, request: web.BaseRequest, head: ResponseHead, rates: Rates | None = None
    ) -> None:
        super().__init__(status=head.status)
        self._request = request
        self._framed = head.length is None and request.version >= HttpVersion11
        self._keeps = request.keep_alive and (self._framed or head.length is not None)
        lines = [f"HTTP/1.1 {head.status} {head.reason}"]
        lines += [
            f"{name}: {value}" for name, value in vendor_http.filter_response_headers(head.headers)
        ]
        # Replace the header if a provider sends one: the rates must be the gateway's own.
        if rates is not None:
            lines = [line for line in lines if not line.lower().startswith(f"{RATES_HEADER}:")]
            lines.append(f"{RATES_HEADER}: {rates_to_text(rates)}")
        if self._framed:
            lines.append("Transfer-Encoding: chunked")
        elif head.length is not None and head.status not in BODILESS:
            lines.append(f"Content-Length: {head.length}")
        if not self._keeps:
            lines.append("Connection: close")
        self._unsent = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        # After a failure aiohttp sends its own error response, unless bytes were written.
        request.writer.output_size += len(self._unsent)

    @property
    def keep_alive(self) -> bool:
        return self._keeps

    def pass_on(self, data: bytes, last: bool = False) -> bool:
        """Write the bytes, and the end of the body after the last; return whether to send more."""
        if self._framed:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data = data + b"0\r\n\r\n" if last else data
        transport = self._request.transport
        if transport is None:
            # The child is gone. Usage is counted until the handler is cancelled.
            return True
        if self._unsent or data:
            transport.write(self._unsent + data if self._unsent else data)
            self._unsent = b""
        return transport.get_write_buffer_size() < FULL

    def cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    async def drain(self) -> None:
        """Wait until the child has read enough, or is gone."""
        await self._request.writer.drain()

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing: `pass_on` writes the head."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: `pass_on` writes the end of the body."""


async def stream(
    reply: ProviderReply,
    tally: RequestUsage,
    request: web.BaseRequest,
    *,
    kept: bool,
    rates: Rates | None,
) -> tuple[web.StreamResponse, RecordedAnswer | None]:
    """Relay the answer while metering it; return the response, and a recording if one is kept."""
    content_type = reply.head.get("content-type")
    encoding = reply.head.get("content-encoding")
    meter = tally.start_meter(content_type, encoding)
    outlet = RelayResponse(request, reply.head, rates)
    chunks: list[bytes] = []
    with SilenceTimeout(reply) as silence:

        def take(data: bytes, last: bool) -> bool:
            # Forward first: metering must not delay the child.
            more = outlet.pass_on(data, last)
            silence.broken = True
            if last:
                tally.status = "completed"
            meter.feed(data)
            tally.moved()
            if kept and data:
                chunks.append(data)
            return more

        whole = await _relay_body(reply, take, outlet)
    if not whole or not kept or encoding or reply.head.status >= 400:
        return outlet, None
    answer = RecordedAnswer(
        status=reply.head.status, content_type=content_type, chunks=tuple(chunks)
    )
    return outlet, answer


async def _relay_body(reply: ProviderReply, take: Take, outlet: RelayResponse) -> bool:
    """Relay the body; return whether it arrived whole. A cut answer is cut for the child too."""
    try:
        reply.line.stream_to(take)
        # Send the head now if no piece of the body has arrived yet.
        outlet.pass_on(b"")
        # Back-pressure: a slow child pauses reading from the provider.
        while not await reply.line.wait_streamed():
            await outlet.drain()
            reply.line.stream_to(take)
    except ConnectionCut:
        # Abort, so that the client does not take this for the end of the answer.
        outlet.cut()
        return False
    return True


def send_whole(reply: ProviderReply, body: bytes, request: web.BaseRequest) -> web.StreamResponse:
    outlet = RelayResponse(request, reply.head)
    outlet.pass_on(body, last=True)
    return outlet


async def replay_answer(
    answer: RecordedAnswer, tally: RequestUsage, request: web.BaseRequest
) -> web.StreamResponse:
    tally.sent = True
    meter = tally.start_meter(answer.content_type)
    headers = [("Content-Type", answer.content_type)]
    outlet = RelayResponse(
        request, ResponseHead(status=answer.status, reason="OK", headers=headers)
    )
    for chunk in answer.chunks:
        meter.feed(chunk)
        if not outlet.pass_on(chunk):
            await outlet.drain()
    tally.status = "replayed"
    outlet.pass_on(b"", last=True)
    return outlet
