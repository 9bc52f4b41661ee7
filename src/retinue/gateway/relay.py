"""An answer on its way back: every byte as it came, read in passing."""

from __future__ import annotations

from aiohttp import HttpVersion11, web

from retinue.gateway import wires
from retinue.gateway.lines import Cut, Take
from retinue.gateway.replay import Answer
from retinue.gateway.tally import Tally
from retinue.gateway.upstream import Reply, Silence
from retinue.wire.framing import BODILESS, Head
from retinue.wire.vendors.rates import RATES_HEADER, Rates, rates_to_text

FULL = 64 * 1024  # bytes that a child has not read yet: until it has, no more are taken


class Outlet(web.StreamResponse):
    """An answer written straight to a child's connection; for aiohttp it is over when it is told.

    The head goes out with the first piece if that is there already, else alone.
    """

    def __init__(self, request: web.BaseRequest, head: Head, rates: Rates | None = None) -> None:
        super().__init__(status=head.status)
        self._request = request
        self._framed = head.length is None and request.version >= HttpVersion11
        self._keeps = request.keep_alive and (self._framed or head.length is not None)
        lines = [f"HTTP/1.1 {head.status} {head.reason}"]
        lines += [f"{name}: {value}" for name, value in wires.passed_back(head.headers)]
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
        request.writer.output_size += len(self._unsent)  # aiohttp must not answer in its place

    @property
    def keep_alive(self) -> bool:
        return self._keeps

    def pass_on(self, data: bytes, last: bool = False) -> bool:
        """The bytes are on their way, with the end after the last; whether more may follow."""
        if self._framed:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data = data + b"0\r\n\r\n" if last else data
        transport = self._request.transport
        if transport is None:
            return True  # nobody is there: what passes is still counted, until that is noticed
        if self._unsent or data:
            transport.write(self._unsent + data if self._unsent else data)
            self._unsent = b""
        return transport.get_write_buffer_size() < FULL

    def cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    async def drain(self) -> None:
        """The child has read, or is gone."""
        await self._request.writer.drain()

    async def prepare(self, request: web.BaseRequest) -> None:
        """It is written by itself."""

    async def write_eof(self, data: bytes = b"") -> None:
        """It has ended by itself."""


async def stream(
    reply: Reply,
    tally: Tally,
    request: web.BaseRequest,
    *,
    kept: bool,
    rates: Rates | None,
) -> tuple[web.StreamResponse, Answer | None]:
    """Every byte has passed as it came, and has been read; who asked knows what tokens cost."""
    content_type = reply.head.get("content-type")
    encoding = reply.head.get("content-encoding")
    meter = tally.meter_for(content_type, encoding)
    outlet = Outlet(request, reply.head, rates)
    chunks: list[bytes] = []
    with Silence(reply) as silence:

        def take(data: bytes, last: bool) -> bool:
            more = outlet.pass_on(data, last)
            silence.broken = True
            if last:
                tally.status = "completed"
            meter.feed(data)
            tally.moved()
            if kept and data:
                chunks.append(data)
            return more

        whole = await _all_poured(reply, take, outlet)
    if not whole or not kept or encoding or reply.head.status >= 400:
        return outlet, None
    answer = Answer(status=reply.head.status, content_type=content_type, chunks=tuple(chunks))
    return outlet, answer


async def _all_poured(reply: Reply, take: Take, outlet: Outlet) -> bool:
    """Whether it came to its end; if not, it was cut for the child as it was cut for us."""
    try:
        reply.line.pour(take)
        outlet.pass_on(b"")
        while not await reply.line.poured():
            await outlet.drain()
            reply.line.pour(take)
    except Cut:
        outlet.cut()  # a client must not take this for the end
        return False
    return True


def whole(reply: Reply, body: bytes, request: web.BaseRequest) -> web.StreamResponse:
    outlet = Outlet(request, reply.head)
    outlet.pass_on(body, last=True)
    return outlet


async def replayed(answer: Answer, tally: Tally, request: web.BaseRequest) -> web.StreamResponse:
    tally.sent = True
    meter = tally.meter_for(answer.content_type)
    headers = [("Content-Type", answer.content_type)]
    outlet = Outlet(request, Head(status=answer.status, reason="OK", headers=headers))
    for chunk in answer.chunks:
        meter.feed(chunk)
        if not outlet.pass_on(chunk):
            await outlet.drain()
    tally.status = "replayed"
    outlet.pass_on(b"", last=True)
    return outlet
