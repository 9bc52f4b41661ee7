"""The steward's end of the tunnel."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("nats")
from retinue.cluster.hub_connection import Callback, Handler, HubConnection
from retinue.cluster.messages import AttemptKey
from retinue.cluster.sealing import make_key, seal
from retinue.cluster.tunnel import OPEN, StewardTunnel

KEY = AttemptKey(node="n", steward="s", nonce="a")


class OneSubscription:
    """A connection that hands its only subscriber what a test says."""

    def __init__(self) -> None:
        self.handler: Handler | None = None

    async def subscribe(self, _: str, handler: Handler) -> Callback:
        self.handler = handler

        async def end() -> None:
            self.handler = None

        return end

    async def publish(self, _: str, __: bytes) -> None:
        return


class Piece:
    def __init__(self, secret: bytes) -> None:
        self.subject = "tunnel.n.s.a.first"
        self.data = seal(secret, OPEN + bytes(8))


def test_a_folder_with_a_long_path_can_hold_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    secret = make_key()

    async def work() -> None:
        connection = OneSubscription()
        tunnel = StewardTunnel(cast(HubConnection, connection), KEY, secret)
        listener = await tunnel.open()
        assert connection.handler is not None
        await connection.handler(cast(Any, Piece(secret)))
        async with asyncio.timeout(5):
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        accepted.close()
        await tunnel.close()
        listener.close()

    asyncio.run(work())
    assert not list(deep.iterdir())


def test_a_tunnel_that_could_not_open_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def work() -> None:
        tunnel = StewardTunnel(cast(HubConnection, OneSubscription()), KEY, make_key())
        await tunnel.close()

    asyncio.run(work())
    assert not list(tmp_path.iterdir())
