"""Fork servers: started ahead of the first launch, and restarted after a failure."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from retinue.child.control_protocol import Order
from retinue.core.errors import LaunchFailed
from retinue.runtime.fork_server_client import COMMANDS, INTERPRETER, ForkServer, Program
from support.traces import children_of

ORDER = Order(
    attempt=1,
    argv=(b"true",),
    environment={},
    workspace=b"/",
    runtime_folder=b"/",
    timeout_ms=1000,
    graces_ms=(0, 0),
    output_limit_bytes=1,
    limits={},
    contained=False,
)


class Silent(Program):
    """A server that never reports that it is ready."""

    def build_argv(self, function: str) -> list[str]:
        return [INTERPRETER, "-I", "-S", "-c", "import signal; signal.pause()"]


SILENT = Silent(module="", folders=("child",))


def test_a_launch_uses_the_server_that_was_started_ahead() -> None:
    async def whole() -> None:
        server, before = ForkServer(20.0, COMMANDS), set(children_of(os.getpid()))
        server.expect()
        server.expect()
        await server.warm()
        (one,) = set(children_of(os.getpid())) - before
        server.expect()
        await server.warm()
        assert set(children_of(os.getpid())) - before == {one}
        server.close()
        assert set(children_of(os.getpid())) == before

    asyncio.run(whole())


def test_close_removes_a_server_that_was_never_used() -> None:
    async def whole() -> None:
        server, before = ForkServer(20.0, COMMANDS), set(children_of(os.getpid()))
        server.expect()
        await asyncio.sleep(0)
        assert len(set(children_of(os.getpid())) - before) == 1
        server.close()
        await asyncio.sleep(0)
        assert set(children_of(os.getpid())) == before

    asyncio.run(whole())


def test_a_server_that_cannot_start_fails_the_next_launch() -> None:
    async def whole() -> None:
        server = ForkServer(20.0, replace(COMMANDS, module="no.such.module"))
        server.expect()
        with pytest.raises(LaunchFailed):
            await server.start(ORDER)
        server.close()

    asyncio.run(whole())


def test_a_server_that_does_not_answer_is_replaced_while_others_are_served() -> None:
    async def whole() -> None:
        server, before = ForkServer(1.0, COMMANDS), set(children_of(os.getpid()))
        await server.warm()
        (frozen,) = set(children_of(os.getpid())) - before
        os.kill(frozen, signal.SIGSTOP)
        launches = asyncio.gather(*(server.start(ORDER) for _ in range(3)))
        stall = await longest_stall(launches)
        for init, _ in launches.result():
            init.end()
        assert stall < 0.5, "somebody had to wait for it"
        await until(lambda: frozen not in children_of(os.getpid()))
        server.close()
        assert set(children_of(os.getpid())) == before

    asyncio.run(whole())


def test_a_server_that_never_becomes_ready_fails_the_launch() -> None:
    async def whole() -> None:
        server, before = ForkServer(0.2, SILENT), set(children_of(os.getpid()))
        with pytest.raises(LaunchFailed, match="did not answer in time"):
            await server.start(ORDER)
        await until(lambda: set(children_of(os.getpid())) == before)
        server.close()

    asyncio.run(whole())


def test_close_reaps_a_lost_server_after_the_loop_has_ended() -> None:
    server, before = ForkServer(0.2, SILENT), set(children_of(os.getpid()))
    with pytest.raises(LaunchFailed):
        asyncio.run(server.start(ORDER))
    server.close()
    assert set(children_of(os.getpid())) == before


def test_an_abandoned_launch_does_not_delay_others() -> None:
    async def whole() -> None:
        server, before = ForkServer(20.0, COMMANDS), set(children_of(os.getpid()))
        await server.warm()
        (frozen,) = set(children_of(os.getpid())) - before
        os.kill(frozen, signal.SIGSTOP)
        launch = asyncio.create_task(server.start(ORDER))
        for _ in range(10):
            await asyncio.sleep(0)  # it has asked by now
        launch.cancel()
        assert await longest_stall(asyncio.wait([launch])) < 0.5
        os.kill(frozen, signal.SIGCONT)  # it makes the child all the same, which goes
        init, _ = await server.start(ORDER)
        init.end()
        await until(lambda: set(children_of(os.getpid())) == before | {frozen})
        server.close()

    asyncio.run(whole())


async def longest_stall(work: Awaitable[object]) -> float:
    """Return the longest time for which the work blocked the event loop."""
    over, longest = asyncio.ensure_future(work), 0.0
    while not over.done():
        began = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - began)
    return longest


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not holds():  # noqa: ASYNC110  the kernel sets no event of ours
            await asyncio.sleep(0.005)
