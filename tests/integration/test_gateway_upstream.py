"""The HTTP client for providers over real sockets: pooling, cuts, TLS and proxies."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from retinue.gateway import upstream as upstream_module
from retinue.gateway.upstream import (
    READ_AHEAD,
    AnswerCut,
    OutgoingRequest,
    ProviderReply,
    Unreachable,
    Upstream,
)

pytestmark = pytest.mark.timeout(30)

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def serving(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run the script for each connection; yield the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def opened() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    try:
        yield upstream
    finally:
        await upstream.close()


def get(url: str, **headers: str) -> OutgoingRequest:
    return OutgoingRequest(method="GET", url=url, headers=list(headers.items()), body=b"")


@asynccontextmanager
async def asked(script: Script) -> AsyncIterator[ProviderReply]:
    """Ask a server that runs the script; yield its answer."""
    async with (
        opened() as upstream,
        serving(script) as port,
        upstream.ask(get(f"http://127.0.0.1:{port}/")) as reply,
    ):
        yield reply


async def read_body(upstream: Upstream, out: OutgoingRequest) -> bytes:
    async with upstream.ask(out) as reply:
        return await reply.read()


def test_a_connection_is_reused_unless_the_provider_closes_it() -> None:
    requests: list[int] = []  # for each connection

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(0)
        while head := await reader.readuntil(b"\r\n\r\n"):
            requests[-1] += 1
            last = b"close: yes" in head
            writer.write(OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n") if last else OK)

    async def act() -> None:
        async with opened() as upstream, serving(script) as port:
            for headers in ({}, {}, {"close": "yes"}, {}):
                url = f"http://127.0.0.1:{port}/x"
                assert await read_body(upstream, get(url, **headers)) == b"ok"

    asyncio.run(act())
    assert requests == [3, 1]


def test_only_the_given_headers_are_sent() -> None:
    heads: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK.replace(b"OK\r\n", b"OK\r\nSet-Cookie: a=b\r\nConnection: close\r\n"))

    async def act() -> None:
        async with opened() as upstream, serving(script) as port:
            for path in ("/a%2Fb", "/a%2Fb"):
                await read_body(upstream, get(f"http://127.0.0.1:{port}{path}", Mine="1"))
            # A key takes the place of a user in the address.
            url = f"http://me:password@127.0.0.1:{port}/"
            await read_body(upstream, get(url, Authorization="Bearer key"))

    asyncio.run(act())
    first, second, third = heads
    assert first == second  # no cookie
    assert first.splitlines()[0] == b"GET /a%2Fb HTTP/1.1"
    assert sorted(line.partition(b":")[0] for line in first.splitlines()[1:-1]) == [
        b"Host",
        b"Mine",
    ]
    assert b"Authorization: Bearer key\r\n" in third


def test_a_redirect_is_not_followed() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"/elsewhere" not in head
        writer.write(b"HTTP/1.1 307 Moved\r\nLocation: /elsewhere\r\ncontent-length: 0\r\n\r\n")

    async def act() -> int:
        async with asked(script) as reply:
            return reply.status

    assert asyncio.run(act()) == 307


def test_reading_pauses_while_the_body_is_not_taken() -> None:
    pieces, size = 100, 1_000_000
    stalled = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(pieces):
            writer.write(b"%x\r\n%b\r\n" % (size, b"x" * size))
            try:
                await asyncio.wait_for(writer.drain(), 0.5)
            except TimeoutError:
                stalled.set()
                await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def act() -> list[int]:
        taken = []
        async with asked(script) as reply:
            await stalled.wait()
            while piece := await reply.read_piece():
                taken.append(len(piece))
        return taken

    taken = asyncio.run(act())
    assert sum(taken) == pieces * size
    assert max(taken) < 8 * READ_AHEAD


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\n",
    ],
    ids=["nothing", "half a head", "no HTTP", "a head without end", "no length"],
)
def test_a_provider_without_a_valid_answer_is_unreachable(answer: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def act() -> None:
        async with opened() as upstream, serving(script) as port:
            with pytest.raises(Unreachable):
                await read_body(upstream, get(f"http://127.0.0.1:{port}/"))

    asyncio.run(act())


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://127.0.0.1:1/", "refused"), ("ftp://host/", "not an HTTP address")],
)
def test_the_error_says_why_there_is_no_connection(url: str, reason: str) -> None:
    async def act() -> None:
        async with opened() as upstream:
            with pytest.raises(Unreachable, match=reason):
                await read_body(upstream, get(url))

    asyncio.run(act())


def test_a_short_body_is_cut_and_one_without_a_length_ends_with_its_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = b"content-length: 9\r\n" if b"/short" in head else b""
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        writer.write(interim + b"HTTP/1.1 200 OK\r\n" + length + b"\r\nhello")

    async def act() -> None:
        async with opened() as upstream, serving(script) as port:
            assert await read_body(upstream, get(f"http://127.0.0.1:{port}/")) == b"hello"
            async with upstream.ask(get(f"http://127.0.0.1:{port}/short")) as reply:
                assert await reply.read_piece() == b"hello"
                with pytest.raises(AnswerCut):
                    await reply.read_piece()

    asyncio.run(act())


def test_a_reset_connection_does_not_end_an_answer() -> None:
    read = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf of")
        await read.wait()
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def act() -> None:
        async with asked(script) as reply:
            assert await reply.read_piece() == b"half of"
            read.set()
            with pytest.raises(AnswerCut, match="cut"):
                await reply.read()

    asyncio.run(act())


def test_a_silent_answer_is_cut_and_a_slow_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "SILENCE_SECONDS", 0.2)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        # Longer than the timeout in total, but never silent for all of it.
        for _ in range(5):
            writer.write(b"x")
            await asyncio.sleep(0.06)
        await reader.read()  # silent until the client closes

    async def act() -> None:
        async with asked(script) as reply:
            said = b""
            with pytest.raises(AnswerCut, match="no data for"):
                while piece := await reply.read_piece():
                    said += piece
            assert said == b"xxxxx"

    asyncio.run(act())


def test_an_answer_that_was_not_read_is_not_given_to_the_next_request() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            said = head.split()[1]
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))

    async def act() -> None:
        async with opened() as upstream, serving(script) as port:
            url = f"http://127.0.0.1:{port}"
            async with upstream.ask(get(f"{url}/unwanted")):
                pass  # like a request that is cancelled when its answer begins
            assert await read_body(upstream, get(f"{url}/wanted")) == b"/wanted"

    asyncio.run(act())


def test_bytes_between_two_requests_are_not_an_answer_to_the_second() -> None:
    read = asyncio.Event()
    written = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(OK)
            if not read.is_set():
                await read.wait()
                writer.write(OK.replace(b"\nok", b"\nno"))
                await writer.drain()
                written.set()

    async def act() -> None:
        async with opened() as upstream, opened() as other, serving(script) as port:
            out = get(f"http://127.0.0.1:{port}/")
            assert await read_body(upstream, out) == b"ok"
            read.set()
            await written.wait()
            # By the end of another request, the event loop has read what was written before it.
            assert await read_body(other, out) == b"ok"
            assert await read_body(upstream, out) == b"ok"

    asyncio.run(act())


def test_an_answer_that_is_kept_in_memory_has_a_size_limit() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\n\r\n")
        while True:
            writer.write(b"x" * READ_AHEAD)
            await writer.drain()

    async def act() -> None:
        async with opened() as upstream, serving(script) as port:
            with pytest.raises(Unreachable, match="too long"):
                await read_body(upstream, get(f"http://127.0.0.1:{port}/"))

    asyncio.run(act())


def test_a_large_request_arrives_whole() -> None:
    body = bytes(range(256)) * 40_000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: %d\r\n" % len(body) in head
        same = await reader.readexactly(len(body)) == body
        writer.write(OK if same else b"")

    async def act() -> bytes:
        async with opened() as upstream, serving(script) as port:
            url = f"http://127.0.0.1:{port}/"
            out = OutgoingRequest(method="POST", url=url, headers=[], body=body)
            return await read_body(upstream, out)

    assert asyncio.run(act()) == b"ok"


def test_a_header_with_a_line_break_is_not_sent() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert not await reader.read()

    async def act() -> None:
        async with opened() as upstream, serving(script) as port:
            with pytest.raises(Unreachable, match="header"):
                await read_body(upstream, get(f"http://127.0.0.1:{port}/", key="a\r\nx: b"))

    asyncio.run(act())


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's certificate for localhost, which SSL_CERT_FILE makes trusted in this process."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 1"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words.split(), *names, *files], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def answer_ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(OK)


def test_a_provider_must_have_a_certificate_for_its_name(tls: ssl.SSLContext) -> None:
    async def act() -> None:
        async with opened() as upstream, serving(answer_ok, tls) as port:
            assert await read_body(upstream, get(f"https://localhost:{port}/v1")) == b"ok"
            with pytest.raises(Unreachable, match="certificate"):
                await read_body(upstream, get(f"https://127.0.0.1:{port}/v1"))

    asyncio.run(act())


class Proxy:
    """Proxy that leads every tunnel to one port and records the requests."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        if not head.startswith(b"CONNECT"):
            writer.write(OK)
            return
        inner, outer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_copy(reader, outer), _copy(inner, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_receives_its_password_and_sees_only_host_and_port(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(upstream_module, "LOOPBACK", ())
    proxy, key = Proxy(), b"Proxy-Authorization: Basic " + b64encode(b"me:p@ss") + b"\r\n"

    async def act() -> None:
        own_tls = tls if scheme == "https" else None
        async with serving(answer_ok, tls) as proxy.port, serving(proxy, own_tls) as port:
            for name in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, f"{scheme}://me:p%40ss@localhost:{port}")
            async with opened() as upstream:
                out = get("https://localhost:1/v1/models", secret="s")
                assert await read_body(upstream, out) == b"ok"
                assert await read_body(upstream, out) == b"ok"  # through the same tunnel
                assert await read_body(upstream, get("http://models.test/v1?a=b")) == b"ok"

    asyncio.run(act())
    tunnel, plain = proxy.asked
    assert tunnel.startswith(b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n")
    assert b"secret" not in tunnel and key in tunnel
    assert plain.startswith(b"GET http://models.test/v1?a=b HTTP/1.1\r\nHost: models.test\r\n")
    assert key in plain


def test_the_answer_of_a_refusing_proxy_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n")

    async def act() -> None:
        async with serving(refuse) as port:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            async with opened() as upstream:
                with pytest.raises(Unreachable, match="the proxy answered 407 Who are you"):
                    await read_body(upstream, get("https://models.test/"))

    asyncio.run(act())
