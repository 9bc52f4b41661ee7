"""A hub lets a member do what is its own, shows it nothing else, and stores nothing readable."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.cluster.hub_connection import (
    HubAddress,
    HubConnection,
    HubUnreachable,
    MemberRefused,
)
from retinue.cluster.hub_server import Hub
from retinue.cluster.hub_users import ATTEMPTS, BLOBS, NODES
from retinue.cluster.invitation import redeem
from retinue.core.errors import BadInput, Refused
from support.cluster import TASK, Lab, Link, wait_for

WORD = "xylophonic-secret"


@pytest.fixture
def hub(empty_lab: Lab) -> Hub:
    return Hub(empty_lab.open().top / "hub")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(30):
            return await work

    return asyncio.run(bounded())


async def make_node(hub: Hub) -> HubAddress:
    line, _ = await hub.invite(kind="node", labels=(), days=1)
    return (await redeem(line, "node"))[0]


async def connect(address: HubAddress) -> HubConnection:
    connection = HubConnection(address, lambda _: None)
    await connection.open(patient=False)
    return connection


def test_a_node_writes_its_own_lease_and_no_other(hub: Hub) -> None:
    async def scene() -> None:
        connection = await connect(await make_node(hub))
        own = connection.address.identity
        assert await connection.swap(f"$KV.nodes.{own}", b"{}", None, ttl_s=5) > 0
        for subject in ("$KV.nodes.other", "$KV.attempts.other.s.k", "node.other.order"):
            with pytest.raises(HubUnreachable):
                await connection.swap(subject, b"{}", None, timeout_s=0.5)
        for stream, subject in ((NODES, "$KV.nodes.other"), (ATTEMPTS, "$KV.attempts.other.s.k")):
            with pytest.raises((HubUnreachable, TimeoutError)):
                async with asyncio.timeout(0.5):
                    await connection.read(stream, subject)
        await connection.close()

    run(scene())


def test_a_node_cannot_delete_what_others_wrote(hub: Hub) -> None:
    """A message may tell the server to delete all others of its stream, if the stream allows it."""

    async def scene() -> None:
        node = await connect(await make_node(hub))
        steward = await connect(hub.make_steward().address)
        own = node.address.identity
        subjects = {NODES: "$KV.nodes.{}", ATTEMPTS: "$KV.attempts.{}.s.k", BLOBS: "blob.{}.b.0"}
        for stream, subject in subjects.items():
            await steward.swap(subject.format("other"), b"theirs", None)
            for what in ("all", "sub"):
                with pytest.raises(HubUnreachable):
                    headers = {"Nats-Rollup": what}
                    await node.swap(subject.format(own), b"mine", None, headers=headers)
            stored = await steward.read(stream, subject.format("other"))
            assert stored is not None and stored.data == b"theirs"
        await node.close()
        await steward.close()

    run(scene())


def test_a_node_hears_neither_the_orders_nor_the_logs_of_another(hub: Hub) -> None:
    async def scene() -> None:
        spy = await connect(await make_node(hub))
        steward = await connect(hub.make_steward().address)
        heard: list[str] = []
        own = asyncio.Event()

        async def take(message: Any) -> None:
            heard.append(message.subject)
            if message.data == b"own":
                own.set()

        for subject in ("node.other.order", "live.>", "tunnel.>", "$KV.nodes.>"):
            await spy.subscribe(subject, take)
        await spy.subscribe(f"node.{spy.address.identity}.order", take)
        await spy.flush()
        for subject in ("node.other.order", "live.a.b.c", "tunnel.a.b.c.d", "$KV.nodes.x"):
            await steward.publish(subject, b"secret")
        await steward.publish(f"node.{spy.address.identity}.order", b"own")
        # It was published last, so whatever else is delivered is delivered before.
        await own.wait()
        assert heard == [f"node.{spy.address.identity}.order"]
        await spy.close()
        await steward.close()

    run(scene())


def test_strangers_and_another_hub_are_refused(hub: Hub, tmp_path: Path) -> None:
    other = Hub(tmp_path / "another hub")
    other.prepare()

    async def scene() -> None:
        address = await make_node(hub)
        with pytest.raises(MemberRefused):
            await connect(replace(address, token=""))
        with pytest.raises(HubUnreachable):
            await connect(replace(address, certificate=other.read_certificate()))

    run(scene())


def test_a_connection_that_the_server_ends_with_an_error_is_made_anew(hub: Hub) -> None:
    """nats-py closes a client for good then; a hint must still arrive once, and requests work."""

    async def scene() -> None:
        address = await make_node(hub)
        own = address.identity
        heard: list[bytes] = []
        back, came = asyncio.Event(), asyncio.Event()
        connection = HubConnection(address, lambda _: None)
        await connection.open(patient=True)

        async def take(message: Any) -> None:
            heard.append(message.data)
            came.set()

        async def note() -> None:
            back.set()

        connection.on_reconnect(note)
        end = await connection.subscribe(f"node.{own}.order", take)
        client = connection._client
        client._transport.write(b"NONSENSE\r\n")
        await back.wait()
        assert client.is_closed and connection.is_connected
        sender = await hub.connect()
        await connection.flush()
        await sender.publish(f"node.{own}.order", b"one")
        await sender.flush()
        assert await connection.swap(f"$KV.nodes.{own}", b"{}", None, ttl_s=5) > 0
        await came.wait()
        await connection.flush()  # a second delivery would have come by now
        await end()
        assert heard == [b"one"]
        await sender.close()
        await connection.close()

    run(scene())


def test_an_invitation_is_redeemed_once_and_only_for_its_kind(hub: Hub) -> None:
    async def scene() -> None:
        line, _ = await hub.invite(kind="node", labels=("gpu",), days=1)
        with pytest.raises(BadInput):
            await redeem(line, "steward")
        with pytest.raises(BadInput):
            await redeem(line[:-30], "node")
        assert (await redeem(line, "node"))[1] == ("gpu",)
        with pytest.raises(Refused):
            await redeem(line, "node")
        brief, _ = await hub.invite(kind="node", labels=(), days=1 / 86_400)
        await asyncio.sleep(2.1)  # it expires by the hub's clock, in whole seconds
        with pytest.raises(Refused, match="has expired"):
            await redeem(brief, "node")
        unused, identity = await hub.invite(kind="node", labels=(), days=1)
        await hub.expel(identity)
        with pytest.raises(Refused):
            await redeem(unused, "node")

    run(scene())


def test_an_expelled_node_is_cut_off_and_stays_out(lab: Lab) -> None:
    assert lab.list_nodes()["w1"]["state"] == "up"
    lab.run("hub", "expel", "w1")
    # Its program ends with the reason instead of trying for ever.
    assert lab.nodes.pop("w1").wait(20) == 1
    assert "error[member_refused]" in (lab.top / "w1.log").read_text()
    wait_for(lambda: lab.list_nodes()["w1"]["state"] == "lost")
    done = lab.run("subagent", "spawn", TASK, "--on", "gpu", "--", "true", check=False)
    assert "no_such_node" in done.stderr


def test_the_hub_neither_stores_nor_carries_brief_code_or_answer_in_clear_text(lab: Lab) -> None:
    links = [lab.links["w1"], Link(lab.port)]
    lab.links["steward"] = links[1]
    lab.put_steward_behind(links[1])
    for link in links:
        link.seen = bytearray()
    script = f"echo the answer is {WORD}; head -c 400000 /dev/urandom > big; echo {WORD} >> big"
    (lab.project / "given.txt").write_text(WORD)
    lab.spawn("sealed", script, "--context-path", "given.txt")
    lab.wait_closed("sealed")
    assert WORD in lab.result("sealed")["answer"]
    assert (lab.folder("sealed") / "workspace/big").stat().st_size > 400_000
    found = subprocess.run(["grep", "-rlq", WORD, str(lab.top / "hub")], check=False)
    assert found.returncode == 1
    for link in links:
        assert link.seen is not None and len(link.seen) > 400_000
        # Subjects are hidden as well: all of it is TLS after the server's greeting.
        for word in (WORD, "the answer is", "sealed", TASK + "/agents", "$KV.attempts"):
            assert word.encode() not in link.seen, word
