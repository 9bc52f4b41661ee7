"""The loop of a team: what its tasks, timers and sockets may rely on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from retinue.executors.loop import small_loop

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    loop = small_loop()
    yield loop.run_until_complete
    loop.close()


def test_tasks_run_side_by_side_and_their_results_come_in_order(run: Run) -> None:
    seen: list[str] = []

    async def one(name: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        seen.append(name)
        return name

    async def both() -> list[str]:
        return await asyncio.gather(one("slow", 0.03), one("quick", 0.0))

    assert run(both()) == ["slow", "quick"] and seen == ["quick", "slow"]


def test_what_takes_too_long_is_cut_and_the_rest_goes_on(run: Run) -> None:
    async def cut() -> bool:
        try:
            async with asyncio.timeout(0.02):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
            return True
        return False

    began = time.monotonic()
    assert run(cut()) and 0.02 <= time.monotonic() - began < 5


def test_a_timer_that_was_cancelled_does_nothing(run: Run) -> None:
    seen: list[str] = []

    async def course() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, seen.append, "cancelled").cancel()
        loop.call_later(0.02, seen.append, "kept")
        await asyncio.sleep(0.03)

    run(course())
    assert seen == ["kept"]


def test_what_a_task_raises_is_raised(run: Run) -> None:
    async def broken() -> None:
        await asyncio.sleep(0)
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        run(broken())
    assert asyncio._get_running_loop() is None


def test_what_a_task_sets_for_itself_no_other_sees(run: Run) -> None:
    own = ContextVar("own", default="nobody's")

    async def one() -> None:
        own.set("mine")
        await asyncio.sleep(0)
        assert own.get() == "mine"

    async def course() -> str:
        await asyncio.create_task(one())
        return own.get()

    assert run(course()) == "nobody's" and own.get() == "nobody's"


def test_more_than_a_socket_takes_at_once_arrives_whole(run: Run) -> None:
    ours, theirs = socket.socketpair()
    sent = os.urandom(4_000_000)

    async def read() -> bytes:
        got = b""
        while len(got) < len(sent):
            got += await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        return got

    async def exchange() -> bytes:
        loop = asyncio.get_running_loop()
        _, got = await asyncio.gather(loop.sock_sendall(ours, sent), read())
        return got

    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        assert run(exchange()) == sent


def test_a_connection_that_nobody_takes_is_refused(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

    async def connect() -> None:
        with socket.socket() as way:
            way.setblocking(False)
            await asyncio.get_running_loop().sock_connect(way, address)

    with pytest.raises(ConnectionRefusedError):
        run(connect())


def test_a_task_that_is_cancelled_no_longer_waits_for_its_socket(run: Run) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def course() -> bytes:
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(loop.sock_recv(ours, 10))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled() and not loop.remove_reader(ours.fileno())
        theirs.send(b"later")
        return await loop.sock_recv(ours, 10)

    with ours, theirs:
        assert run(course()) == b"later"


def test_a_descriptor_is_heard_until_it_is_removed(run: Run) -> None:
    source, sink = os.pipe()
    heard: list[bytes] = []

    async def course() -> None:
        loop, first = asyncio.get_running_loop(), asyncio.Event()

        def hear() -> None:
            heard.append(os.read(source, 10))
            first.set()

        loop.add_reader(source, hear)
        os.write(sink, b"one")
        await first.wait()
        assert loop.remove_reader(source)
        os.write(sink, b"two")
        await asyncio.sleep(0.01)

    run(course())
    assert heard == [b"one"]
    os.close(source)
    os.close(sink)


def test_a_signal_is_answered_while_nothing_else_happens(run: Run) -> None:
    async def course() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def stop(*_: object) -> None:
            loop.call_soon_threadsafe(stopped.set)

        before = signal.signal(signal.SIGVTALRM, stop)
        other = threading.Timer(
            0.02, signal.pthread_kill, (threading.get_ident(), signal.SIGVTALRM)
        )
        other.start()
        try:
            async with asyncio.timeout(10):
                await stopped.wait()
        finally:
            other.join()
            signal.signal(signal.SIGVTALRM, before)

    began = time.monotonic()
    run(course())
    assert time.monotonic() - began < 5


def test_what_it_cannot_do_it_refuses(run: Run) -> None:
    async def course() -> None:
        await asyncio.open_unix_connection("/nowhere")

    with pytest.raises(NotImplementedError):
        run(course())
