"""A node gives each slot out once, also while an order is being accepted."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("nats")
from nats.aio.msg import Msg

from retinue.cluster import messages
from retinue.cluster.hub_connection import HubAddress, Stored, SwapRefused
from retinue.cluster.invitation import NODE, Membership
from retinue.cluster.node_database import AcceptedOrder, NodeDatabase
from retinue.cluster.node_program import Node, NodeOptions
from retinue.cluster.sealing import find_public_key, make_key, seal_for, unseal
from retinue.core.errors import Refused
from retinue.core.placement import PROTOCOL

EPOCH, BOX = "e1", make_key()


class SlowHub:
    """Connection to a hub that refuses every swap, once it is allowed to answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.was_asked = asyncio.Event()
        self.answering = asyncio.Event()

    async def swap(self, subject: str, data: bytes, last: int) -> int:
        self.asked.append(subject)
        self.was_asked.set()
        await self.answering.wait()
        raise SwapRefused(subject)


def make_node(root: Path, options: NodeOptions) -> Node:
    root.mkdir()
    database = NodeDatabase(root / "node.db")
    database.write_epoch(EPOCH)
    database.close()
    address = HubAddress(url="127.0.0.1:1", certificate="", token="", seed="", identity="n")
    membership = Membership(kind=NODE, address=address, secret=BOX)
    return Node(root, membership, options, lambda _: None)


class Order:
    """An order that a steward sends, and what it hears."""

    def __init__(self, steward: str, nonce: str, memory_mb: int = 0) -> None:
        self.secret = make_key()
        self.said: dict[str, Any] | None = None
        head = {
            "v": PROTOCOL,
            "key": f"n.{steward}.{nonce}",
            "secret": self.secret.hex(),
            "epoch": EPOCH,
            "revision": 1,
            "memory_mb": memory_mb,
        }
        data = messages.encode(head, messages.encode({}))
        self.data = seal_for(find_public_key(BOX), data)

    async def respond(self, sealed: bytes) -> None:
        self.said, _ = messages.decode(unseal(self.secret, sealed))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (NodeOptions(slots=1), "all slots are taken"),
        (NodeOptions(slots=9, quotas={"": 1}), "has all the slots"),
        (NodeOptions(slots=9, memory_mb=500), "not enough memory"),
    ],
)
def test_an_order_that_is_being_accepted_takes_its_slot(
    tmp_path: Path, options: NodeOptions, reason: str
) -> None:
    async def scene() -> tuple[Order, Order, Order]:
        node = make_node(tmp_path / "node", options)
        hub = SlowHub()
        node.connection = cast(Any, hub)
        first, second, third = (Order("s", name, memory_mb=300) for name in "abc")
        taking = asyncio.create_task(node._take_order(cast(Msg, first)))
        await hub.was_asked.wait()
        await node._take_order(cast(Msg, second))
        hub.answering.set()
        await taking
        # The first was refused after all: its slot is free again.
        await node._take_order(cast(Msg, third))
        assert hub.asked == ["$KV.attempts.n.s.a", "$KV.attempts.n.s.c"]
        return first, second, third

    first, second, third = asyncio.run(asyncio.wait_for(scene(), 20))
    assert reason in str(second.said)
    assert reason not in f"{first.said} {third.said}"


def test_only_the_nodes_user_reads_its_book(tmp_path: Path) -> None:
    file = tmp_path / "node.db"
    file.touch(0o644)  # as an earlier version made it
    database = NodeDatabase(file)
    database.accept(AcceptedOrder(key="n.s.a", epoch=EPOCH, revision=1, secret=b"", head=b"{}"))
    modes = {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    database.close()
    assert modes == {0o600}


def test_an_epoch_is_of_the_place_in_which_it_began(tmp_path: Path) -> None:
    file, copy = tmp_path / "node.db", tmp_path / "copy.db"
    database = NodeDatabase(file)
    assert not database.is_epoch_of_this_place()
    database.write_epoch(EPOCH)
    assert database.is_epoch_of_this_place()
    database.close()
    copy.write_bytes(file.read_bytes())
    other = NodeDatabase(copy)
    assert other.read_epoch() == EPOCH and not other.is_epoch_of_this_place()
    other.close()


class TakenHub:
    """A hub in which another program has taken the lease of this node, and answers at once."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.swaps = 0

    async def swap(self, subject: str, data: bytes, last: int, *, ttl_s: float) -> int:
        self.swaps += 1
        raise SwapRefused(subject)

    async def read(self, _: str, subject: str) -> Stored:
        data = json.dumps({**RECORD, "epoch": self.epoch}).encode()
        return Stored(subject=subject, revision=7, data=data)


RECORD = {
    "name": "n",
    "state": "up",
    "slots": 1,
    "busy": 0,
    "labels": [],
    "isolation": "",
    "layers": False,
    "version": "1",
    "box": "00",
    "speaks": [PROTOCOL, PROTOCOL],
}


def test_a_lease_that_another_program_just_took_is_left_to_it(tmp_path: Path) -> None:
    """Its children run: to replace its epoch would let their work begin elsewhere as well."""
    node = make_node(tmp_path / "node", NodeOptions(slots=1))
    hub = TakenHub("of another")
    node.connection = cast(Any, hub)
    with pytest.raises(Refused) as refused:
        asyncio.run(asyncio.wait_for(node._begin_epoch(0), 20))
    assert refused.value.code == "node_in_use" and hub.swaps == 1


def test_an_end_that_is_only_reported_takes_no_slot(tmp_path: Path) -> None:
    async def scene() -> None:
        node = make_node(tmp_path / "node", NodeOptions(slots=1))
        hub = SlowHub()
        node.connection = cast(Any, hub)
        head = {"boundary": {"limits": {"memory_mb": 4096}}}
        ended = AcceptedOrder(
            key="n.s.a",
            epoch=EPOCH,
            revision=1,
            secret=make_key(),
            head=json.dumps(head).encode(),
            ended=b"sealed",
        )
        node._resume([ended])
        await hub.was_asked.wait()
        assert node._list_running() == []
        # Nor does the loss of the lease wait for an end of it.
        assert all(attempt.over.is_set() for attempt in node._attempts.values())
        for task in node._tasks:
            task.cancel()

    asyncio.run(asyncio.wait_for(scene(), 20))
