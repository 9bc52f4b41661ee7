"""Construction of the gateway. Importing this module is slow (aiohttp, prices)."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from retinue.gateway import prices
from retinue.gateway.gateway_server import GatewayServer
from retinue.gateway.grants import BudgetAccounts, EventReporter, Grant
from retinue.gateway.local_model.model_client import LocalModel
from retinue.gateway.local_model.weights import find_models_folder
from retinue.gateway.proxy import RequestProxy
from retinue.gateway.recordings import Recordings
from retinue.gateway.upstream import Upstream


@dataclass(frozen=True, kw_only=True)
class GatewayHost:
    """A running gateway and its parts."""

    server: GatewayServer
    upstream: Upstream
    recordings: Recordings
    local: LocalModel

    async def revoke_token(self, token: str) -> Grant | None:
        grant = await self.server.revoke_token(token)
        if grant is not None:
            self.recordings.forget(grant)
        return grant

    async def close(self) -> None:
        await self.server.close()
        await self.upstream.close()


async def open_host(root: Path, accounts: BudgetAccounts, reporting: EventReporter) -> GatewayHost:
    """Build the gateway and open its Unix socket.

    Raises:
        BadInput: RETINUE_MODELS is not an absolute path.
        OSError: the socket cannot be created.
    """
    local = LocalModel(find_models_folder(os.environ))
    # In a thread: loading the price list takes a good part of a second.
    known = await asyncio.to_thread(prices.load)
    upstream = Upstream()
    recordings = Recordings(root / "tasks")
    passage = RequestProxy(upstream, accounts, known, recordings, reporting, local)
    server = GatewayServer(root, passage)
    try:
        server.open_unix()
    except OSError:
        await upstream.close()
        raise
    return GatewayHost(server=server, upstream=upstream, recordings=recordings, local=local)
