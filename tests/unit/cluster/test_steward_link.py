"""Slots of nodes that a steward counts for the attempts of an earlier one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

pytest.importorskip("nats")
from retinue.cluster.hub_connection import HubAddress, HubConnection, Stored
from retinue.cluster.invitation import STEWARD, Membership
from retinue.cluster.messages import ACCEPTED, AttemptKey, NodeRecord, encode
from retinue.cluster.sealing import make_key
from retinue.cluster.steward_link import StewardLink
from retinue.core.placement import Placement

BOUND_S = 10.0
RECORD = NodeRecord(
    name="w1",
    epoch="e",
    state="up",
    slots=2,
    busy=0,
    labels=(),
    isolation="",
    layers=False,
    version="",
    box="00",
)


class QuietHub:
    """A hub with one node; the attempts on it run."""

    is_connected = True

    async def open(self, *, patient: bool) -> None: ...

    async def close(self) -> None: ...

    async def make_streams(self) -> None: ...

    async def publish(self, *_: object) -> None: ...

    def on_reconnect(self, _: object) -> None: ...

    async def subscribe(self, *_: object) -> None: ...

    async def read_all(self, _: str, pattern: str) -> list[Stored]:
        return [] if "attempts" in pattern else [await self.read("", "$KV.nodes.n")]

    async def read(self, _: str, subject: str) -> Stored:
        data = RECORD.to_json() if "nodes" in subject else encode({"state": ACCEPTED, "epoch": "e"})
        return Stored(subject=subject, revision=1, data=data)

    async def request(self, *_: object) -> bytes:
        return b""


def make_link() -> StewardLink:
    address = HubAddress(url="", certificate="", token="", seed="", identity="s")
    membership = Membership(kind=STEWARD, address=address, secret=make_key())
    link = StewardLink(membership, lambda _: None)
    link.connection = cast(HubConnection, cast(Any, QuietHub()))
    return link


def test_attempts_of_an_earlier_steward_hold_their_slots_until_they_are_over() -> None:
    async def scene() -> list[int]:
        link = make_link()

        async def reserve() -> None:
            await link.reserve(Placement(), isolated=False)

        def count() -> int:
            (node,) = link.list_nodes()
            return node.own

        # As at a start: the attempts are adopted before the hub was read.
        adopted = [link.follow(AttemptKey(node="n", steward="s", nonce=each)) for each in "ab"]
        link.start()
        found: list[int] = []
        async with asyncio.timeout(BOUND_S):
            await link.wait_ready()
            # Poll: no event tells when the attempts were read.
            while count() < len(adopted):  # noqa: ASYNC110
                await asyncio.sleep(0)
            found.append(count())
            link.forget(adopted[0])
            found.append(count())
            await reserve()
            link.forget(adopted[0])  # a second time
            link.forget(adopted[1])
            found.append(count())
            await link.close()
        return found

    assert asyncio.run(scene()) == [2, 1, 1]
