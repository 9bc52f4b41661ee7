"""Clients of a steward: requests in whatever pieces; those who go, are slow, or say too much."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue.client.blocking_client import Client, connect_if_running
from retinue.core.errors import StorageFailed
from retinue.core.subagent import LEFT
from retinue.core.task_config import NewConfig
from retinue.formats import steward_protocol
from retinue.settings import read_settings
from retinue.steward.app import App, open_app
from retinue.steward.server import StewardServer
from retinue.steward.verbs.params import Params
from retinue.steward.verbs.verb_table import KNOWN, STREAMS

BOUND_S = 20.0
PAGE = "x" * 10_000
MANY = 1000  # of them: more than any socket holds


class Verbs:
    """Verbs whose end is up to the test."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled: list[bool] = []  # of each, whether only its waiting should end
        self.pages = 0
        self.left = asyncio.Event()
        self.undone = 0

    async def fail(self, app: App, params: Params) -> Any:
        def undo() -> None:
            self.undone += 1

        params.on_lost = undo
        raise StorageFailed("the disk refused")

    async def echo(self, app: App, params: Params) -> Any:
        return params.take_raw("text")

    async def wait(self, app: App, params: Params) -> Any:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError as end:
            self.cancelled.append(LEFT in end.args)
            self.ended.set()
            raise
        return "waited"

    async def read(self, app: App, params: Params) -> AsyncIterator[Any]:
        try:
            for self.pages in range(1, MANY + 1):
                yield PAGE
        finally:
            self.left.set()


class RawClient:
    """A connection and nothing between it and the test."""

    def __init__(self, root: Path) -> None:
        connection = connect_if_running(root)
        assert connection is not None
        self.end: socket.socket = connection
        self.end.setblocking(False)
        self._heard = bytearray()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.end, data)

    async def answer(self) -> dict[str, Any] | None:
        """The next message, or None at the end."""
        while b"\n" not in self._heard:
            data = await asyncio.get_running_loop().sock_recv(self.end, 1 << 20)
            if not data:
                return None
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return steward_protocol.decode(line)


Scene = Callable[[RawClient, Verbs, Path], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scene], None]:
    root = tmp_path / ".retinue"
    root.mkdir(mode=0o700)

    @asynccontextmanager
    async def served() -> AsyncIterator[Verbs]:
        verbs, ended = Verbs(), asyncio.Event()
        monkeypatch.setitem(KNOWN, "test.echo", verbs.echo)
        monkeypatch.setitem(KNOWN, "test.wait", verbs.wait)
        monkeypatch.setitem(KNOWN, "test.fail", verbs.fail)
        monkeypatch.setitem(STREAMS, "test.read", verbs.read)
        app = open_app(read_settings(root, os.environ), print)
        app.tasks.create(title="t", config=NewConfig())  # an unused root ends its steward
        server = StewardServer(app, ended.set)
        server.start()
        try:
            yield verbs
        finally:
            await server.close()
            await app.close()

    def play_scene(scene: Scene) -> None:
        async def playing() -> None:
            async with asyncio.timeout(BOUND_S), served() as verbs:
                client = RawClient(root)
                with client.end:
                    await scene(client, verbs, root)

        asyncio.run(playing())

    return play_scene


def echo(number: int, text: str) -> bytes:
    return steward_protocol.encode_request(number, "test.echo", {"text": text})


def test_a_request_is_begun_in_the_turn_after_it_came(play: Callable[[Scene], None]) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        await client.send(echo(1, "known"))
        assert await client.answer() == {"id": 1, "result": "known"}
        client.end.send(echo(2, "asked"))
        await asyncio.sleep(0)  # it is seen
        await asyncio.sleep(0)  # it is read
        await asyncio.sleep(0)  # it is answered
        assert client.end.recv(1000) == steward_protocol.encode({"id": 2, "result": "asked"})

    play(scene)


def test_results_in_an_undelivered_answer_are_delivered_again(
    play: Callable[[Scene], None],
) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        await client.send(steward_protocol.encode_request(1, "test.fail", {}))
        answer = await client.answer()
        assert answer is not None and answer["error"]["code"] == "storage_failed"
        assert verbs.undone == 1

    play(scene)


def test_requests_in_whatever_pieces_are_the_same(play: Callable[[Scene], None]) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        await client.send(echo(1, "one") + echo(2, "two") + echo(3, "three")[:9])
        assert await client.answer() == {"id": 1, "result": "one"}
        assert await client.answer() == {"id": 2, "result": "two"}
        for byte in echo(3, "three")[9:]:
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.answer() == {"id": 3, "result": "three"}
        large = "x" * (12 << 20)
        await client.send(echo(4, large))
        assert await client.answer() == {"id": 4, "result": large}

    play(scene)


def test_each_request_is_answered_when_it_is_ready(play: Callable[[Scene], None]) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        await client.send(steward_protocol.encode_request(1, "test.wait", {}) + echo(2, "soon"))
        assert await client.answer() == {"id": 2, "result": "soon"}
        verbs.go_on.set()
        assert await client.answer() == {"id": 1, "result": "waited"}

    play(scene)


