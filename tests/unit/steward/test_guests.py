"""What a child asks of the steward is taken at a pace that leaves others their turn."""

from __future__ import annotations

import asyncio

from retinue.steward.guests import AT_ONCE, Intake


class Transport(asyncio.Transport):
    """One that only knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True

    def pause_reading(self) -> None:
        self.read = False

    def resume_reading(self) -> None:
        self.read = True


class Desk:
    """Requests end when the test lets them."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.end = asyncio.Event()
        self.transport = Transport()
        self.intake = Intake(self.transport, self._begin)

    def _begin(self, line: bytearray) -> asyncio.Task[None]:
        self.begun.append(bytes(line))
        return asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        await self.end.wait()

    def take(self, count: int) -> None:
        for number in range(count):
            self.intake.take(bytearray(b"%d" % number))


def test_one_request_is_begun_in_each_turn() -> None:
    async def whole() -> None:
        desk = Desk()
        desk.take(3)
        for begun in (1, 2, 3):
            assert len(desk.begun) == begun
            assert desk.transport.read == (begun == 3)
            await asyncio.sleep(0)
        assert desk.begun == [b"0", b"1", b"2"]

    asyncio.run(whole())


def test_with_enough_under_way_no_more_is_read() -> None:
    async def whole() -> None:
        desk = Desk()
        desk.take(AT_ONCE + 5)
        for _ in range(AT_ONCE * 2):
            await asyncio.sleep(0)
        assert (len(desk.begun), desk.transport.read) == (AT_ONCE, False)
        desk.end.set()
        for _ in range(AT_ONCE * 2):
            await asyncio.sleep(0)
        assert (len(desk.begun), desk.transport.read) == (AT_ONCE + 5, True)

    asyncio.run(whole())


def test_of_a_child_that_is_gone_nothing_more_is_begun() -> None:
    async def whole() -> None:
        desk = Desk()
        desk.take(5)
        desk.intake.close()
        desk.end.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert desk.begun == [b"0"]

    asyncio.run(whole())
