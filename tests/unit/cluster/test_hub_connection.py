"""A connection to the hub ends whatever the hub does."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from retinue.cluster.hub_connection import HubConnection
from retinue.cluster.hub_server import Hub

INFO = {"server_id": "x", "version": "2.11.0", "tls_required": True, "max_payload": 1_000_000}


def test_it_closes_while_the_hub_breaks_off_each_handshake(tmp_path: Path) -> None:
    async def scene() -> None:
        refused = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(f"INFO {json.dumps(INFO)}\r\n".encode())
            await reader.read(1)  # the handshake begins
            writer.transport.abort()
            refused.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        hub = Hub(tmp_path / "hub")
        hub.prepare()
        url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connection = HubConnection(replace(hub.make_steward().address, url=url), print)
        opening = asyncio.create_task(connection.open(patient=True))
        await refused.wait()
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await opening
        await connection.close()
        server.close()

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scene()

    asyncio.run(bounded())
