"""One connection to a steward: whatever it says, and in whatever pieces, finds who asked."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue.client.async_client import Remote, connect_steward
from retinue.core.errors import BadInput, LimitExceeded, StewardUnavailable
from retinue.core.subagent import LEFT
from retinue.formats import steward_protocol
from retinue.sockets import listen_in

BOUND_S = 20.0


class FakeSteward:
    """The other end of a connection: what it says and reads is up to the test."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.end.setblocking(False)
        self._heard = b""

    async def asked(self) -> dict[str, Any]:
        """The next request."""
        while b"\n" not in self._heard:
            data = await asyncio.get_running_loop().sock_recv(self.end, 1 << 20)
            assert data, "the client is gone"
            self._heard += data
        line, self._heard = self._heard.split(b"\n", 1)
        return steward_protocol.decode(line)

    async def say(self, *messages: dict[str, Any]) -> None:
        """All in one piece."""
        await self.write(b"".join(map(steward_protocol.encode, messages)))

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.end, data)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Remote, FakeSteward]]:
    ours, theirs = socket.socketpair()
    remote = await connect_steward(sock=ours)
    with theirs:
        yield remote, FakeSteward(theirs)
        remote.close()


def playing(scene: Callable[[Remote, FakeSteward], Awaitable[None]]) -> None:
    async def play() -> None:
        async with asyncio.timeout(BOUND_S), pair() as (remote, steward):
            await scene(remote, steward)

    asyncio.run(play())


async def begun(
    remote: Remote, steward: FakeSteward, verb: str
) -> tuple[asyncio.Task[Any], dict[str, Any]]:
    """A call that the steward has heard of."""
    call = asyncio.create_task(remote.call(verb))
    return call, await steward.asked()


def test_an_answer_is_with_its_caller_in_the_turn_after_it_came() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call, asked = await begun(remote, steward, "x")
        steward.end.send(steward_protocol.encode({"id": asked["id"], "result": 7}))
        await asyncio.sleep(0)  # it is seen
        await asyncio.sleep(0)  # it is read
        await asyncio.sleep(0)  # it is returned
        assert call.done() and call.result() == 7

    playing(scene)


def test_answers_out_of_order_reach_their_requests() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        calls = [await begun(remote, steward, f"verb-{number}") for number in range(20)]
        for _, asked in reversed(calls):
            await steward.say({"id": asked["id"], "result": asked["verb"]})
        assert [await call for call, _ in calls] == [f"verb-{number}" for number in range(20)]

    playing(scene)


def test_two_answers_in_one_piece_are_two() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        (one, first), (two, second) = [await begun(remote, steward, verb) for verb in "ab"]
        await steward.say({"id": second["id"], "result": 2}, {"id": first["id"], "result": 1})
        assert (await one, await two) == (1, 2)

    playing(scene)


def test_an_answer_in_single_bytes_is_whole() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call, asked = await begun(remote, steward, "x")
        for byte in steward_protocol.encode({"id": asked["id"], "result": {"name": "é\n"}}):
            await steward.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await call == {"name": "é\n"}

    playing(scene)


def test_an_answer_and_a_request_of_many_mebibytes_are_whole() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        large = "x" * (12 << 20)
        call = asyncio.create_task(remote.call("x", text=large))
        asked = await steward.asked()
        await steward.say({"id": asked["id"], "result": [asked["params"]["text"]] * 6})
        assert await call == [large] * 6

    playing(scene)


def test_an_answer_that_is_none_is_no_stewards() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call, _ = await begun(remote, steward, "x")
        await steward.write(b"no\n")
        with pytest.raises(StewardUnavailable):
            await call
        assert remote.lost

    playing(scene)


def test_an_error_without_a_request_id_fails_all_pending_requests() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call, _ = await begun(remote, steward, "x")
        following = asyncio.create_task(anext(aiter(remote.stream("y"))))
        await steward.asked()
        said = steward_protocol.error_to_json(BadInput("not a JSON object", code="bad_message"))
        await steward.say({"id": None, "error": said})
        for waiting in (call, following):
            with pytest.raises(BadInput) as refused:
                await waiting
            assert refused.value.code == "bad_message"
        with pytest.raises(StewardUnavailable):
            await remote.call("z")

    playing(scene)


@pytest.mark.parametrize("heard", [False, True], ids=["unread", "read"])
def test_a_refused_connection_reports_the_reason(heard: bool) -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        said = steward_protocol.error_to_json(LimitExceeded("too many", code="too_many_open_files"))
        steward.end.send(steward_protocol.encode({"id": None, "error": said}))
        steward.end.close()
        for _ in range(5 if heard else 0):
            await asyncio.sleep(0)
        assert remote.lost is heard
        with pytest.raises(LimitExceeded) as refused:
            await remote.call("x")
        assert refused.value.code == "too_many_open_files"

    playing(scene)


def test_a_steward_lost_in_the_middle_of_a_line_fails_pending_requests() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call, asked = await begun(remote, steward, "x")
        following = asyncio.create_task(anext(aiter(remote.stream("y"))))
        await steward.asked()
        await steward.write(steward_protocol.encode({"id": asked["id"], "result": 7})[:-2])
        steward.end.close()
        for waiting in (call, following, remote.call("z")):
            with pytest.raises(StewardUnavailable) as lost:
                await waiting
            assert lost.value.code == "steward_lost" and "connect again" in lost.value.hint
        assert remote.lost

    playing(scene)


def test_closing_the_connection_fails_pending_requests() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call = asyncio.create_task(remote.call("x", text="x" * (12 << 20)))
        await asyncio.sleep(0)
        remote.close()
        with pytest.raises(StewardUnavailable):
            await call

    playing(scene)


