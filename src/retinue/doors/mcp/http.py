"""Many clients over streamable HTTP: loopback, a bearer token, and hosts that are ours."""

from __future__ import annotations

import asyncio
import errno
import hmac
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.domain.errors import BadInput, StorageFailed
from retinue.doors.crowd import Connection
from retinue.doors.mcp.cuts import CANCELLED, Cuts
from retinue.doors.mcp.incoming import MAX_LINE, read_line
from retinue.doors.mcp.server import SESSION
from retinue.settings import require_usable

PATH = "/mcp"
TOKEN_FILE, LONGEST_TOKEN = "mcp-token", 4096
METHODS = ("POST", "GET", "DELETE")
SESSION_HEADER, VERSION_HEADER = "mcp-session-id", "mcp-protocol-version"
WHEN_LOST = "retinue.when_lost"  # in the scope: what to do if the connection ends unanswered
ANSWER = b'data: {"jsonrpc":"2.0","id":'  # an event that is no notification


def read_token(root: Path, *, make: bool) -> str:
    """The token that clients must show; made, for this user's eyes only, where there is none.

    Raises:
        BadInput: there is none and none was to be made, or it is no token.
    """
    path = root / TOKEN_FILE
    if make:
        require_usable(root)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
    try:
        token = _own_text(path).strip()
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
    return token


def _own_text(path: Path) -> str:
    """What a file holds that only its owner may read from now on.

    Raises:
        OSError: it cannot be read, or is a link: what that leads to is not ours to change.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), encoding="ascii") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        os.fchmod(file.fileno(), 0o600)
        return file.read(LONGEST_TOKEN)


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
        Guard(app, token, security, cuts),
        http=Caller,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    await uvicorn.Server(config).serve(sockets=[listener])


class Caller(Connection):
    """One whose going is told to whoever works for it."""

    asking_seconds = 20.0  # for some megabytes

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        scope: Scope = {} if self.cycle is None else cast(Scope, self.cycle.scope)
        if (lost := scope.pop(WHEN_LOST, None)) is not None:
            lost()


class Guard:
    """Nothing reaches the SDK that has no token, comes from elsewhere or is no message."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        security: TransportSecuritySettings,
        cuts: Cuts,
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._security = security
        self._cuts = cuts
        self._alone = count(1)  # requests without a session: each is one of its own
        self._ending: set[asyncio.Task[None]] = set()

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
            return
        try:
            await self._app(scope, receive, _watched(scope, send))
        finally:
            scope.pop(WHEN_LOST, None)  # whoever is still there has its answer, or it is we who end

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
            session = Headers(scope=scope).get(SESSION_HEADER) or f"alone {next(self._alone)}"
            scope[SESSION] = session
            self._cuts.note(read, session)
            if read.get("method") == "tools/call" and "id" in read:
                scope[WHEN_LOST] = partial(self._lose, scope, read["id"])
            return None
        if not read:
            return PlainTextResponse("an empty body is no message", 400)
        return JSONResponse(read[0].to_json(), 400)

    def _lose(self, scope: Scope, request: int | str) -> None:
        """Whoever asked is gone, and what its answer tells is told to who asks next.

        By the newer protocol it has thereby taken its request back, and the SDK ends the call. By
        the older it has not; but since no answer can reach it, the call is ended as one that was
        cut for its length.
        """
        headers = Headers(scope=scope)
        older = headers.get(VERSION_HEADER) not in MODERN_PROTOCOL_VERSIONS
        self._cuts.take_back(request, scope[SESSION], cut=older)
        if older and SESSION_HEADER in headers:
            ended = {"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": request}}
            message = _replayed(json.dumps(ended).encode(), _nothing_more)
            task = asyncio.ensure_future(self._app(dict(scope), message, _unheard))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def _watched(scope: Scope, send: Send) -> Send:
    """Once the answer is sent, the end of the connection is no loss."""

    async def watched(message: Message) -> None:
        await send(message)
        part = message["type"] == "http.response.body"
        if part and (not message.get("more_body") or ANSWER in message.get("body", b"")):
            scope.pop(WHEN_LOST, None)

    return watched


async def _nothing_more() -> Message:
    return {"type": "http.disconnect"}


async def _unheard(message: Message) -> None:
    pass


async def _body(receive: Receive) -> bytes | Response:
    """The whole body, or what to say when it is too long."""
    parts = bytearray()
    while True:
        message = await receive()
        parts += message.get("body", b"")
        if len(parts) > MAX_LINE:
            return PlainTextResponse("the body is too long", 413)
        if message["type"] != "http.request" or not message.get("more_body"):
            return bytes(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
