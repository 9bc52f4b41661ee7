"""The whole gateway, put together; importing this is what costs time."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from retinue.gateway import prices
from retinue.gateway.grants import Accounts, Grant
from retinue.gateway.local.lease import LocalModel
from retinue.gateway.local.weights import models_folder
from retinue.gateway.passage import Passage
from retinue.gateway.replay import Recordings
from retinue.gateway.reporting import Reporting
from retinue.gateway.server import Server
from retinue.gateway.upstream import Upstream


@dataclass(frozen=True, kw_only=True)
class Host:
    """A gateway that is open."""

    server: Server
    upstream: Upstream
    recordings: Recordings
    local: LocalModel

    async def dismiss(self, token: str) -> Grant | None:
        grant = await self.server.dismiss(token)
        if grant is not None:
            self.recordings.forget(grant)
        return grant

    async def close(self) -> None:
        await self.server.close()
        self.upstream.close()


async def open_host(root: Path, accounts: Accounts, reporting: Reporting) -> Host:
    """Raises:
    BadInput: a variable does not hold what it should.
    OSError: its socket could not be made.
    """
    local = LocalModel(models_folder(os.environ))
    known = await asyncio.to_thread(prices.load)
    upstream, recordings = Upstream(), Recordings(root / "tasks")
    passage = Passage(upstream, accounts, known, recordings, reporting, local)
    server = Server(root, passage)
    try:
        server.open_unix()
    except OSError:
        upstream.close()
        raise
    return Host(server=server, upstream=upstream, recordings=recordings, local=local)
