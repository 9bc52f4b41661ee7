"""HTTP server of the gateway: listening sockets, authentication and routing.

Imported on first use: aiohttp and the price list take half a second.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from retinue.core.contract import TeamMember
from retinue.core.subagent import Subagent
from retinue.core.task_config import ISOLATED, TaskConfig
from retinue.gateway import usage_meter
from retinue.gateway.gateway_listeners import (
    MOST_FOR_CHILD,
    MOST_FOR_USER,
    MOST_ON_LOOPBACK,
    GatewayListener,
    RequestBuffer,
    RequestHandler,
    RequestTooLarge,
)
from retinue.gateway.grants import BudgetAccounts, EventReporter, Grant
from retinue.gateway.local_model.model_client import LocalModel
from retinue.gateway.local_model.weights import find_models_folder
from retinue.gateway.providers import build_routes, list_reachable
from retinue.gateway.proxy import RequestProxy, make_refusal
from retinue.gateway.recordings import Recordings
from retinue.gateway.request_policy import (
    SEARCH_LEFT_OUT,
    build_policy,
    read_token,
    strip_hosted_search,
)
from retinue.gateway.request_summary import RequestSummary
from retinue.gateway.upstream import Upstream
from retinue.gateway.usage_meter import ModelRequest
from retinue.gateway.vendors import find_vendor
from retinue.gateway.vendors.request_features import WEB_SEARCH
from retinue.ports import Stop
from retinue.sockets import is_from_deeper_namespace, listen_in, read_inode, remove_own

UNIX_SOCKET = "gateway.sock"
# Before a member's name in place of a route: the requests of a coding agent are counted apart.
MEMBER_MARK = "@"
IDLE_SECONDS = 2.0  # that a question about a member's requests waits for their end


def _find_member(grant: Grant, name: str) -> TeamMember | None:
    members = grant.subagent.contract.list_members(grant.subagent.id)
    return next((who for known, who in members if known == name), None)


class GatewayServer:
    """HTTP server for children's model requests.

    Every request needs the token of a grant. A child's own listener accepts only that child's
    token.
    """

    def __init__(
        self,
        root: Path,
        *,
        upstream: Upstream,
        local: LocalModel,
        accounts: BudgetAccounts,
        price_list: usage_meter.Prices,
        reporting: EventReporter,
    ) -> None:
        self.upstream = upstream
        self.local = local
        self._root = root
        self._recordings = Recordings(root / "tasks")
        self._proxy = RequestProxy(
            upstream, accounts, price_list, self._recordings, reporting, local
        )
        self._grants: dict[str, Grant] = {}
        self._buffers: dict[str, RequestBuffer] = {}
        self._child_listeners: dict[str, GatewayListener] = {}  # by token
        self._user_listeners: list[GatewayListener] = []
        self._socket_inode: tuple[int, int] | None = None  # device and inode of the socket file

    def open_unix(self) -> None:
        """Open the Unix socket for programs of this user.

        Connections from children are refused, even where a child can see the root.
        """
        listener = listen_in(self._root, UNIX_SOCKET)
        self._socket_inode = read_inode(self._root / UNIX_SOCKET)
        handler = self._make_handler(None)
        self._user_listeners.append(
            GatewayListener(listener, handler, MOST_FOR_USER, refuses=is_from_deeper_namespace)
        )

    def admit(
        self,
        subagent: Subagent,
        attempt: int,
        token: str,
        config: TaskConfig,
        listener: socket.socket | None,
        stop: Stop,
    ) -> None:
        """Accept the token of an attempt, and requests on its listener."""
        boundary = subagent.contract.boundary
        # A command is let through to the fallback as well, as before.
        backends = list_reachable(subagent.contract, config) or config.reachable
        grant = Grant(
            subagent=subagent,
            attempt=attempt,
            token=token,
            routes=build_routes(backends),
            traffic=config.traffic,
            policy=build_policy(
                boundary.network, subagent.contract.budget, backends, config.model_terms
            ),
            stop=stop,
        )
        self._grants[token] = grant
        self._buffers[token] = RequestBuffer()
        if listener is not None:
            listener.setblocking(False)
            # On a shared loopback, other users could take all places of a small limit.
            private = boundary.mode == ISOLATED and boundary.network == "models"
            most = MOST_FOR_CHILD if private else MOST_ON_LOOPBACK
            self._child_listeners[token] = GatewayListener(
                listener, self._make_handler(grant), most
            )

    async def revoke_token(self, token: str) -> Grant | None:
        """Invalidate a token, then cancel its requests and wait until they are booked."""
        # First the token, so that no request starts while the running ones are cancelled.
        grant = self._grants.pop(token, None)
        if grant is None:
            return None
        for request in grant.running:
            request.cancel()
        if grant.running:
            await asyncio.wait(set(grant.running))
        del self._buffers[token]
        if (listener := self._child_listeners.pop(token, None)) is not None:
            await listener.close()
        self._recordings.forget(grant)
        return grant

    async def close(self) -> None:
        """Revoke every token and close all sockets."""
        for token in list(self._grants):
            await self.revoke_token(token)
        remove_own(self._root / UNIX_SOCKET, self._socket_inode)
        for listener in self._user_listeners:
            await listener.close()
        await self.upstream.close()

    def describe_wait(self, task: str, subagent: str) -> str:
        """Return why a subagent's request is queued; empty if it is not."""
        found = (g.waits_for for g in self._grants.values() if g.owner == (task, subagent))
        return next(filter(None, found), "")

    def _make_handler(self, only: Grant | None) -> RequestHandler:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            grant = self._grants.get(read_token(request.headers, request.query_string))
            name, _, rest = request.rel_url.raw_path.lstrip("/").partition("/")
            # A token that leaked to another child must not work on that child's listener.
            if grant is None or (only is not None and grant is not only):
                message = "unknown or revoked gateway token"
                return make_refusal(find_vendor(name), 401, "invalid_token", message)
            task = asyncio.current_task()
            assert task is not None
            grant.running.add(task)
            try:
                return await self._serve(grant, name, "/" + rest, request)
            except asyncio.CancelledError:
                # Abort instead of closing: a client must not take a cut answer for a whole one.
                if request.transport is not None:
                    request.transport.abort()
                raise
            finally:
                grant.running.discard(task)

        return answer

    async def _serve(
        self, grant: Grant, name: str, path: str, request: web.BaseRequest
    ) -> web.StreamResponse:
        member = ""
        if name.startswith(MEMBER_MARK):
            member = name.removeprefix(MEMBER_MARK)
            known = _find_member(grant, member)
            # Only for members: traffic is kept by name as long as the attempt.
            if request.method == "GET" and path == "/" and known is not None:
                traffic = grant.find_member_traffic(member)
                if "expect" in request.query:
                    traffic.expect_words(request.query.getall("expect"))
                if "idle" in request.query:
                    await traffic.wait_idle(IDLE_SECONDS)
                counted = traffic.to_json() | {"over_budget": bool(grant.over_budget)}
                return web.json_response(counted)
            name = known.route if known is not None else ""
        provider = grant.routes.get(name)
        if provider is None:
            routes = ", ".join(f"/{each}" for each in grant.routes)
            message = f"no provider {name[:40]!r} is configured for this task; known: {routes}"
            return make_refusal(find_vendor(name), 404, "unknown_provider", message)
        endpoint = provider.vendor.find_endpoint(request.method, path)
        if endpoint is None:
            message = f"{request.method} {path[:100]} is not forwarded to {provider.name}"
            return make_refusal(provider.vendor, 404, "not_let_through", message)
        buffer = self._buffers[grant.token]
        try:
            async with buffer.hold_body(request) as body:
                call = ModelRequest(
                    grant=grant,
                    provider=provider,
                    endpoint=endpoint,
                    method=request.method,
                    path=path,
                    query=request.rel_url.raw_query_string,
                    headers=list(request.headers.items()),
                    body=b"",
                    summary=RequestSummary(),
                    member=member,
                )
                # The body of a GET is dropped.
                if request.method == "POST":
                    call = await self._check_request(call, buffer, body)
                return await self._proxy.forward(call, request)
        except RequestTooLarge as why:
            message = f"this request is too large: {why}"
            return make_refusal(provider.vendor, 413, "request_too_large", message)

    async def _check_request(
        self, call: ModelRequest, buffer: RequestBuffer, body: bytes
    ) -> ModelRequest:
        """Return the call with its body and a summary of what it asks for.

        Raises:
            RequestTooLarge: the request has too many strings.
        """
        summary = await buffer.describe(call.provider.vendor, call.path, body)
        # Codex offers a hosted search in every request. Remove it instead of refusing them all.
        if call.grant.policy.is_forbidden(WEB_SEARCH) and WEB_SEARCH in summary.features:
            stripped = strip_hosted_search(call.headers, body)
            if stripped is not body:
                body = stripped
                # Summarise again: the policy must see the body that is sent.
                summary = await buffer.describe(call.provider.vendor, call.path, body)
                self._proxy.record_denial(call, WEB_SEARCH, SEARCH_LEFT_OUT)
        return replace(call, body=body, summary=summary)


async def open_server(
    root: Path, accounts: BudgetAccounts, reporting: EventReporter
) -> GatewayServer:
    """Build the gateway and open its Unix socket.

    Raises:
        BadInput: RETINUE_MODELS is not an absolute path.
        OSError: the socket cannot be created.
    """
    local = LocalModel(find_models_folder(os.environ))
    # In a thread: loading the price list takes a good part of a second.
    price_list = await asyncio.to_thread(usage_meter.load)
    upstream = Upstream()
    server = GatewayServer(
        root,
        upstream=upstream,
        local=local,
        accounts=accounts,
        price_list=price_list,
        reporting=reporting,
    )
    try:
        server.open_unix()
    except OSError:
        await upstream.close()
        raise
    return server
