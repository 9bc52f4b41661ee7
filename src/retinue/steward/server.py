"""The Service behind a socket of the root: many clients, one holder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from retinue.app import App
from retinue.sockets import inode_of, listen_in, remove_own, show_in
from retinue.steward.accepting import Accepting
from retinue.steward.connection import Connection
from retinue.steward.guests import Guests
from retinue.wire import protocol


class Server:
    """Answers clients until it is stopped, or has been idle for long enough."""

    def __init__(self, app: App, stop: Callable[[], None]) -> None:
        self._app = app
        self._stop = stop
        self._clients: set[asyncio.Task[None]] = set()
        self._guests = Guests()
        self._idle: asyncio.TimerHandle | None = None
        self._accepting: Accepting | None = None
        self._socket: tuple[int, int] | None = None  # device and inode of what we listen at
        app.service.supervisor.on_idle = self._consider_idle

    def start(self) -> None:
        root = self._app.settings.root
        listener = listen_in(root, protocol.SOCKET)
        self._socket = inode_of(root / protocol.SOCKET)
        show_in(root, protocol.SOCKET, protocol.DESK)
        self._accepting = Accepting(
            listener, partial(Connection, self._app, self._stop, self._serve, self._guests)
        )
        self._consider_idle()

    async def close(self) -> None:
        """No client is connected and none can. What they had started goes on."""
        root = self._app.settings.root
        for folder in (root, root / protocol.DESK):
            remove_own(folder / protocol.SOCKET, self._socket)
        if self._accepting is not None:
            self._accepting.close()
        for client in list(self._clients):
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    def _serve(self, client: asyncio.Task[None]) -> None:
        self._clients.add(client)
        client.add_done_callback(self._let_go)
        self._consider_idle()

    def _let_go(self, client: asyncio.Task[None]) -> None:
        self._clients.discard(client)
        self._consider_idle()

    def _consider_idle(self) -> None:
        """With nobody to serve and nobody to watch, the time to the end starts to run."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._clients and not self._app.service.supervisor.alive:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._app.settings.idle_seconds, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        """Somebody may have begun meanwhile whom no client sent: by an edit, or an answer; and
        whoever has come to the door is served.
        """
        self._idle = None
        if self._accepting is not None and self._accepting.expects():
            self._consider_idle()
        elif not self._clients and not self._app.service.supervisor.alive:
            self._stop()
