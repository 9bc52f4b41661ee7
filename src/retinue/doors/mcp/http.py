"""Many clients over streamable HTTP: loopback, a bearer token, and hosts that are ours."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from retinue.domain.errors import BadInput, StorageFailed
from retinue.doors.mcp.cuts import Cuts
from retinue.doors.mcp.incoming import MAX_LINE, read_line
from retinue.doors.mcp.server import SESSION_HEADER

PATH = "/mcp"
TOKEN_FILE = "mcp-token"
PATIENCE_SECONDS = 20.0  # for the head of a request, and again for its body
MOST_CONNECTIONS = 256
METHODS = ("POST", "GET", "DELETE")


def read_token(root: Path, *, make: bool) -> str:
    """The token that clients must show; made, for this user's eyes only, where there is none.

    Raises:
        BadInput: there is none and none was to be made, or it is no token.
    """
    path = root / TOKEN_FILE
    if make:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
    try:
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise BadInput(
            "without a token only loopback can be served",
            code="no_token",
            hint=f"start it on loopback once, which makes {path}, or put a token of yours there",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StorageFailed(f"{path}: {error}") from None
    if len(token) < 16:
        raise BadInput(f"{path} holds no token of at least 16 characters", code="no_token")
    path.chmod(0o600)
    return token


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Raises:
    BadInput: nobody can listen there.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot listen on {host} port {port}: {why}", code="bad_address") from None


async def serve(
    server: Server[Any], cuts: Cuts, listener: socket.socket, token: str, hosts: Iterable[str]
) -> None:
    """Clients have been served until this process was told to end."""
    port = listener.getsockname()[1]
    names = [f"{host}:{port}" for host in hosts]
    security = TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, transport_security=security, max_request_body_size=MAX_LINE
    )
    config = uvicorn.Config(
        Guard(app, token, security, cuts.note),
        http=Impatient,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    await uvicorn.Server(config).serve(sockets=[listener])


class Impatient(H11Protocol):
    """Drops who connects and then says nothing, and whoever is too many."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.close()
        self.loop.call_later(PATIENCE_SECONDS, self._tire)

    def _tire(self) -> None:
        if self.cycle is None:
            self.transport.close()


class Guard:
    """Nothing reaches the SDK that has no token, comes from elsewhere or is no message."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        security: TransportSecuritySettings,
        note: Callable[[dict[str, Any], str], None],
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._security = security
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope)
        if refused is None and scope["method"] == "POST":
            body = await _body(receive)
            refused = body if isinstance(body, Response) else self._judged(scope, body)
            if isinstance(body, bytes):
                receive = _replayed(body, receive)
        if refused is not None:
            refused.headers["X-Content-Type-Options"] = "nosniff"
            await refused(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if headers.get("host") not in self._security.allowed_hosts:
            return PlainTextResponse("unknown host", 421)
        if origin is not None and origin not in self._security.allowed_origins:
            return PlainTextResponse("unknown origin", 403)
        if scope["path"] != PATH:
            return PlainTextResponse("not found", 404)
        if scope["method"] not in METHODS:
            return PlainTextResponse("method not allowed", 405, {"Allow": ", ".join(METHODS)})
        kind, _, shown = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(shown.strip().encode("utf-8", "replace"), self._token)
        if kind.lower() != "bearer" or not right:
            return PlainTextResponse(
                "a bearer token is needed", 401, {"WWW-Authenticate": "Bearer"}
            )
        content = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and content != "application/json":
            return PlainTextResponse("application/json is needed", 415)
        return None

    def _judged(self, scope: Scope, body: bytes) -> Response | None:
        """An error where the body is no message; nothing where the SDK may have it."""
        read = read_line(body)
        if isinstance(read, dict):
            self._note(read, Headers(scope=scope).get(SESSION_HEADER, ""))
            return None
        if not read:
            return PlainTextResponse("an empty body is no message", 400)
        return JSONResponse(read[0].to_json(), 400)


async def _body(receive: Receive) -> bytes | Response:
    """The whole body, or what to say when it is too long or too slow."""
    parts = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                message = await receive()
                parts += message.get("body", b"")
                if len(parts) > MAX_LINE:
                    return PlainTextResponse("the body is too long", 413)
                if message["type"] != "http.request" or not message.get("more_body"):
                    return bytes(parts)
    except TimeoutError:
        return PlainTextResponse("the body took too long", 408, {"Connection": "close"})


def _replayed(body: bytes, receive: Receive) -> Receive:
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
