"""HTTP server of the web page."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.responses import HTMLResponse
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.listen_address import BACKLOG, HttpConnection, format_url_host, listen
from retinue.web.page_steward_connection import StewardConnection
from retinue.web.routes import RootRoutes, SiteRoutes
from retinue.web.security_middleware import (
    ADDRESSES,
    LONGEST_HEADERS,
    Access,
    SecurityMiddleware,
    refuse,
    require_token,
)
from retinue.web.static_files import StaticFiles

KEEP_ALIVE_SECONDS = 15
LEAVE_SECONDS = 1


@dataclass(frozen=True, kw_only=True)
class PageAddress:
    """Address of the page; the link works once."""

    host: str
    port: int
    link: str


class PageServer(uvicorn.Server):
    """Uvicorn server that sleeps until it is told to exit, instead of polling."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._over.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)


def serve(
    roots: Sequence[Path],
    *,
    host: str,
    port: int,
    token: str,
    announce: Callable[[PageAddress], None],
) -> None:
    """Serve the page until a signal ends it.

    Raises:
        BadInput: the address cannot be used, or needs a token.
    """
    require_token(host, token)
    listener = listen(host, port)
    bound = listener.getsockname()[1]
    access = Access(host, bound, token)
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    base = f"http://{format_url_host(shown)}:{bound}"
    config = uvicorn.Config(
        build_application(roots, access),
        http=HttpConnection,
        ws="none",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=LONGEST_HEADERS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=LEAVE_SECONDS,
        backlog=BACKLOG,
    )
    announce(PageAddress(host=host, port=bound, link=base + access.entrance))
    asyncio.run(PageServer(config).serve(sockets=[listener]))


def build_application(roots: Sequence[Path], access: Access) -> ASGIApp:
    """Return the application that shows the roots; the first one is shown at `/`."""
    links = [StewardConnection(root) for root in roots]
    files = StaticFiles()

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        for link in links:
            link.close()

    async def answer_not_found(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that matches no route."""
        if scope["path"].startswith("/api/"):
            hint = ADDRESSES
            answer = refuse(404, "not_found", "there is nothing at this address", hint)
        else:
            answer = HTMLResponse(files.missing, 404)
        await answer(scope, receive, send)

    routes = SiteRoutes(access, files).list_routes()
    for number in range(len(links)):
        routes += RootRoutes(links, number, access, files).list_routes()
    router = Router(routes, redirect_slashes=False, default=answer_not_found, lifespan=lifespan)
    return SecurityMiddleware(router, access, files.render_locked(token=access.has_token))
