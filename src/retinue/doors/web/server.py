"""The page's server: one process, one address, for as long as the command runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.responses import HTMLResponse
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.doors.addresses import BACKLOG, bracketed, listen
from retinue.doors.crowd import Connection
from retinue.doors.web.access import Access, require_token
from retinue.doors.web.files import Files
from retinue.doors.web.guard import LONGEST_HEADERS, Guard, refuse
from retinue.doors.web.link import Link
from retinue.doors.web.routes import Routes

KEEP_ALIVE_SECONDS = 15
LEAVE_SECONDS = 1


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the page is: the link works once, the rest for as long as the server runs."""

    host: str
    port: int
    link: str


class Server(uvicorn.Server):
    """Waits for its end instead of asking ten times a second whether it has come."""

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
    root: Path, *, host: str, port: int, token: str, announce: Callable[[Address], None]
) -> None:
    """The page was served until somebody ended it.

    Raises:
        BadInput: the address cannot be used, or is not safe to be.
    """
    require_token(host, token)
    listener = listen(host, port)
    bound = listener.getsockname()[1]
    access = Access(host, bound, token)
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    base = f"http://{bracketed(shown)}:{bound}"
    config = uvicorn.Config(
        application(root, access),
        http=Connection,
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
    announce(Address(host=host, port=bound, link=base + access.entrance))
    asyncio.run(Server(config).serve(sockets=[listener]))


def application(root: Path, access: Access) -> ASGIApp:
    link, files = Link(root), Files()

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        link.close()

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        """What no route answers, without a word about why."""
        if scope["path"].startswith("/api/"):
            hint = "docs/reference/page.md has the addresses"
            answer = refuse(404, "not_found", "there is nothing at this address", hint)
        else:
            answer = HTMLResponse(files.missing, 404)
        await answer(scope, receive, send)

    routes = Routes(link, access, files).all()
    router = Router(routes, redirect_slashes=False, default=nothing, lifespan=lifespan)
    return Guard(router, access, files.locked(token=access.has_token))
