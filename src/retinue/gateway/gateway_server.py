"""HTTP server of the gateway: listening sockets, authentication and routing."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from retinue.core.boundary import ISOLATED
from retinue.gateway import vendor_http
from retinue.gateway.gateway_listeners import (
    OF_ALL,
    OF_ONE_CHILD,
    ON_SHARED_LOOPBACK,
    Face,
    GatewayListener,
    RequestBuffer,
    RequestTooLarge,
)
from retinue.gateway.grants import Grant
from retinue.gateway.providers import ANTHROPIC, GEMINI, OPENAI
from retinue.gateway.proxy import RequestProxy, make_refusal
from retinue.gateway.request_features import WEB_SEARCH
from retinue.gateway.request_policy import SEARCH_LEFT_OUT, strip_hosted_search
from retinue.gateway.usage_meter import ModelRequest
from retinue.gateway.vendor_http import RequestSummary
from retinue.sockets import is_from_deeper_namespace, listen_in, read_inode, remove_own

UNIX_SOCKET = "gateway.sock"


class GatewayServer:
    """HTTP server for children's model requests.

    Every request needs the token of a grant. A child's own listener accepts only that child's
    token.
    """

    def __init__(self, root: Path, passage: RequestProxy) -> None:
        self._root = root
        self._passage = passage
        self._grants: dict[str, Grant] = {}
        self._intakes: dict[str, RequestBuffer] = {}
        self._own: dict[str, GatewayListener] = {}  # listeners inside children, by token
        self._shared: list[GatewayListener] = []
        self._socket: tuple[int, int] | None = None  # device and inode of the socket file

    def open_unix(self) -> None:
        """Open the Unix socket for programs of this user.

        Connections from children are refused, even where a child can see the root.
        """
        listener = listen_in(self._root, UNIX_SOCKET)
        self._socket = read_inode(self._root / UNIX_SOCKET)
        face = self._make_handler(None)
        self._shared.append(
            GatewayListener(listener, face, OF_ALL, refuses=is_from_deeper_namespace)
        )

    def admit(self, grant: Grant, listener: socket.socket | None) -> None:
        self._grants[grant.token] = grant
        self._intakes[grant.token] = RequestBuffer()
        if listener is not None:
            listener.setblocking(False)
            # On a shared loopback, other users could take all places of a small limit.
            boundary = grant.subagent.contract.boundary
            alone = boundary.mode == ISOLATED and boundary.network == "models"
            most = OF_ONE_CHILD if alone else ON_SHARED_LOOPBACK
            self._own[grant.token] = GatewayListener(listener, self._make_handler(grant), most)

    async def revoke_token(self, token: str) -> Grant | None:
        """Invalidate a token, then cancel its requests and wait until they are booked."""
        # First the token, so that no request starts while the running ones are cancelled.
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
        """Revoke every token and close all sockets."""
        for token in list(self._grants):
            await self.revoke_token(token)
        remove_own(self._root / UNIX_SOCKET, self._socket)
        for opening in self._shared:
            await opening.close()

    def describe_wait(self, task: str, subagent: str) -> str:
        """Return why a subagent's request is queued; empty if it is not."""
        found = (g.waits_for for g in self._grants.values() if g.owner == (task, subagent))
        return next(filter(None, found), "")

    def _make_handler(self, only: Grant | None) -> Face:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            grant = self._grants.get(vendor_http.read_token(request.headers, request.query_string))
            name, _, rest = request.rel_url.raw_path.lstrip("/").partition("/")
            # A token that leaked to another child must not work on that child's listener.
            if grant is None or (only is not None and grant is not only):
                wire = name if name in (ANTHROPIC, GEMINI) else OPENAI
                return make_refusal(wire, 401, "invalid_token", "unknown or revoked gateway token")
            work = asyncio.current_task()
            assert work is not None
            grant.under_way.add(work)
            try:
                return await self._serve(grant, name, "/" + rest, request)
            except asyncio.CancelledError:
                # Abort instead of closing: a client must not take a cut answer for a whole one.
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
            message = f"no provider {name[:40]!r} is configured for this task; known: {known}"
            return make_refusal(wire, 404, "unknown_provider", message)
        kind = vendor_http.find_endpoint_kind(provider.wire, request.method, path)
        if kind is None:
            message = f"{request.method} {path[:100]} is not forwarded to {provider.name}"
            return make_refusal(provider.wire, 404, "not_let_through", message)
        intake = self._intakes[grant.token]
        try:
            async with intake.hold_body(request) as body:
                call = ModelRequest(
                    grant=grant,
                    provider=provider,
                    kind=kind,
                    method=request.method,
                    path=path,
                    query=request.rel_url.raw_query_string,
                    headers=list(request.headers.items()),
                    body=b"",
                    asked=RequestSummary(),
                )
                # The body of a GET is dropped.
                if request.method == "POST":
                    call = await self._check_request(call, intake, body)
                return await self._passage.forward(call, request)
        except RequestTooLarge as why:
            message = f"this request is too large: {why}"
            return make_refusal(provider.wire, 413, "request_too_large", message)

    async def _check_request(
        self, call: ModelRequest, intake: RequestBuffer, body: bytes
    ) -> ModelRequest:
        """Return the call with its body and a summary of what it asks for.

        Raises:
            RequestTooLarge: the request has too many strings.
        """
        asked = await intake.describe_request(call.provider.wire, call.path, body)
        # Codex offers a hosted search in every request. Remove it instead of refusing them all.
        if call.grant.policy.is_forbidden(WEB_SEARCH) and WEB_SEARCH in asked.features:
            left = strip_hosted_search(call.headers, body)
            if left is not body:
                body = left
                # Summarise again: the policy must see the body that is sent.
                asked = await intake.describe_request(call.provider.wire, call.path, body)
                self._passage.note_denial(call, WEB_SEARCH, SEARCH_LEFT_OUT)
        return replace(call, body=body, asked=asked)
