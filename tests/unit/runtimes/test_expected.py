"""The process that children are cloned from, started before anybody needs it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

from retinue.child.order import Order
from retinue.domain.errors import LaunchFailed
from retinue.runtimes.forkserver import COMMANDS, ForkServer
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
    contained=False,
)


def test_a_server_that_was_expected_is_the_one_that_serves() -> None:
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


def test_of_a_server_that_was_expected_in_vain_nothing_is_left() -> None:
    async def whole() -> None:
        server, before = ForkServer(20.0, COMMANDS), set(children_of(os.getpid()))
        server.expect()
        await asyncio.sleep(0)
        assert len(set(children_of(os.getpid())) - before) == 1
        server.close()
        await asyncio.sleep(0)
        assert set(children_of(os.getpid())) == before

    asyncio.run(whole())


def test_who_expected_a_server_that_cannot_start_is_told_when_it_is_needed() -> None:
    async def whole() -> None:
        server = ForkServer(20.0, replace(COMMANDS, module="no.such.module"))
        server.expect()
        with pytest.raises(LaunchFailed):
            await server.start(ORDER)
        server.close()

    asyncio.run(whole())