@pytest.mark.parametrize("leave", [False, True])
def test_a_request_is_taken_back_as_its_client_says(
    play: Callable[[Scene], None], leave: bool
) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        await client.send(steward_protocol.encode_request(1, "test.wait", {}))
        await verbs.begun.wait()
        forget = {"request": 1, "leave": leave}
        await client.send(
            steward_protocol.encode_request(2, steward_protocol.FORGET, forget) + echo(3, "on")
        )
        assert await client.answer() == {"id": 3, "result": "on"}
        assert verbs.cancelled == [leave]

    play(scene)


def test_withdrawing_a_request_is_answered_once_nothing_of_it_runs(
    play: Callable[[Scene], None],
) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        await client.send(steward_protocol.encode_request(1, "test.wait", {}))
        await verbs.begun.wait()
        for number in (2, 3):  # also where it is over already
            forget = {"request": 1, "tell": True}
            await client.send(
                steward_protocol.encode_request(number, steward_protocol.FORGET, forget)
            )
            assert await client.answer() == {"id": number, "result": None}
            assert verbs.cancelled == [False]

    play(scene)


def test_requests_end_with_their_client_and_half_a_line_is_ignored(
    play: Callable[[Scene], None],
) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        await client.send(
            steward_protocol.encode_request(1, "test.wait", {}) + echo(2, "half")[:-1]
        )
        await verbs.begun.wait()
        client.end.shutdown(socket.SHUT_WR)
        assert await client.answer() is None
        assert verbs.cancelled == [False]
        other = RawClient(root)
        with other.end:
            await other.send(echo(1, "on"))
            assert await other.answer() == {"id": 1, "result": "on"}

    play(scene)


def test_a_client_that_sends_too_much_is_refused_and_disconnected(
    play: Callable[[Scene], None],
) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        await client.send(steward_protocol.encode_request(1, "test.wait", {}))
        await verbs.begun.wait()
        await client.send(b"x" * (steward_protocol.MAX_REQUEST + 1))
        told = await client.answer()
        assert told is not None and told["id"] is None
        assert told["error"]["code"] == "message_too_long"
        assert await client.answer() is None
        assert verbs.cancelled == [False]

    play(scene)


def test_a_stream_goes_no_further_than_its_client_reads(play: Callable[[Scene], None]) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        await client.send(steward_protocol.encode_request(1, "test.read", {}))
        assert await client.answer() == {"id": 1, "item": PAGE}
        other = RawClient(root)
        with other.end:
            for number in range(MANY):
                await other.send(echo(number, "meanwhile"))
                assert await other.answer() == {"id": number, "result": "meanwhile"}
        assert verbs.pages < MANY / 2
        for _ in range(MANY - 1):
            assert await client.answer() == {"id": 1, "item": PAGE}
        assert await client.answer() == {"id": 1, "result": None}

    play(scene)


def test_everything_ends_with_a_client_that_went_without_reading_on(
    play: Callable[[Scene], None],
) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        requests = [
            steward_protocol.encode_request(1, "test.wait", {}),
            steward_protocol.encode_request(2, "test.read", {}),
        ]
        await client.send(b"".join(requests))
        await client.answer()
        client.end.close()
        await verbs.ended.wait()
        await verbs.left.wait()
        assert verbs.pages < MANY / 2

    play(scene)


def test_an_unread_refusal_is_not_an_error(play: Callable[[Scene], None]) -> None:
    async def scene(client: RawClient, verbs: Verbs, root: Path) -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        client.end.send(steward_protocol.encode_request(1, "test.fail", {}))
        client.end.close()
        other = RawClient(root)
        with other.end:
            await other.send(echo(1, "on"))
            assert await other.answer() == {"id": 1, "result": "on"}
        assert verbs.undone == 1
        gc.collect()  # a task that failed says so when it goes
        assert not faults

    play(scene)


SLOW = """
import retinue.steward.__main__ as steward

def resume(app):
    print("resumes", flush=True)
    input()

steward.resume = resume
steward.main()
"""


def test_a_client_that_connects_while_a_steward_resumes_is_served_afterwards(
    tmp_path: Path,
) -> None:
    ready, tells = os.pipe()
    argv = [sys.executable, "-c", SLOW, str(tmp_path), str(tells)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, text=True, pass_fds=[tells], **pipes) as steward:
        os.close(tells)
        try:
            assert steward.stdout and steward.stdin
            assert steward.stdout.readline() == "resumes\n"
            early = connect_if_running(tmp_path)
            assert early is not None
            early.sendall(steward_protocol.encode_request(1, "task.list", {}))
            print(file=steward.stdin, flush=True)
            assert os.read(ready, 100)
            # The early client stays: an unused root ends its steward with the last client.
            with early, early.makefile("rb") as answers:
                assert steward_protocol.decode(answers.readline())["result"] == []
                client = Client(tmp_path)
                assert client.call("task.list") == []
                client.call("steward.stop")
                client.close()
            assert steward.wait(BOUND_S) == 0
        finally:
            steward.kill()
            os.close(ready)
