"""The process that children are cloned from, started before anybody needs it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from retinue.child.order import Order
from retinue.domain.errors import LaunchFailed
from retinue.runtimes.forkserver import COMMANDS, ForkServer

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


def children() -> set[int]:
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for path in found for pid in path.read_text().split()}


def test_a_server_that_was_expected_is_the_one_that_serves() -> None:
    async def whole() -> None:
        server, before = ForkServer(20.0, COMMANDS), children()
        server.expect()
        server.expect()
        await server.warm()
        (one,) = children() - before
        server.expect()
        await server.warm()
        assert children() - before == {one}
        server.close()
        assert children() == before

    asyncio.run(whole())


def test_of_a_server_that_was_expected_in_vain_nothing_is_left() -> None:
    async def whole() -> None:
        server, before = ForkServer(20.0, COMMANDS), children()
        server.expect()
        await asyncio.sleep(0)
        assert len(children() - before) == 1
        server.close()
        await asyncio.sleep(0)
        assert children() == before

    asyncio.run(whole())


def test_who_expected_a_server_that_cannot_start_is_told_when_it_is_needed() -> None:
    async def whole() -> None:
        server = ForkServer(20.0, replace(COMMANDS, module="no.such.module"))
        server.expect()
        with pytest.raises(LaunchFailed):
            await server.start(ORDER)
        server.close()

    asyncio.run(whole())
