"""Streamable HTTP transport for many clients.

Access needs a bearer token and a known Host and Origin; the default address is loopback.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hmac
import json
import os
import secrets
import signal
import socket
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.core.errors import BadInput, StorageFailed
from retinue.delegation.task_session import Choice
from retinue.files import hold_descriptor
from retinue.listen_address import LOOPBACK, HttpConnection, format_url_host, is_loopback, listen
from retinue.mcp_server.cancelled_calls import CANCELLED, CancelledCalls
from retinue.mcp_server.jsonrpc_validation import MAX_LINE, read_line
from retinue.mcp_server.sdk_server import SESSION, run
from retinue.trust import make_root

PATH = "/mcp"
TOKEN_FILE, LONGEST_TOKEN = "mcp-token", 4096
METHODS = ("POST", "GET", "DELETE")
SESSION_HEADER, VERSION_HEADER = "mcp-session-id", "mcp-protocol-version"
WHEN_LOST = "retinue.when_lost"  # scope key: called if the connection ends before the answer
ANSWER = b'data: {"jsonrpc":"2.0","id":'  # start of an SSE event that is no notification


def read_token(root: Path, *, make: bool) -> str:
    """Return the bearer token; with `make`, create it if it is missing, readable by its owner only.

    Raises:
        BadInput: there is no token, or it is too short.
        StorageFailed: the file cannot be read.
    """
    path = root / TOKEN_FILE
    if make:
        make_root(root, os.environ)
        try:
            _make_token(path)
        except OSError as error:
            raise StorageFailed(f"{path}: {error.strerror}") from None
    try:
        token = _own_text(path).strip()
    except FileNotFoundError:
        raise BadInput(
            "without a token only loopback can be served",
            code="no_token",
            hint=f"start it on loopback once, which creates {path}, or write your own token there",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StorageFailed(f"{path}: {error}") from None
    if len(token) < 16:
        raise BadInput(
            f"{path} holds no token of at least 16 characters",
            code="no_token",
            hint="remove the file and start the server on loopback, which creates a new token",
        )
    return token


def _make_token(path: Path) -> None:
    """Write a new token into a file that does not exist.

    Raises:
        OSError: it cannot be written; no file is left.
    """
    with hold_descriptor(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as top:
        # Of two servers that start together, the second waits for the first one's whole token.
        fcntl.flock(top, fcntl.LOCK_EX)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileExistsError:
            return
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        except OSError:
            path.unlink()
            raise


def _own_text(path: Path) -> str:
    """Return the text of a file and restrict the file to its owner.

    Raises:
        OSError: it cannot be read, or is a link.
    """
    # O_NOFOLLOW: fchmod must not change a file elsewhere. O_NONBLOCK: opening a FIFO must not
    # wait for its writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), encoding="ascii") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        os.fchmod(file.fileno(), 0o600)
        return file.read(LONGEST_TOKEN)


async def serve(
    server: Server[Any],
    cuts: CancelledCalls,
    listener: socket.socket,
    token: str,
    hosts: Iterable[str],
) -> None:
    """Serve clients until a signal ends this process."""
    port = listener.getsockname()[1]
    names = [f"{host}:{port}" for host in hosts]
    security = TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, transport_security=security, max_request_body_size=MAX_LINE
    )
    config = uvicorn.Config(
        RequestGuard(app, token, security, cuts),
        http=McpHttpConnection,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    await McpHttpServer(config).serve(sockets=[listener])


class McpHttpServer(uvicorn.Server):
    """Server that SIGTERM stops without killing this process: results are still to be returned."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM:
            # Uvicorn would raise a signal that it recorded again, once it has stopped.
            self.should_exit = True
        else:
            super().handle_exit(sig, frame)


class McpHttpConnection(HttpConnection):
    """HTTP connection that runs the WHEN_LOST callback of its request when it closes."""

    # Time for a request to arrive; its body may have some megabytes.
    request_seconds = 20.0

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        scope: Scope = {} if self.cycle is None else cast(Scope, self.cycle.scope)
        if (lost := scope.pop(WHEN_LOST, None)) is not None:
            lost()


