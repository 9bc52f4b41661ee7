"""Accept loop, connection limit and line splitter that the servers share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.connections import AcceptLoop, ConnectionLimit, LineBuffer

MANY = 100
BOUND_S = 20.0


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line)), st.integers(1, 9))
def test_lines_do_not_depend_on_how_data_is_split(sent: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in sent) + b"rest"
    lines = LineBuffer()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [line for piece in pieces for line in lines.take_lines(piece)] == sent
    assert lines.take_rest() == b"rest"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_too_long_line_is_reported_once_and_the_next_ones_are_returned(size: int) -> None:
    data = b"one\n" + b"x" * MANY + b"\n" + b"x" * (MANY + 1) + b"\nlater\n" + b"y" * (MANY + 1)
    lines = LineBuffer(MANY)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    found = [line for piece in pieces for line in lines.take_lines(piece)]
    assert found == [b"one", b"x" * MANY, None, b"later"]
    assert lines.is_too_long, "reported before the line ends"
    assert lines.take_rest() is None


def test_the_bytes_of_an_endless_line_are_dropped() -> None:
    lines = LineBuffer(MANY)
    for _ in range(10):
        assert list(lines.take_lines(b"x" * MANY)) == []
    assert len(lines._rest) <= MANY


def test_at_the_limit_the_longest_idle_connection_is_closed_for_a_new_one() -> None:
    closed: list[str] = []

    def close(name: str) -> bool:
        closed.append(name)
        return True

    limit = ConnectionLimit[str](2, close)
    limit.add("a")
    limit.add("b")
    assert not limit.has_capacity(), "both are busy"
    limit.mark_idle("b")
    limit.mark_idle("a")
    assert limit.has_capacity()
    assert closed == ["b"]


def test_an_idle_connection_that_must_stay_keeps_its_place() -> None:
    limit = ConnectionLimit[str](1, lambda name: False)
    limit.add("a")
    limit.mark_idle("a")
    assert not limit.has_capacity()
    limit.remove("a")
    assert limit.has_capacity()


def run_loop(act: Callable[[socket.socket], Awaitable[None]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        async def bounded() -> None:
            async with asyncio.timeout(BOUND_S):
                await act(listener)

        asyncio.run(bounded())


def test_connections_beyond_the_limit_wait_until_accepting_resumes() -> None:
    async def act(listener: socket.socket) -> None:
        made: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]
        open_ = 0

        def make(_: socket.socket) -> asyncio.Protocol:
            nonlocal open_
            made[open_].set()
            open_ += 1
            return asyncio.Protocol()

        most = 1
        accepting = AcceptLoop(listener, make, has_capacity=lambda: open_ < most)
        links = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        await made[0].wait()
        assert accepting.has_pending()
        assert not made[1].is_set()
        most = 2
        accepting.resume()
        await made[1].wait()
        accepting.close()
        for link in links:
            link.close()

    run_loop(act)


def test_a_refused_connection_is_not_served() -> None:
    async def act(listener: socket.socket) -> None:
        def refuse(connection: socket.socket) -> None:
            connection.close()

        accepting = AcceptLoop(listener, refuse)
        link = socket.create_connection(listener.getsockname())
        link.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(link, 1) == b""
        accepting.close()
        link.close()

    run_loop(act)
