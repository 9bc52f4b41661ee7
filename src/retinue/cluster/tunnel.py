"""Connections of a child on a node to the steward's gateway, through the hub.

The child has its own loopback socket. The node accepts connections there and sends their data in
encrypted, numbered pieces to the steward, which connects to a socket of the gateway. Each side
sends at most one window more than the other has acknowledged.

tunnel.<node>.<steward>.<nonce>.<connection>      to the steward
node.<node>.tunnel.<nonce>.<connection>           to the node
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from nats.aio.msg import Msg

from retinue.cluster.hub_connection import Callback, HubConnection, HubUnreachable
from retinue.cluster.messages import AttemptKey
from retinue.cluster.sealing import NotSealed, make_key, seal, unseal
from retinue.sockets import listen_in, make_address

WINDOW = 256 * 1024
PIECE = 64 * 1024
MOST_CONNECTIONS = 64
SOCKET = "gateway.sock"
# The first byte of a piece says what it is.
OPEN, DATA, TAKEN, CLOSE = b"o", b"d", b"t", b"c"

Send = Callable[[bytes], Awaitable[None]]


class Pipe:
    """One connection in one place: between a local stream and the messages of the other side."""

    def __init__(self, secret: bytes, send: Send) -> None:
        self._secret = secret
        self._send = send
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._sent = self._confirmed = 0
        self._got = self._told = 0
        self._out = self._in = 0  # numbers of the next pieces
        self._room = asyncio.Event()
        self._room.set()
        self._early: list[bytes] = []
        self._closed = False

    async def attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect the local stream, and write the data that arrived before."""
        self._reader, self._writer = reader, writer
        early, self._early = self._early, []
        for data in early:
            await self._write(data)

    async def pump(self) -> None:
        """Send the data of the local stream until it ends."""
        assert self._reader is not None
        with suppress(OSError, HubUnreachable):
            while data := await self._reader.read(PIECE):
                while self._sent - self._confirmed > WINDOW and not self._closed:
                    self._room.clear()
                    await self._room.wait()
                self._sent += len(data)
                await self.tell(DATA, data)
        await self.close()

    async def tell(self, kind: bytes, data: bytes = b"") -> None:
        number = self._out
        self._out += 1
        await self._send(seal(self._secret, kind + number.to_bytes(8, "little") + data))

    async def take(self, sealed: bytes) -> bool:
        """Handle a message of the other side; return False once the pipe is closed."""
        try:
            piece = unseal(self._secret, sealed)
        except NotSealed:
            return not self._closed
        kind, number, data = piece[:1], int.from_bytes(piece[1:9], "little"), piece[9:]
        # A piece that is missing, repeated or out of order ends the connection.
        if number != self._in:
            await self.close()
            return False
        self._in += 1
        if kind == DATA:
            await self._write(data)
        elif kind == TAKEN:
            self._confirmed = int.from_bytes(data, "little")
            self._room.set()
        elif kind == CLOSE:
            self._end()
        return not self._closed

    async def _write(self, data: bytes) -> None:
        if self._writer is None:
            self._early.append(data)
            return
        with suppress(OSError):
            self._writer.write(data)
            if self._writer.transport.get_write_buffer_size() > WINDOW:
                await self._writer.drain()
        self._got += len(data)
        if self._got - self._told > WINDOW // 4:
            self._told = self._got
            with suppress(HubUnreachable):
                await self.tell(TAKEN, self._got.to_bytes(8, "little"))

    async def close(self) -> None:
        if not self._closed:
            with suppress(HubUnreachable):
                await self.tell(CLOSE)
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._room.set()
        if self._writer is not None:
            self._writer.close()


class NodeTunnel:
    """The node's end: accepts at the child's socket."""

    def __init__(
        self, connection: HubConnection, key: AttemptKey, secret: bytes, listener: socket.socket
    ) -> None:
        self._connection = connection
        self._key = key
        self._secret = secret
        self._listener = listener
        self._pipes: set[Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        self._listener.setblocking(False)
        self._tasks.add(asyncio.create_task(self._serve()))

    async def _serve(self) -> None:
        # The init owns the socket as well: closing it here does not close it there.
        self._server = await asyncio.start_server(self._accept, sock=self._listener)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) > MOST_CONNECTIONS:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        name = make_key().hex()[:16]
        key = self._key
        subject = f"tunnel.{key.node}.{key.steward}.{key.nonce}.{name}"

        async def send(data: bytes) -> None:
            await self._connection.publish(subject, data)

        pipe = Pipe(self._secret, send)
        self._pipes.add(pipe)
        await pipe.attach(reader, writer)

        async def take(message: Msg) -> None:
            await pipe.take(message.data)

        end = await self._connection.subscribe(f"node.{key.node}.tunnel.{key.nonce}.{name}", take)
        try:
            await pipe.tell(OPEN)
            await pipe.pump()
        except HubUnreachable:
            writer.close()
        finally:
            self._pipes.discard(pipe)
            await pipe.close()
            await end()

    async def drop(self) -> None:
        """Close all connections: the other side may no longer know them."""
        for pipe in list(self._pipes):
            await pipe.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()


class StewardTunnel:
    """The steward's end: connects to a socket that the gateway serves."""

    def __init__(self, connection: HubConnection, key: AttemptKey, secret: bytes) -> None:
        self._connection = connection
        self._key = key
        self._secret = secret
        # In a folder of our own: no other user can connect.
        self._folder = Path(tempfile.mkdtemp(prefix="retinue-tunnel-"))
        self._pipes: dict[str, Pipe] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: Callback | None = None

    async def open(self) -> socket.socket:
        """Return the listening socket for the gateway."""
        listener = listen_in(self._folder, SOCKET)
        key = self._key
        self._end = await self._connection.subscribe(
            f"tunnel.{key.node}.{key.steward}.{key.nonce}.*", self._take
        )
        return listener

    async def _take(self, message: Msg) -> None:
        name = message.subject.rpartition(".")[2]
        pipe = self._pipes.get(name)
        if pipe is None:
            if len(self._pipes) >= MOST_CONNECTIONS:
                return
            pipe = self._open_pipe(name)
        if not await pipe.take(message.data):
            self._pipes.pop(name, None)

    def _open_pipe(self, name: str) -> Pipe:
        key = self._key
        subject = f"node.{key.node}.tunnel.{key.nonce}.{name}"

        async def send(data: bytes) -> None:
            await self._connection.publish(subject, data)

        pipe = self._pipes[name] = Pipe(self._secret, send)
        task = asyncio.create_task(self._connect(pipe, name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pipe

    async def _connect(self, pipe: Pipe, name: str) -> None:
        try:
            with make_address(self._folder / SOCKET) as address:
                streams = await asyncio.open_unix_connection(address)
            await pipe.attach(*streams)
            await pipe.pump()
        except OSError:
            await pipe.close()
        finally:
            self._pipes.pop(name, None)

    async def close(self) -> None:
        if self._end is not None:
            await self._end()
        for task in list(self._tasks):
            task.cancel()
        for pipe in list(self._pipes.values()):
            await pipe.close()
        # Without a socket if `open` failed.
        with suppress(FileNotFoundError):
            os.unlink(self._folder / SOCKET)
        with suppress(OSError):
            self._folder.rmdir()
