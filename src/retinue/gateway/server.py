"""HTTP in: sockets that children reach, and who is let in at each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from retinue.files import write_atomic
from retinue.gateway import wires
from retinue.gateway.grants import Grant
from retinue.gateway.passage import Passage, refusal
from retinue.gateway.providers import ANTHROPIC, GEMINI, OPENAI
from retinue.gateway.tally import Call
from retinue.sockets import listen_in

LARGEST_REQUEST = 256 * 1024 * 1024
UNIX_SOCKET = "gateway.sock"
PORT_FILE = "gateway.port"
CLOSE_SECONDS = 0.05  # for connections on which nobody asks; aiohttp takes 0 for ever

Face = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Server:
    """Listens where children are; a token opens it, and in a child's own place only its own."""

    def __init__(self, root: Path, passage: Passage) -> None:
        self._root = root
        self._passage = passage
        self._grants: dict[str, Grant] = {}
        self._own: dict[str, _Opening] = {}  # the listeners inside children, by token
        self._shared: list[_Opening] = []
        self._port = 0

    async def open_unix(self) -> None:
        """Whoever may see the root reaches it by a file."""
        self._shared.append(await _Opening.of(listen_in(self._root, UNIX_SOCKET), self._face(None)))

    async def loopback(self) -> int:
        """The port at which children without a network of their own find it.

        An earlier steward's children still know its port, so that one is taken again if it is
        free.
        """
        if not self._port:
            listener = _bind_tcp(_known_port(self._root / PORT_FILE))
            self._port = listener.getsockname()[1]
            write_atomic(self._root / PORT_FILE, str(self._port).encode())
            self._shared.append(await _Opening.of(listener, self._face(None)))
        return self._port

    async def admit(self, grant: Grant, listener: socket.socket | None) -> None:
        self._grants[grant.token] = grant
        if listener is not None:
            listener.setblocking(False)
            self._own[grant.token] = await _Opening.of(listener, self._face(grant))

    async def dismiss(self, token: str) -> Grant | None:
        """The token opens nothing any more; what it had asked for is over and booked."""
        grant = self._grants.pop(token, None)
        if grant is None:
            return None
        for request in grant.under_way:
            request.cancel()
        if grant.under_way:
            await asyncio.wait(set(grant.under_way))
        if (opening := self._own.pop(token, None)) is not None:
            await opening.close()
        return grant

    async def close(self) -> None:
        """Nobody is let in; requests under way are cut, and booked."""
        for token in list(self._grants):
            await self.dismiss(token)
        for opening in self._shared:
            await opening.close()
        with suppress(FileNotFoundError):
            (self._root / UNIX_SOCKET).unlink()

    def waits_for(self, task: str, subagent: str) -> str:
        """Why a subagent's request stands in a queue; empty when it does not."""
        found = (g.waits_for for g in self._grants.values() if g.owner == (task, subagent))
        return next(filter(None, found), "")

    def _face(self, only: Grant | None) -> Face:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            grant = self._grants.get(wires.presented(request.headers, request.query_string))
            name, _, rest = request.rel_url.raw_path.lstrip("/").partition("/")
            if grant is None or (only is not None and grant is not only):
                wire = name if name in (ANTHROPIC, GEMINI) else OPENAI
                return refusal(wire, 401, "invalid_token", "this token opens nothing here")
            work = asyncio.current_task()
            assert work is not None
            grant.under_way.add(work)
            try:
                return await self._serve(grant, name, "/" + rest, request)
            except asyncio.CancelledError:
                if request.transport is not None:
                    request.transport.abort()
                raise
            finally:
                grant.under_way.discard(work)

        return answer

    async def _serve(
        self, grant: Grant, name: str, path: str, request: web.BaseRequest
    ) -> web.StreamResponse:
        provider = grant.routes.get(name)
        if provider is None:
            wire = name if name in (ANTHROPIC, GEMINI) else OPENAI
            known = ", ".join(f"/{each}" for each in grant.routes)
            message = f"no provider {name[:40]!r} is configured for this task; there is {known}"
            return refusal(wire, 404, "unknown_provider", message)
        kind = wires.endpoint(provider.wire, request.method, path)
        if kind is None:
            message = f"{request.method} {path[:100]} is not let through to {provider.name}"
            return refusal(provider.wire, 404, "not_let_through", message)
        body = await request.read()
        call = Call(
            grant=grant,
            provider=provider,
            kind=kind,
            method=request.method,
            path=path,
            query=request.rel_url.raw_query_string,
            headers=list(request.headers.items()),
            body=body,
            asked=wires.describe(provider.wire, path, body),
        )
        return await self._passage.carry(call, request)


class _Opening:
    """One listening socket, and the connections that came in by it."""

    def __init__(self, protocol: web.Server, server: asyncio.Server) -> None:
        self._protocol = protocol
        self._server = server

    @classmethod
    async def of(cls, listener: socket.socket, face: Face) -> _Opening:
        loop = asyncio.get_running_loop()
        protocol = web.Server(
            face,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=600.0,
        )
        return cls(protocol, await loop.create_server(protocol, sock=listener))

    async def close(self) -> None:
        self._server.close()
        await self._protocol.shutdown(CLOSE_SECONDS)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=LARGEST_REQUEST
    )


def _bind_tcp(preferred: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind(("127.0.0.1", preferred))
        except OSError:
            listener.bind(("127.0.0.1", 0))
        listener.listen(256)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _known_port(path: Path) -> int:
    with suppress(OSError, ValueError):
        port = int(path.read_text())
        return port if 1024 <= port < 65536 else 0
    return 0
