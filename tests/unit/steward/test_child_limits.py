"""Flow control of a child's requests at the steward."""

from __future__ import annotations

import asyncio

from retinue.steward.server import MOST_UNREAD, REQUESTS_AT_ONCE, ChildClient, RequestQueue


class Transport(asyncio.Transport):
    """Fake transport that only knows whether it is being read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True
        self.unread = 0

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.read = False

    def resume_reading(self) -> None:
        self.read = True


class Desk:
    """Requests that end when the test lets them."""

    def __init__(self, guest: ChildClient | None = None) -> None:
        self.guest = guest or ChildClient()
        self.begun: list[bytes] = []
        self.end = asyncio.Event()
        self.transport = Transport()
        self.intake = RequestQueue(self.transport, self._begin, self.guest)

    def _begin(self, line: bytearray) -> asyncio.Task[None]:
        self.begun.append(bytes(line))
        return asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        await self.end.wait()

    def take(self, count: int) -> None:
        for number in range(count):
            self.intake.take(bytearray(b"%d" % number))


def test_one_request_begins_per_loop_iteration() -> None:
    async def whole() -> None:
        desk = Desk()
        desk.take(3)
        for begun in (1, 2, 3):
            assert len(desk.begun) == begun
            assert desk.transport.read == (begun == 3)
            await asyncio.sleep(0)
        assert desk.begun == [b"0", b"1", b"2"]

    asyncio.run(whole())


def test_reading_pauses_at_the_request_limit() -> None:
    async def whole() -> None:
        desk = Desk()
        desk.take(REQUESTS_AT_ONCE + 5)
        for _ in range(REQUESTS_AT_ONCE * 2):
            await asyncio.sleep(0)
        assert (len(desk.begun), desk.transport.read) == (REQUESTS_AT_ONCE, False)
        desk.end.set()
        for _ in range(REQUESTS_AT_ONCE * 2):
            await asyncio.sleep(0)
        assert (len(desk.begun), desk.transport.read) == (REQUESTS_AT_ONCE + 5, True)

    asyncio.run(whole())


def test_no_request_begins_after_a_child_disconnects() -> None:
    async def whole() -> None:
        desk = Desk()
        desk.take(5)
        desk.intake.close()
        desk.end.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert desk.begun == [b"0"]

    asyncio.run(whole())


def test_a_child_begins_one_request_per_iteration_over_all_its_connections() -> None:
    async def whole() -> None:
        guest = ChildClient()
        desks = [Desk(guest) for _ in range(5)]
        for desk in desks:
            desk.take(2)
        for begun in range(1, 11):
            assert sum(len(desk.begun) for desk in desks) == begun
            await asyncio.sleep(0)
        assert all(desk.begun == [b"0", b"1"] for desk in desks)

    asyncio.run(whole())


def test_connections_of_a_child_take_turns() -> None:
    async def whole() -> None:
        guest = ChildClient()
        busy, other = Desk(guest), Desk(guest)
        busy.take(10)
        other.take(1)
        for _ in range(3):
            await asyncio.sleep(0)
        assert other.begun == [b"0"]

    asyncio.run(whole())


def test_no_request_begins_on_a_connection_with_unread_answers() -> None:
    async def whole() -> None:
        guest = ChildClient()
        stuck, other = Desk(guest), Desk(guest)
        stuck.intake.set_flowing(False)
        stuck.take(1)
        other.take(1)
        await asyncio.sleep(0)
        assert (stuck.begun, other.begun) == ([], [b"0"])
        await asyncio.sleep(0)
        stuck.intake.set_flowing(True)
        assert stuck.begun == [b"0"]

    asyncio.run(whole())


def test_no_request_begins_while_a_child_has_too_much_unread() -> None:
    async def whole() -> None:
        guest = ChildClient()
        full, other = Desk(guest), Desk(guest)
        full.transport.unread = MOST_UNREAD + 1
        other.take(1)
        assert other.begun == []
        full.intake.close()
        assert other.begun == [b"0"], "what is gone is not waited for"

    asyncio.run(whole())
