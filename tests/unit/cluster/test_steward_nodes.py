"""What a steward concludes from the records of nodes that it hears or reads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

pytest.importorskip("nats")
from nats.aio.client import Client
from nats.aio.msg import Msg

from retinue.cluster import steward_link
from retinue.cluster.hub_connection import EXPECTED, HubAddress, Stored, SwapRefused
from retinue.cluster.invitation import STEWARD, Membership
from retinue.cluster.messages import AttemptKey, NodeRecord
from retinue.cluster.sealing import make_key
from retinue.cluster.steward_link import LOST, SUSPECTED, UP, RemoteAttempt, StewardLink

RECORD = NodeRecord(
    name="w1",
    epoch="e1",
    state="up",
    slots=2,
    busy=0,
    labels=(),
    isolation="",
    layers=True,
    version="1",
    box="00",
)


def make_link() -> StewardLink:
    address = HubAddress(url="127.0.0.1:1", certificate="", token="", seed="", identity="s")
    return StewardLink(Membership(kind=STEWARD, address=address, secret=make_key()), print)


def store(revision: int, *, after: int, epoch: str = "e1", node: str = "n") -> Stored:
    data = replace(RECORD, epoch=epoch).to_json()
    return Stored(subject=f"$KV.nodes.{node}", revision=revision, data=data, after=after)


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 20))


def test_a_renewal_that_is_read_again_does_not_make_a_silent_node_heard() -> None:
    async def scene() -> None:
        link = make_link()
        await link._take_node(store(5, after=4))
        known = link._nodes["n"]
        known.heard -= 12
        known.state = SUSPECTED
        await link._take_node(store(5, after=4))
        assert known.state == SUSPECTED and link.list_heard()["n"] > 11
        await link._take_node(store(6, after=5))
        assert known.state == UP and link.list_heard()["n"] < 5

    run(scene())


def test_a_renewal_that_was_heard_is_not_heard_again_when_it_is_read() -> None:
    async def scene() -> None:
        link = make_link()
        await link._take_node(store(5, after=4))
        hint = Msg(Client(), subject="$KV.nodes.n", data=RECORD.to_json(), headers={EXPECTED: "5"})
        await link._on_node(hint)
        known = link._nodes["n"]
        known.heard -= 12
        await link._take_node(store(6, after=5))
        assert link.list_heard()["n"] > 11

    run(scene())


def test_a_record_that_was_read_before_the_loss_does_not_bring_a_node_back() -> None:
    async def scene() -> None:
        link = make_link()
        reported: list[str] = []
        link.report = lambda what, _: reported.append(what)
        await link._take_node(store(5, after=4))
        await link._set_gone(link._nodes["n"], LOST)
        await link._take_node(store(5, after=4))
        assert link._nodes["n"].state == LOST
        await link._take_node(store(9, after=0, epoch="e2"))
        assert link._nodes["n"].state == UP
        assert reported == ["joined", LOST, "joined"]

    run(scene())


class HubWithOneLease:
    """A hub that came back with a lease that it should have ended."""

    is_connected = True

    def __init__(self, stored: Stored) -> None:
        self.stored = stored

    async def read(self, _: str, __: str) -> Stored:
        return self.stored

    async def swap(self, subject: str, data: bytes, last: int, *, ttl_s: float) -> int:
        if last != self.stored.revision:
            raise SwapRefused(subject)
        self.stored = Stored(subject=subject, revision=last + 1, data=data, after=last)
        return last + 1


@pytest.mark.parametrize(
    ("ttl_s", "silence_s", "ends"),
    [(30, 50, True), (30, 40, False), (300, 50, False), (300, 500, True), (0, 500, False)],
)
def test_a_lease_that_the_hub_forgot_to_end_is_ended_before_its_node_is_lost(
    ttl_s: int, silence_s: float, ends: bool
) -> None:
    async def scene() -> None:
        link = make_link()
        hub = HubWithOneLease(replace(store(5, after=4), ttl_s=ttl_s))
        link.connection = cast(Any, hub)
        link._listening_since = float("-inf")
        await link._take_node(hub.stored)
        known = link._nodes["n"]
        known.heard -= silence_s
        assert not await link._is_lost(known)
        assert hub.stored.revision == (6 if ends else 5)
        assert await link._is_lost(known) is ends

    run(scene())


def test_a_lease_that_was_renewed_unheard_is_not_ended() -> None:
    async def scene() -> None:
        link = make_link()
        hub = HubWithOneLease(replace(store(9, after=8), ttl_s=30))
        link.connection = cast(Any, hub)
        await link._take_node(store(5, after=4))
        known = link._nodes["n"]
        known.heard -= 500
        assert not await link._is_lost(known)
        assert hub.stored.revision == 9

    run(scene())


def test_a_lost_node_is_remembered_while_an_attempt_of_it_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steward_link, "KEPT_GONE", 1)

    async def scene() -> None:
        link = make_link()
        for number, node in enumerate(("first", "second", "third")):
            await link._take_node(store(number + 1, after=number, node=node))
        key = AttemptKey(node="first", steward="s", nonce="a")
        link._attempts[str(key)] = RemoteAttempt(key, b"")
        for node in ("first", "second", "third"):
            await link._set_gone(link._nodes[node], LOST)
        assert sorted(link._nodes) == ["first", "third"]

    run(scene())
