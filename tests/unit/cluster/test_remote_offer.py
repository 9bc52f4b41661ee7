"""The offer of an attempt while its files are packed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("nats")
from retinue.cluster.hub_connection import HubUnreachable
from retinue.cluster.messages import AttemptKey
from retinue.cluster.remote_runtime import RemoteRuntime
from retinue.cluster.sealing import make_key
from retinue.cluster.steward_link import RemoteAttempt, StewardLink
from retinue.core.errors import LaunchFailed
from retinue.core.ids import SubagentId, TaskId
from retinue.ports import LaunchOrder

RECORD = SimpleNamespace(name="w1", box="00", layers=True, bases=(), epoch="e", memory_mb=0)


class OfferingLink:
    """Link of a steward whose hub answers an offer once it is allowed to."""

    steward, secret, blobs = "steward", make_key(), None

    def __init__(self, *, reaches_hub: bool) -> None:
        self.allowed = asyncio.Event()
        self.offered: list[RemoteAttempt] = []
        self.withdrawn: list[RemoteAttempt] = []
        self.later: list[asyncio.Task[None]] = []
        self._reaches_hub = reaches_hub

    def get_record(self, _: str) -> Any:
        return RECORD

    def derive_secret(self, _: AttemptKey) -> bytes:
        return self.secret

    def release(self, _: str) -> None:
        pass

    async def offer(self, key: AttemptKey) -> RemoteAttempt:
        await self.allowed.wait()
        if not self._reaches_hub:
            raise HubUnreachable("the hub does not answer")
        self.offered.append(RemoteAttempt(key, self.secret))
        return self.offered[-1]

    async def withdraw(self, attempt: RemoteAttempt) -> bool:
        self.withdrawn.append(attempt)
        return True

    def run_soon(self, work: Coroutine[Any, Any, None]) -> None:
        self.later.append(asyncio.create_task(work))


@pytest.mark.parametrize("reaches_hub", [True, False])
def test_an_offer_is_revoked_if_the_files_cannot_be_sent(tmp_path: Path, reaches_hub: bool) -> None:
    order = LaunchOrder(
        task=TaskId("work"),
        subagent=SubagentId("one"),
        attempt=1,
        environment={},
        workspace=tmp_path / "agents" / "one" / "workspace",
        runtime_folder=tmp_path / "agents" / "one" / "runtime",
        timeout_ms=1000,
        graces_ms=(1, 1),
        output_limit_bytes=1000,
        contexts=(str(tmp_path / "missing"),),
        node="n",
    )

    async def scene() -> OfferingLink:
        link = OfferingLink(reaches_hub=reaches_hub)
        runtime = RemoteRuntime(cast(StewardLink, cast(Any, link)))
        with pytest.raises(LaunchFailed, match="cannot be sent to a node"):
            await runtime.launch(order)
        link.allowed.set()
        await asyncio.wait_for(asyncio.gather(*link.later), 10)
        return link

    link = asyncio.run(scene())

    assert link.later
    assert link.withdrawn == link.offered
    assert len(link.offered) == int(reaches_hub)