class RequestGuard:
    """ASGI middleware that checks host, origin, token and message before the SDK sees them."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        security: TransportSecuritySettings,
        cuts: CancelledCalls,
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._security = security
        self._cuts = cuts
        self._alone = count(1)  # each request without a session gets a number of its own
        self._ending: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._find_refusal(scope)
        if refused is None and scope["method"] == "POST":
            body = await _read_body(receive)
            refused = body if isinstance(body, Response) else self._check_body(scope, body)
            if isinstance(body, bytes):
                receive = _replay_body(body, receive)
        if refused is not None:
            refused.headers["X-Content-Type-Options"] = "nosniff"
            await refused(scope, receive, send)
            return
        try:
            await self._app(scope, receive, _watch_send(scope, send))
        finally:
            # The answer was sent, or this server is stopping: nothing is to be undone.
            scope.pop(WHEN_LOST, None)

    def _find_refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        # Host and origin first: they stop DNS rebinding and requests from web pages.
        if headers.get("host") not in self._security.allowed_hosts:
            return PlainTextResponse("unknown host", 421)
        if origin is not None and origin not in self._security.allowed_origins:
            return PlainTextResponse("unknown origin", 403)
        if scope["path"] != PATH:
            return PlainTextResponse("not found", 404)
        if scope["method"] not in METHODS:
            return PlainTextResponse("method not allowed", 405, {"Allow": ", ".join(METHODS)})
        kind, _, shown = headers.get("authorization", "").partition(" ")
        # Constant time, so that response times reveal nothing of the token.
        right = hmac.compare_digest(shown.strip().encode("utf-8", "replace"), self._token)
        if kind.lower() != "bearer" or not right:
            return PlainTextResponse("bearer token required", 401, {"WWW-Authenticate": "Bearer"})
        content = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and content != "application/json":
            return PlainTextResponse("content type must be application/json", 415)
        return None

    def _check_body(self, scope: Scope, body: bytes) -> Response | None:
        """Return an error response if the body is no message; else None."""
        read = read_line(body)
        if isinstance(read, dict):
            session = Headers(scope=scope).get(SESSION_HEADER) or f"alone {next(self._alone)}"
            scope[SESSION] = session
            self._cuts.note(read, session)
            if read.get("method") == "tools/call" and "id" in read:
                scope[WHEN_LOST] = partial(self._return_undelivered, scope, read["id"])
            return None
        if read is None:
            return PlainTextResponse("the body is empty", 400)
        return JSONResponse(read.to_json(), 400)

    def _return_undelivered(self, scope: Scope, request: int | str) -> None:
        """Handle a connection that was lost before its answer: the results are delivered again.

        In the newer protocol a lost connection cancels the request, and the SDK ends the call. In
        the older one it does not; but since no answer can reach the client, the call is ended as
        if the client's timeout had ended it.
        """
        headers = Headers(scope=scope)
        older = headers.get(VERSION_HEADER) not in MODERN_PROTOCOL_VERSIONS
        self._cuts.take_back(request, scope[SESSION], cut=older)
        # Send the SDK the cancellation that an older client does not send.
        if older and SESSION_HEADER in headers:
            ended = {"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": request}}
            message = _replay_body(json.dumps(ended).encode(), _receive_disconnect)
            task = asyncio.ensure_future(self._app(dict(scope), message, _discard_message))
            # asyncio keeps only weak references to tasks.
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def _watch_send(scope: Scope, send: Send) -> Send:
    """Return a `send` that disarms WHEN_LOST once the answer is sent."""

    async def send_watched(message: Message) -> None:
        await send(message)
        part = message["type"] == "http.response.body"
        # An SSE stream may stay open after the event that carries the answer.
        if part and (not message.get("more_body") or ANSWER in message.get("body", b"")):
            scope.pop(WHEN_LOST, None)

    return send_watched


async def _receive_disconnect() -> Message:
    return {"type": "http.disconnect"}


async def _discard_message(message: Message) -> None:
    pass


async def _read_body(receive: Receive) -> bytes | Response:
    """Return the whole body, or an error response if it is too long."""
    parts = bytearray()
    while True:
        message = await receive()
        parts += message.get("body", b"")
        if len(parts) > MAX_LINE:
            return PlainTextResponse("the body is too long", 413)
        if message["type"] != "http.request" or not message.get("more_body"):
            return bytes(parts)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


@dataclass(frozen=True, kw_only=True)
class ListenAddress:
    host: str
    port: int
    names: Sequence[str]  # further host names that clients may use


def run_http(
    root: Path, choice: Choice, address: ListenAddress, say: Callable[[str, Path], None]
) -> None:
    """Serve clients over HTTP; `say` receives the URL and the token file once it listens.

    Raises:
        BadInput: the address cannot be used, or not without a token.
    """
    # Only loopback gets a generated token; any other address needs one that exists.
    token = read_token(root, make=is_loopback(address.host))
    listener = listen(address.host, address.port)
    shown = format_url_host(address.host)
    hosts = (*LOOPBACK, shown, *address.names)

    async def serve_clients(server: Server[Any], cuts: CancelledCalls) -> None:
        port = listener.getsockname()[1]
        say(f"http://{shown}:{port}{PATH}", root / TOKEN_FILE)
        await serve(server, cuts, listener, token, hosts)

    with listener:
        run(root, choice, serve_clients)