@pytest.mark.parametrize("leave", [False, True])
def test_a_cancelled_request_is_withdrawn_and_its_answer_dropped(
    leave: bool,
) -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call, asked = await begun(remote, steward, "x")
        steward.end.send(steward_protocol.encode({"id": asked["id"], "result": 7}))
        call.cancel(LEFT if leave else None)
        with pytest.raises(asyncio.CancelledError):
            await call
        forget = await steward.asked()
        assert (forget["verb"], forget["params"]) == (
            steward_protocol.FORGET,
            {"request": asked["id"], "leave": leave},
        )
        await steward.say({"id": asked["id"], "result": 8})
        call, asked = await begun(remote, steward, "y")
        await steward.say({"id": asked["id"], "result": 9})
        assert await call == 9

    playing(scene)


def test_a_spawn_that_is_cancelled_ends_when_nothing_of_it_is_under_way() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call, asked = await begun(remote, steward, "subagent.spawn")
        call.cancel()
        forget = await steward.asked()
        assert forget["params"] == {"request": asked["id"], "leave": False, "tell": True}
        assert not call.done()
        await steward.say({"id": forget["id"], "result": None})
        with pytest.raises(asyncio.CancelledError):
            await call

        call, asked = await begun(remote, steward, "subagent.spawn")
        call.cancel()
        await steward.asked()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call  # a second cancel waits for nothing

    playing(scene)


def test_an_answer_that_comes_in_the_very_turn_of_a_cancel_is_taken_back_too() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call, asked = await begun(remote, steward, "x")
        answer = steward_protocol.encode({"id": asked["id"], "result": 7})
        remote.data_received(answer)
        call.cancel()
        remote.data_received(answer)
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await steward.asked())["params"]["request"] == asked["id"]

    playing(scene)


def test_a_stream_yields_all_items_until_its_end() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        async def collect() -> list[Any]:
            return [item async for item in remote.stream("x")]

        items = asyncio.create_task(collect())
        number = (await steward.asked())["id"]
        await steward.say(*({"id": number, "item": each} for each in (1, None, 3)))
        await steward.say({"id": number, "result": None})
        assert await items == [1, None, 3]

    playing(scene)


def test_an_abandoned_stream_is_withdrawn_and_later_items_are_dropped() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        stream = aiter(remote.stream("x"))
        first = asyncio.ensure_future(anext(stream))
        number = (await steward.asked())["id"]
        await steward.say({"id": number, "item": 1}, {"id": number, "item": 2})
        assert await first == 1
        await stream.aclose()  # type: ignore[attr-defined]
        forget = await steward.asked()
        assert forget["params"] == {"request": number, "leave": False}
        await steward.say({"id": number, "item": 3}, {"id": number, "result": None})
        call, asked = await begun(remote, steward, "y")
        await steward.say({"id": asked["id"], "result": 9})
        assert await call == 9

    playing(scene)


def test_a_call_of_a_verb_that_streams_returns_when_it_is_over() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call, asked = await begun(remote, steward, "x")
        await steward.say({"id": asked["id"], "item": 1}, {"id": asked["id"], "result": 2})
        assert await call == 2

    playing(scene)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.inf, "value is inf"),
        ({"a": [1, {"b": math.nan}]}, "value.a[1].b is nan"),
        ([Path("x")], "value[0] is of type PosixPath"),
        (b"x", "value is of type bytes"),
        ({("a", "b"): 1}, "keys must be str"),
    ],
)
def test_an_unserialisable_value_is_refused_by_its_path_and_the_next_request_works(
    value: object, said: str
) -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        with pytest.raises(BadInput) as refused:
            await remote.call("x", value=value)
        assert refused.value.code == "invalid_request" and said in refused.value.message
        call, asked = await begun(remote, steward, "y")
        await steward.say({"id": asked["id"], "result": 9})
        assert await call == 9

    playing(scene)


def test_a_circular_value_cannot_be_sent() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        value: list[object] = []
        value.append(value)
        with pytest.raises(BadInput):
            await remote.call("x", value=value)

    playing(scene)


def test_a_request_that_is_too_long_is_refused_and_the_next_one_answered() -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        with pytest.raises(BadInput) as refused:
            await remote.call("x", text="x" * steward_protocol.MAX_REQUEST)
        assert refused.value.code == "message_too_long"
        call, asked = await begun(remote, steward, "y")
        await steward.say({"id": asked["id"], "result": json.dumps(asked["params"])})
        assert await call == "{}"

    playing(scene)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("unknown_verb", "unknown verb 'run.attend'"),
        ("invalid_request", "unknown parameter 'keys'"),
    ],
)
def test_a_verb_unknown_to_an_older_steward_hints_at_its_version(code: str, message: str) -> None:
    async def scene(remote: Remote, steward: FakeSteward) -> None:
        call = asyncio.create_task(remote.call("run.begin"))
        number = (await steward.asked())["id"]
        said = {"kind": "BadInput", "code": code, "message": message, "hint": ""}
        await steward.say({"id": number, "error": said})
        with pytest.raises(BadInput, match=message) as refused:
            await call
        assert refused.value.hint == steward_protocol.OTHER_VERSION_HINT

    playing(scene)


def test_a_steward_with_a_long_path_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()

    async def reach() -> None:
        with listen_in(folder, "s") as listener:
            remote = await asyncio.wait_for(connect_steward(str(folder / "s")), BOUND_S)
            await asyncio.get_running_loop().sock_accept(listener)
            remote.close()

    asyncio.run(reach())
