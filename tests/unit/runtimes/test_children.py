"""What is known of a child between its record and its end."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.domain.ending import EndKind
from retinue.runtimes.children import ProcessChild, take_up
from retinue.runtimes.gate import Gate

BOUND_S = 10.0
RECORD = b'{"attempt": 1, "kind": "exited", "exit_code": 0}\n'


class Init:
    """A first process that does what the test says, and the steward's view of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours, self.control = socket.socketpair()
        ours.setblocking(False)
        self.process = subprocess.Popen(["sleep", "60"])
        self.child: ProcessChild = take_up(self.process.pid, Gate(ours, b"", BOUND_S), folder)

    async def run(self) -> None:
        self.control.send(b"+")
        await self.child.release()

    def record(self) -> None:
        (self.folder / "exit.json").write_bytes(RECORD)

    def go(self) -> None:
        self.process.kill()
        self.control.close()


@pytest.fixture
def init(tmp_path: Path) -> Iterator[Init]:
    init = Init(tmp_path)
    yield init
    init.go()


async def is_settled(task: asyncio.Task[object]) -> bool:
    """Whether it was, after all that was ready has had its turn."""
    for _ in range(10):
        await asyncio.sleep(0)
    return task.done()


def test_its_end_is_known_once_it_says_so_and_over_once_it_is_gone(init: Init) -> None:
    async def scene() -> None:
        await init.run()
        known = asyncio.create_task(init.child.recorded())
        assert not await is_settled(known)
        init.record()
        init.control.send(b".")
        ending = await known
        assert (ending.kind, ending.exit_code) == (EndKind.EXITED, 0)
        over = asyncio.create_task(init.child.ended())
        assert not await is_settled(over)
        init.go()
        assert await over == ending

    asyncio.run(asyncio.wait_for(scene(), BOUND_S))


def test_whoever_says_so_without_a_record_is_awaited_to_its_end(init: Init) -> None:
    async def scene() -> None:
        await init.run()
        known = asyncio.create_task(init.child.recorded())
        init.control.send(b".")
        assert not await is_settled(known)
        init.go()
        assert (await known).kind is EndKind.LOST

    asyncio.run(asyncio.wait_for(scene(), BOUND_S))


def test_whoever_gives_up_waiting_leaves_the_end_to_the_next(init: Init) -> None:
    async def scene() -> None:
        await init.run()
        known = asyncio.create_task(init.child.recorded())
        assert not await is_settled(known)
        known.cancel()
        await asyncio.wait([known])
        init.record()
        init.go()
        assert (await init.child.recorded()).kind is EndKind.EXITED

    held = len(os.listdir("/proc/self/fd"))
    asyncio.run(asyncio.wait_for(scene(), BOUND_S))
    assert len(os.listdir("/proc/self/fd")) < held
