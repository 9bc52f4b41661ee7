"""The Python API in its two forms, for tests that both must pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue import Brief, Retinue, Task
from support.roots import CONFIG, held

BOUND_S = 30.0
Opening = Callable[[], AbstractAsyncContextManager[Retinue]]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "project" / ".retinue"
    path.parent.mkdir()
    with held(path):
        yield path


@pytest.fixture(params=["in-process", "through-a-steward"])
def opened(own: Path, request: pytest.FixtureRequest) -> Opening:
    opening = retinue.open if request.param == "in-process" else retinue.connect

    @asynccontextmanager
    async def bounded() -> AsyncIterator[Retinue]:
        async with asyncio.timeout(BOUND_S), opening(own) as held_root:
            yield held_root

    return bounded


async def create(r: Retinue, limit: int = 8) -> Task:
    return await r.create_task(title="site", config=CONFIG.format(limit=limit))


def sh(script: str, name: str | None = None, **terms: Any) -> Brief:
    return Brief(argv=["sh", "-c", script], id=name, **({"retries": 0} | terms))


def playing(scene: Callable[[Retinue], Awaitable[None]], opened: Opening) -> None:
    async def play() -> None:
        async with opened() as r:
            await scene(r)

    asyncio.run(play())


def let_go(workspace: str) -> None:
    Path(workspace, "go").touch()


async def statuses(task: Task) -> dict[str, str]:
    return {row["agentInstance"]: row["status"] for row in await task.subagents()}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not holds():  # noqa: ASYNC110  the file system sets no event of ours
            await asyncio.sleep(0.005)


async def until_async(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    async with asyncio.timeout(BOUND_S):
        while await ask() != wanted:  # noqa: ASYNC110  only asking tells
            await asyncio.sleep(0.005)
