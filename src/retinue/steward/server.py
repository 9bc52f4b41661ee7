"""Socket server of the steward: accept loop, client connections, per-child flow control."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary

from retinue.connections import AcceptLoop, LineBuffer
from retinue.core.data_structures import BoundedDict
from retinue.core.errors import (
    BadInput,
    IntegrityBroken,
    LimitExceeded,
    Refused,
    RetinueError,
)
from retinue.core.subagent import LEFT, Subagent
from retinue.files import RESERVE
from retinue.formats import steward_protocol
from retinue.sockets import listen_in, read_inode, remove_own
from retinue.steward.app import App, find_caller
from retinue.steward.verbs import delegation_verbs
from retinue.steward.verbs.delegation_verbs import FOR_PROGRAMS
from retinue.steward.verbs.params import LARGEST, Params, resolve_ids
from retinue.steward.verbs.verb_table import KNOWN, STREAMS, require_trusted

CONNECTIONS = 64  # per child
REQUESTS_AT_ONCE = 16  # per connection of a child
MOST_UNREAD = 8 * 1024 * 1024  # bytes of unread answers per child, over all its connections


class ChildClients:
    """Registry of connected children."""

    def __init__(self) -> None:
        # Weak values: an entry lives as long as a connection or request of the child does, so a
        # child that reconnects meanwhile shares its limits with the old connection.
        self._connected: WeakValueDictionary[tuple[str, str], ChildClient] = WeakValueDictionary()

    def connect(self, child: Subagent) -> ChildClient:
        """Count a further connection of a child and return the child's client.

        Raises:
            LimitExceeded: the child has as many connections as it may.
        """
        client = self._connected.get((child.task, child.id)) or ChildClient()
        self._connected[child.task, child.id] = client
        if client.connections >= CONNECTIONS:
            raise LimitExceeded(
                f"{child.id} already has {CONNECTIONS} connections to the steward",
                code="too_many_connections",
                hint="close one, or send requests over one that is open",
            )
        client.connections += 1
        return client


class ChildClient:
    """One child, over all its connections.

    At most one of its requests begins per iteration of the event loop, so that other callers get
    their turns. None begins while the child leaves more than `MOST_UNREAD` bytes unread.
    """

    def __init__(self) -> None:
        self.connections = 0
        # Held by a request for files until its answer is on its way: such answers are large and
        # occupy a thread, so each child gets one at a time.
        self.files = asyncio.Lock()
        self._queues: set[RequestQueue] = set()
        self._ready: deque[RequestQueue] = deque()  # round robin of queues with requests
        self._next: asyncio.Handle | None = None

    def add(self, queue: RequestQueue) -> None:
        self._queues.add(queue)

    def remove(self, queue: RequestQueue) -> None:
        self._queues.discard(queue)
        self.look()

    def offer(self, queue: RequestQueue) -> None:
        """Put a connection that has a request into the round robin."""
        if queue not in self._ready:
            self._ready.append(queue)
        self.look()

    def look(self) -> None:
        """Begin the next request, unless one already began in this iteration of the loop."""
        if self._next is None and self._begin_one():
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._next = None
        self.look()

    def _begin_one(self) -> bool:
        # Back-pressure: `set_flowing` and `remove` call `look` again.
        if sum(queue.unread for queue in self._queues) > MOST_UNREAD:
            return False
        for _ in range(len(self._ready)):
            queue = self._ready.popleft()
            begun = queue.begin_one()
            if queue.waiting:
                self._ready.append(queue)
            if begun:
                return True
        return False


class RequestQueue:
    """Requests of one connection of a child. While one waits to begin, reading is paused."""

    def __init__(
        self,
        transport: asyncio.Transport,
        begin: Callable[[bytearray], asyncio.Task[None]],
        client: ChildClient,
    ) -> None:
        self._transport = transport
        self._begin = begin
        self._child_client = client
        self._waiting: deque[bytearray] = deque()
        self._under_way = 0
        self._flowing = True
        self._closed = False
        client.add(self)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def unread(self) -> int:
        """Bytes of answers that the child has not read."""
        return self._transport.get_write_buffer_size()

    def take(self, line: bytearray) -> None:
        """Queue a request until its turn comes."""
        self._waiting.append(line)
        self._offer()

    def begin_one(self) -> bool:
        """Begin the next request if the limits allow it; return whether it began."""
        if not self._waiting or self._under_way >= REQUESTS_AT_ONCE or not self._flowing:
            return False
        self._under_way += 1
        self._begin(self._waiting.popleft()).add_done_callback(self._on_finished)
        self._update_reading()
        return True

    def set_flowing(self, flowing: bool) -> None:
        """Note whether the child reads its answers as fast as they are written."""
        self._flowing = flowing
        if flowing:
            self._child_client.look()

    def close(self) -> None:
        """Drop requests that have not begun and read no more."""
        self._closed = True
        self._waiting.clear()
        self._child_client.remove(self)

    def _on_finished(self, _: asyncio.Task[None]) -> None:
        self._under_way -= 1
        self._offer()

    def _offer(self) -> None:
        if self._waiting:
            self._child_client.offer(self)
        self._update_reading()

    def _update_reading(self) -> None:
        if self._waiting or self._closed:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


UNDOABLE = 64  # sent answers per client that it may still revoke with FORGET


class ClientConnection(asyncio.Protocol):
    """One client connection. Its requests run concurrently and are cancelled when it ends.

    If the steward ends first, only their waiting is cancelled: the work they started goes on.
    """

    def __init__(
        self,
        app: App,
        stop: Callable[[], None],
        serve: Callable[[asyncio.Task[None]], None],
        children: ChildClients,
        child: Subagent | None,
        is_last: Callable[[], bool],
    ) -> None:
        """Args:
        serve: keeps the task that runs until the client leaves.
        child: the subagent that connected; None is the user.
        is_last: tells whether no other client is connected or connecting.
        """
        self._app = app
        self._stop = stop
        self._serve = serve
        self._children = children
        self._child = child
        self._is_last = is_last
        # Only children have flow control over several connections; both stay None for the user.
        self._child_client: ChildClient | None = None
        self._queue: RequestQueue | None = None
        self._transport: asyncio.Transport
        self._lines = LineBuffer(steward_protocol.MAX_REQUEST)
        self._ended = asyncio.Event()  # no further request will arrive
        self._flowing = asyncio.Event()  # the write buffer is below its high-water mark
        self._flowing.set()
        self._requests: set[asyncio.Task[None]] = set()
        self._under_way: dict[int, asyncio.Task[None]] = {}  # by request id
        self._undo = BoundedDict[int, Callable[[], None]](UNDOABLE)  # by id of a sent answer
        self._undo_last: Callable[[], None] | None = None  # for the answer that was sent last

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        try:
            if self._child is not None:
                self._admit_child(self._child)
        except LimitExceeded as error:
            self._write({"id": None, "error": steward_protocol.error_to_json(error)})
            transport.close()
        else:
            self._serve(asyncio.create_task(self._run()))

    def _admit_child(self, child: Subagent) -> None:
        """Raises:
        LimitExceeded: the child has as many connections as it may.
        """
        self._child_client = self._children.connect(child)
        self._queue = RequestQueue(self._transport, self._begin, self._child_client)
        self._lines.most = steward_protocol.MAX_CHILD_REQUEST

    def data_received(self, data: bytes) -> None:
        take = self._begin if self._queue is None else self._queue.take
        for line in self._lines.take_lines(data):
            if line is None:
                self._refuse_long_line()
                return
            take(line)
        if self._lines.is_too_long:
            self._refuse_long_line()

    def _refuse_long_line(self) -> None:
        """Refuse a request that is too long, and hang up before the rest of it arrives."""
        error = steward_protocol.make_too_long_error(self._lines.most)
        self._write({"id": None, "error": steward_protocol.error_to_json(error)})
        self._transport.pause_reading()
        self._ended.set()

    def _begin(self, line: bytearray) -> asyncio.Task[None]:
        request = asyncio.create_task(self._answer(line))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        return request

    def eof_received(self) -> bool:
        self._ended.set()
        return True  # keep the transport open: `_run` closes it after its clean-up

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ConnectionResetError) and self._undo_last is not None:
            # The kernel reports a reset if the client left with unread data: at least the last
            # answer was lost.
            self._undo_last()
        if self._queue is not None and self._child_client is not None:
            self._queue.close()
            self._child_client.connections -= 1
        self._flowing.set()
        self._ended.set()

    def pause_writing(self) -> None:
        self._flowing.clear()
        if self._queue is not None:
            self._queue.set_flowing(False)

    def resume_writing(self) -> None:
        self._flowing.set()
        if self._queue is not None:
            self._queue.set_flowing(True)

    async def _run(self) -> None:
        """Serve the client until it leaves, or until this is cancelled because the steward ends."""
        try:
            await self._ended.wait()
        finally:
            if self._queue is not None:
                self._queue.close()
            # LEFT tells a request to stop waiting and leave the work that it started alone.
            cancel_message = None if self._ended.is_set() else LEFT
            for request in list(self._requests):
                request.cancel(cancel_message)
            if self._requests:
                await asyncio.wait(self._requests)
            self._app.delivery.reserved.release_client(self)
            unused = False
            # Without a free descriptor the check fails; the connection is closed in any case.
            with suppress(OSError), RESERVE.use_descriptors():
                unused = self._app.is_unused
            if unused and self._is_last():
                # No task was created: the steward ends and removes the root that it made. Only
                # its end closes this connection, so a client that waits for that finds no root.
                self._stop()
            else:
                self._transport.close()

    async def _answer(self, line: bytearray) -> None:
        number: Any = None
        try:
            message = steward_protocol.decode(line)
            number = message.get("id")
            self._register(number)
            if message.get("v") != steward_protocol.VERSION:
                raise BadInput(
                    f"this steward speaks version {steward_protocol.VERSION}",
                    code="protocol_version",
                    hint="'retinue steward stop' ends it; the next command starts a new one",
                )
            # Children are exempt: a child started by an older release goes on under this one.
            if self._child is None:
                steward_protocol.require_version(message)
            await self._call(number, str(message.get("verb")), Params(message.get("params", {})))
        except RetinueError as error:
            await self._refuse(number, error)
        except ConnectionError:
            pass
        except Exception as error:
            self._app.complain(f"verb failed: {type(error).__name__}: {error}")
            failed = RetinueError(
                f"the steward failed: {type(error).__name__}: {error}",
                code="internal",
                hint="see steward.log in the root",
            )
            await self._refuse(number, failed)
        finally:
            if isinstance(number, int):
                self._under_way.pop(number, None)

    def _register(self, number: Any) -> None:
        """Register the request under its id, so that FORGET can cancel it."""
        task = asyncio.current_task()
        if isinstance(number, int) and task is not None:
            self._under_way[number] = task

    async def _forget(self, number: Any, params: Params) -> None:
        """Revoke the answer of an earlier request, or cancel the request if it still runs.

        Params: `leave` cancels only the waiting; `tell` answers once the request has ended.
        """
        request_id = params.take_count("request", 0, LARGEST)
        leave = params.take_flag("leave")
        tell = params.take_flag("tell")
        params.refuse_unknown()
        request = self._under_way.get(request_id)
        if (undo := self._undo.pop(request_id, None)) is not None:
            undo()
        elif request is not None:
            request.cancel(LEFT if leave else None)
        if tell:
            if request is not None:
                await asyncio.wait({request})
            await self._send({"id": number, "result": None})

    async def _call(self, number: Any, verb: str, params: Params) -> None:
        if verb == steward_protocol.FORGET:
            await self._forget(number, params)
            return
        params.client = self
        if self._child is not None:
            await self._serve_child(number, self._child, verb, params)
            return
        if verb == "steward.stop":
            await self._stop_steward(number, params)
            return
        try:
            self._app.database.require_in_place()
        except IntegrityBroken:
            # The database was moved or deleted: further writes would go to a lost file.
            self._stop()
            raise
        require_trusted(self._app, verb)
        await self._call_verb(number, verb, params)

    async def _serve_child(self, number: Any, child: Subagent, verb: str, params: Params) -> None:
        assert self._child_client is not None, "a child that is served is registered"
        # The lock covers sending: the next large answer is not built before this one fits the
        # socket.
        file_lock = (
            self._child_client.files if verb in delegation_verbs.FILE_VERBS else nullcontext()
        )
        async with file_lock:
            answer = delegation_verbs.call_for_child(self._app, child, verb, params)
            await self._send_answer(number, answer, params)

    async def _call_verb(self, number: Any, verb: str, params: Params) -> None:
        # Programs may create the task that they name: its id is taken as it is.
        if verb not in FOR_PROGRAMS:
            resolve_ids(self._app.records, params)
        if verb in STREAMS:
            async with aclosing(STREAMS[verb](self._app, params)) as items:
                async for item in items:
                    await self._send({"id": number, "item": item})
            await self._send({"id": number, "result": None})
        elif verb in KNOWN:
            self._app.notes.touch(params.peek_task())
            await self._send_answer(number, KNOWN[verb](self._app, params), params)
        else:
            message = f"unknown verb {verb[:40]!a}"
            hint = steward_protocol.OTHER_VERSION_HINT
            raise BadInput(message, code="unknown_verb", hint=hint)

    async def _send_answer(self, number: Any, answer: Awaitable[Any], params: Params) -> None:
        """Send the answer; revoke it if the verb fails or the client is gone."""
        try:
            result = await answer
            if self._ended.is_set():
                raise ConnectionResetError
            if params.on_lost is not None and isinstance(number, int):
                self._undo[number] = params.revoke_answer
            await self._send({"id": number, "result": result}, undo=params.revoke_answer)
        except (ConnectionError, RetinueError):
            params.revoke_answer()
            raise

    async def _stop_steward(self, number: Any, params: Params) -> None:
        if params.take_flag("cancel"):
            for task in self._app.records.list_tasks(-1, open_only=True):
                why = "steward stopped"
                self._app.plans.stop(task.id, by="user", reason=why)
                await self._app.tasks.cancel(task.id, by="user", reason=why)
        params.refuse_unknown()
        await self._send({"id": number, "result": {"stopped": True, "pid": os.getpid()}})
        self._stop()

    async def _refuse(self, number: Any, error: RetinueError) -> None:
        """Send an error, unless the client is gone."""
        with suppress(ConnectionError):
            await self._send({"id": number, "error": steward_protocol.error_to_json(error)})

    async def _send(self, message: dict[str, Any], undo: Callable[[], None] | None = None) -> None:
        """Send a message and wait until the write buffer has room again.

        Raises:
            ConnectionResetError: the client is gone.
        """
        # Wait first: messages to a client that does not read would pile up in memory.
        while not self._flowing.is_set():
            await self._flowing.wait()
        if self._transport.is_closing():
            raise ConnectionResetError
        self._write(message, undo)
        await self._flowing.wait()
        if self._transport.is_closing():
            raise ConnectionResetError

    def _write(self, message: dict[str, Any], undo: Callable[[], None] | None = None) -> None:
        self._undo_last = undo
        self._transport.write(steward_protocol.encode(message))


ACCEPTED_AT_ONCE = 256  # as many as the kernel's backlog holds
DESCRIPTOR_REFUSAL = steward_protocol.encode(
    {
        "id": None,
        "error": steward_protocol.error_to_json(
            LimitExceeded(
                "the steward has too many open files (EMFILE) to accept another client",
                code="too_many_open_files",
                hint="wait for subagents to end or close a connection, then repeat; to raise the "
                "limit, start the steward with a higher 'ulimit -Hn'",
            )
        ),
    }
)


def refuse_for_descriptors(listener: socket.socket) -> None:
    """Accept a connection with a reserved descriptor and refuse it.

    Raises:
        OSError: not even a reserved descriptor is free.
    """
    with RESERVE.use_descriptors():
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.send(DESCRIPTOR_REFUSAL)


class StewardServer:
    """Server of a root's two sockets. Stops the steward after `idle_seconds` without work."""

    def __init__(
        self,
        app: App,
        stop: Callable[[], None],
        *,
        stays: bool = False,
        listener: socket.socket | None = None,
    ) -> None:
        """Args:
        stays: whether the steward goes on without work, and in a root that stays unused.
        listener: the root's listening socket, held by a service manager; None: make one.
        """
        self._app = app
        self._stop = stop
        self._stays = stays
        self._given = listener
        self._clients: set[asyncio.Task[None]] = set()
        self._children = ChildClients()
        self._idle: asyncio.TimerHandle | None = None
        self._accept_loops: list[AcceptLoop] = []
        # Device and inode of each socket file: on close, only the server's own are removed.
        self._sockets: dict[Path, tuple[int, int] | None] = {}
        app.supervisor.on_idle = self._update_idle_timer

    def start(self) -> None:
        root = self._app.settings.root
        desk = root / steward_protocol.DESK
        desk.mkdir(mode=0o700, exist_ok=True)
        # Security: children have their own socket, over which no caller counts as the user. The
        # rights of a child must not depend on recognising its process.
        self._listen(desk, for_children=True)
        self._listen(root, for_children=False)
        self._update_idle_timer()

    def _listen(self, folder: Path, *, for_children: bool) -> None:
        if self._given is not None and not for_children:
            listener = self._given
            # The kernel tells clients which process called listen(2) last: it is to be this one.
            listener.listen(ACCEPTED_AT_ONCE)
            listener.setblocking(False)
        else:
            listener = listen_in(folder, steward_protocol.SOCKET)
            path = folder / steward_protocol.SOCKET
            self._sockets[path] = read_inode(path)
        # All waiting connections are identified before any of them is served: serving one may take
        # a while, and a caller whose process has ended cannot be identified.
        accepting = AcceptLoop(
            listener,
            partial(self._admit, for_children),
            batch=ACCEPTED_AT_ONCE,
            refuse_without_descriptor=refuse_for_descriptors,
        )
        self._accept_loops.append(accepting)

    def _admit(self, for_children: bool, connection: socket.socket) -> ClientConnection | None:
        """Return the protocol of a connection, or None if its caller may not use this socket."""
        try:
            with RESERVE.use_descriptors():
                child = find_caller(self._app, connection, for_children=for_children)
        except Refused as error:
            with connection, suppress(OSError):
                refusal = {"id": None, "error": steward_protocol.error_to_json(error)}
                connection.send(steward_protocol.encode(refusal))
            return None
        return ClientConnection(
            self._app, self._stop, self._serve, self._children, child, self._is_last_client
        )

    async def close(self) -> None:
        """Stop listening and disconnect all clients. The work they started goes on."""
        # Remove the names first: a client that connects from now on starts the next steward.
        for path, made in self._sockets.items():
            remove_own(path, made)
        for loop in self._accept_loops:
            loop.close()
        for client in list(self._clients):
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    def _serve(self, client: asyncio.Task[None]) -> None:
        self._clients.add(client)
        client.add_done_callback(self._on_client_gone)
        self._update_idle_timer()

    def _is_last_client(self) -> bool:
        """Return whether the steward may end with this client: no other is or gets connected."""
        if self._stays:
            return False
        connecting = any(loop.has_pending() for loop in self._accept_loops)
        return len(self._clients) <= 1 and not connecting

    def _on_client_gone(self, client: asyncio.Task[None]) -> None:
        self._clients.discard(client)
        self._update_idle_timer()

    def _update_idle_timer(self) -> None:
        """Start the idle countdown if there is neither a client nor a living subagent."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._stays and not self._clients and not self._app.supervisor.alive:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._app.settings.idle_seconds, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        """Stop the steward, unless a client or a subagent has appeared meanwhile."""
        self._idle = None
        # Subagents can start without a client: by an edit of task.yaml or an answered note.
        if any(loop.has_pending() for loop in self._accept_loops):
            self._update_idle_timer()
        elif not self._clients and not self._app.supervisor.alive:
            self._stop()
