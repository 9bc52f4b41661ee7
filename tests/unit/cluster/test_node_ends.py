"""A node keeps an end until its steward revoked or released the attempt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("nats")
from retinue.cluster import messages
from retinue.cluster.hub_connection import Stored, SwapRefused
from retinue.cluster.node_attempt import NodeAttempt, NodePorts
from retinue.cluster.node_database import AcceptedOrder, NodeDatabase
from retinue.cluster.node_keys import NodeKeys
from retinue.cluster.sealing import make_key

KEY, EPOCH = "n.s.a", "e1"


class OneKey:
    """A hub with one key, which takes a value for the revision that it has."""

    def __init__(self, stored: Stored | None) -> None:
        self.stored = stored
        self.told: list[bytes] = []

    async def swap(self, subject: str, data: bytes, last: int) -> int:
        if self.stored is None or last != self.stored.revision or self.stored.data is None:
            raise SwapRefused(subject)
        self.told.append(data)
        return last + 1

    async def read(self, _: str, __: str) -> Stored | None:
        return self.stored


def stored(revision: int, state: str = "", epoch: str = EPOCH, *, deleted: bool = False) -> Stored:
    data = messages.encode({"state": state, "epoch": epoch}) if state else None
    return Stored(subject=KEY, revision=revision, data=data, deleted=deleted)


def report(tmp_path: Path, found: Stored | None) -> tuple[OneKey, bool]:
    """Tell an end to such a hub; return it, and whether the end is still in the database."""
    database = NodeDatabase(tmp_path / "node.db")
    entry = AcceptedOrder(key=KEY, epoch=EPOCH, revision=5, secret=make_key(), head=b"{}")
    database.accept(entry)
    hub = OneKey(found)
    node = SimpleNamespace(
        connection=hub,
        database=database,
        root=tmp_path,
        complain=lambda _: None,
        on_attempt_over=lambda _: None,
    )

    async def scene() -> None:
        async with asyncio.timeout(10):
            await NodeAttempt(cast(NodePorts, cast(Any, node)), entry).report(b"sealed")

    asyncio.run(scene())
    kept = database.find(KEY) is not None
    database.close()
    return hub, kept


def test_an_end_that_is_taken_stays_in_the_book(tmp_path: Path) -> None:
    hub, kept = report(tmp_path, stored(5, messages.ACCEPTED))
    assert len(hub.told) == 1 and kept


def test_a_key_that_its_steward_made_again_takes_the_end(tmp_path: Path) -> None:
    hub, kept = report(tmp_path, stored(9, messages.ACCEPTED))
    assert len(hub.told) == 1 and kept


@pytest.mark.parametrize(
    "found", [None, stored(2, messages.OFFERED), stored(9, messages.ENDED), stored(9)]
)
def test_an_end_is_kept_when_the_hub_lost_its_key_or_the_steward_wrote_it(
    tmp_path: Path, found: Stored | None
) -> None:
    hub, kept = report(tmp_path, found)
    assert not hub.told and kept


@pytest.mark.parametrize("found", [stored(9, messages.REVOKED), stored(9, deleted=True)])
def test_an_end_is_dropped_when_it_was_revoked_or_released(tmp_path: Path, found: Stored) -> None:
    hub, kept = report(tmp_path, found)
    assert not hub.told and not kept


def test_the_first_key_of_a_node_is_the_only_one_even_for_the_next_steward(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    keys = NodeKeys(file)
    assert keys.pin("n", "aa") and keys.pin("n", "aa") and keys.pin("m", "bb")
    assert not keys.pin("n", "cc")
    assert not NodeKeys(file).pin("m", "cc") and NodeKeys(file).pin("m", "bb")
