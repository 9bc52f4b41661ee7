"""The way to providers over real sockets: kept, cut, ciphered, through a proxy."""

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

from retinue.gateway.http_connection import READ_AHEAD, ConnectionCut
from retinue.gateway.upstream import OutgoingRequest, Unreachable, Upstream

pytestmark = pytest.mark.timeout(30)

Scene = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def listening(scene: Scene, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await scene(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def get(url: str, **more: str) -> OutgoingRequest:
    return OutgoingRequest(method="GET", url=url, headers=list(more.items()), body=b"")


async def body_of(upstream: Upstream, out: OutgoingRequest) -> bytes:
    async with upstream.ask(out) as reply:
        return await reply.read()


def test_a_connection_is_kept_for_the_next_request_unless_the_provider_closes_it() -> None:
    met: list[int] = []

    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(0)
        while head := await reader.readuntil(b"\r\n\r\n"):
            met[-1] += 1
            last = b"close: yes" in head
            writer.write(OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n") if last else OK)

    async def act() -> None:
        upstream = Upstream()
        async with listening(scene) as port:
            for headers in ({}, {}, {"close": "yes"}, {}):
                url = f"http://127.0.0.1:{port}/x"
                assert await body_of(upstream, get(url, **headers)) == b"ok"
            upstream.close()

    asyncio.run(act())
    assert met == [3, 1]


def test_while_nobody_takes_what_comes_nothing_is_read() -> None:
    pieces, size = 100, 100_000

    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(pieces):
            writer.write(b"%x\r\n%b\r\n" % (size, b"x" * size))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def act() -> list[int]:
        upstream, taken = Upstream(), []

        def take(data: bytes, last: bool) -> bool:
            taken.append(len(data))
            return False

        async with listening(scene) as port, upstream.ask(get(f"http://127.0.0.1:{port}")) as reply:
            reply.line.stream_to(take)
            while not await reply.line.wait_streamed():
                assert not reply.line.transport.is_reading()
                reply.line.stream_to(take)
        return taken

    taken = asyncio.run(act())
    assert sum(taken) == pieces * size
    assert max(taken) < 2 * READ_AHEAD


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
def test_who_does_not_answer_is_unreachable(answer: bytes) -> None:
    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def act() -> None:
        async with listening(scene) as port:
            with pytest.raises(Unreachable):
                await body_of(Upstream(), get(f"http://127.0.0.1:{port}/"))

    asyncio.run(act())


def test_a_body_that_ends_too_soon_is_cut_and_one_without_a_length_ends_with_its_connection() -> (
    None
):
    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = b"content-length: 9\r\n" if b"/short" in head else b""
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        writer.write(interim + b"HTTP/1.1 200 OK\r\n" + length + b"\r\nhello")

    async def act() -> None:
        upstream = Upstream()
        async with listening(scene) as port:
            assert await body_of(upstream, get(f"http://127.0.0.1:{port}/")) == b"hello"
            async with upstream.ask(get(f"http://127.0.0.1:{port}/short")) as reply:
                reply.line.stream_to(lambda data, last: True)
                with pytest.raises(ConnectionCut):
                    await reply.line.wait_streamed()

    asyncio.run(act())


def test_a_connection_that_breaks_is_the_end_of_no_answer() -> None:
    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf of")
        await reader.readexactly(1)  # until what was written has been read
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def act() -> None:
        upstream = Upstream()
        async with listening(scene) as port, upstream.ask(get(f"http://127.0.0.1:{port}")) as reply:
            reply.line.transport.write(b".")
            with pytest.raises(Unreachable, match="cut"):
                await reply.read()

    asyncio.run(act())


def test_an_answer_that_nobody_took_is_not_given_to_the_next() -> None:
    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            said = head.split()[1]
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))

    async def act() -> None:
        upstream = Upstream()
        async with listening(scene) as port:
            url = f"http://127.0.0.1:{port}"
            async with upstream.ask(get(f"{url}/unwanted")):
                pass  # as one who is cancelled in the moment in which it comes
            assert await body_of(upstream, get(f"{url}/wanted")) == b"/wanted"
            upstream.close()

    asyncio.run(act())


def test_an_answer_that_is_kept_whole_has_an_end() -> None:
    async def scene(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\n\r\n")
        while True:
            writer.write(b"x" * READ_AHEAD)
            await writer.drain()

    async def act() -> None:
        async with listening(scene) as port:
            with pytest.raises(Unreachable, match="too long"):
                await body_of(Upstream(), get(f"http://127.0.0.1:{port}/"))

    asyncio.run(act())


def test_a_header_never_becomes_two() -> None:
    with pytest.raises(Unreachable, match="line break"):
        asyncio.run(body_of(Upstream(), get("http://127.0.0.1:9/", key="a\r\nx: b")))


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What a server needs to be known as localhost, by everyone in this process."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 1"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words.split(), *names, *files], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(OK)


def test_a_provider_that_can_prove_its_name_is_asked_and_another_is_not(
    tls: ssl.SSLContext,
) -> None:
    async def act() -> None:
        upstream = Upstream()
        async with listening(answering, tls) as port:
            assert await body_of(upstream, get(f"https://localhost:{port}/v1")) == b"ok"
            with pytest.raises(Unreachable, match="certificate"):
                await body_of(upstream, get(f"https://127.0.0.1:{port}/v1"))
            upstream.close()

    asyncio.run(act())


class Proxy:
    """Leads where it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.port = 0  # where everything leads

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


def test_a_proxy_is_told_its_password_and_sees_only_whereto(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.gateway.upstream.HERE", ())
    proxy, key = Proxy(), b"Proxy-Authorization: Basic " + b64encode(b"me:p@ss") + b"\r\n"

    async def act() -> None:
        async with listening(answering, tls) as proxy.port, listening(proxy) as port:
            for name in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, f"http://me:p%40ss@127.0.0.1:{port}")
            upstream = Upstream()
            out = get("https://localhost:1/v1/models", secret="s")
            assert await body_of(upstream, out) == b"ok"
            assert await body_of(upstream, out) == b"ok"  # by the same tunnel
            assert await body_of(upstream, get("http://models.test/v1?a=b")) == b"ok"
            upstream.close()

    asyncio.run(act())
    tunnel, plain = proxy.asked
    assert tunnel.startswith(b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n")
    assert b"secret" not in tunnel and key in tunnel
    assert plain.startswith(b"GET http://models.test/v1?a=b HTTP/1.1\r\nHost: models.test\r\n")
    assert key in plain


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n")

    async def act() -> None:
        async with listening(refusing) as port:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            with pytest.raises(Unreachable, match="the proxy answered 407 Who are you"):
                await body_of(Upstream(), get("https://models.test/"))

    asyncio.run(act())
