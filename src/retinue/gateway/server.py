"""HTTP in: sockets that children reach, and who is let in at each."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from retinue.files import read_plain, write_atomic
from retinue.gateway import wires
from retinue.gateway.grants import Grant
from retinue.gateway.intake import Intake, TooLarge
from retinue.gateway.opening import OF_ALL, OF_ONE_CHILD, Face, Opening
from retinue.gateway.passage import Passage, refusal
from retinue.gateway.providers import ANTHROPIC, GEMINI, OPENAI
from retinue.gateway.tally import Call
from retinue.sockets import inode_of, listen_in, remove_own

UNIX_SOCKET = "gateway.sock"
PORT_FILE = "gateway.port"


class Server:
    """Listens where children are; a token opens it, and in a child's own place only its own."""

    def __init__(self, root: Path, passage: Passage) -> None:
        self._root = root
        self._passage = passage
        self._grants: dict[str, Grant] = {}
        self._intakes: dict[str, Intake] = {}
        self._own: dict[str, Opening] = {}  # the listeners inside children, by token
        self._shared: list[Opening] = []
        self._socket: tuple[int, int] | None = None  # device and inode of the file
        self._port = 0

    def open_unix(self) -> None:
        """Whoever may see the root reaches it by a file."""
        listener = listen_in(self._root, UNIX_SOCKET)
        self._socket = inode_of(self._root / UNIX_SOCKET)
        self._shared.append(Opening(listener, self._face(None), OF_ALL))

    def loopback(self) -> int:
        """The port at which children without a network of their own find it.

        An earlier steward's children still know its port, so that one is taken again if it is
        free.
        """
        if not self._port:
            listener = _bind_tcp(_known_port(self._root / PORT_FILE))
            self._port = listener.getsockname()[1]
            write_atomic(self._root / PORT_FILE, str(self._port).encode())
            self._shared.append(Opening(listener, self._face(None), OF_ALL))
        return self._port

    def admit(self, grant: Grant, listener: socket.socket | None) -> None:
        self._grants[grant.token], self._intakes[grant.token] = grant, Intake()
        if listener is not None:
            listener.setblocking(False)
            self._own[grant.token] = Opening(listener, self._face(grant), OF_ONE_CHILD)

    async def dismiss(self, token: str) -> Grant | None:
        """The token opens nothing any more; what it had asked for is over and booked."""
        grant = self._grants.pop(token, None)
        if grant is None:
            return None
        for request in grant.under_way:
            request.cancel()
        if grant.under_way:
            await asyncio.wait(set(grant.under_way))
        del self._intakes[token]
        if (opening := self._own.pop(token, None)) is not None:
            await opening.close()
        return grant

    async def close(self) -> None:
        """Nobody is let in; requests under way are cut, and booked."""
        for token in list(self._grants):
            await self.dismiss(token)
        remove_own(self._root / UNIX_SOCKET, self._socket)
        for opening in self._shared:
            await opening.close()

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
        intake = self._intakes[grant.token]
        try:
            async with intake.held(request) as body:
                call = Call(
                    grant=grant,
                    provider=provider,
                    kind=kind,
                    method=request.method,
                    path=path,
                    query=request.rel_url.raw_query_string,
                    headers=list(request.headers.items()),
                    body=body,
                    asked=await intake.described(provider.wire, path, body),
                )
                return await self._passage.carry(call, request)
        except TooLarge as why:
            message = f"this request is too large: {why}"
            return refusal(provider.wire, 413, "request_too_large", message)


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
        port = int(read_plain(path))
        return port if 1024 <= port < 65536 else 0
    return 0
