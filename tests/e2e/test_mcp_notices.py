"""Log messages that tell a client of its background subagents, through a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from e2e.test_mcp import ASKS, give, play
from support.mcp import BOUND_S, ERAS, SPAWN, WAIT, own, task

__all__ = ["own"]


@pytest.mark.parametrize("era", ERAS)
def test_a_client_is_told_of_ends_and_questions_without_a_call(own: Path, era: str) -> None:
    told: asyncio.Queue[Any] = asyncio.Queue()

    async def keep(params: Any) -> None:
        told.put_nowait(params)

    async def scene(connected: Any) -> None:
        tasks = [task("sleep 0.3; echo one", "one"), task(f"sleep 0.3; {ASKS}", "asks")]
        await give(connected, SPAWN, tasks=tasks, background=True)
        if era == "legacy":
            found = [await asyncio.wait_for(told.get(), BOUND_S) for _ in tasks]
            statuses = {each.data["subagent_id"]: each.data["status"] for each in found}
            assert statuses == {"one": "completed", "asks": "blocked"}
            assert {(each.level, each.logger) for each in found} == {("notice", "retinue")}
            # Servers may list the long tool names or the short ones: the messages name neither.
            assert not any("background_tool" in each.data["message"] for each in found)
        # A notice delivers nothing: the results are still to be had.
        names: set[str] = set()
        while len(names) < len(tasks):
            waited = await give(connected, WAIT, timeout_seconds=BOUND_S)
            assert waited["result"], names
            results = [waited["result"], *waited.get("background_results", ())]
            names |= {each["subagent_id"] for each in results}
        assert told.empty()

    play(own, scene, mode=era, logging_callback=keep)


@pytest.mark.filterwarnings("ignore:The logging capability is deprecated")
def test_a_client_that_wants_errors_only_is_not_told(own: Path) -> None:
    told: asyncio.Queue[Any] = asyncio.Queue()

    async def keep(params: Any) -> None:
        told.put_nowait(params)

    async def scene(connected: Any) -> None:
        await connected.set_logging_level("error")
        await give(connected, SPAWN, tasks=[task("echo one", "one")], background=True)
        await give(connected, WAIT, timeout_seconds=BOUND_S)
        await connected.set_logging_level("info")
        await give(connected, SPAWN, tasks=[task("echo two", "two")], background=True)
        await give(connected, WAIT, timeout_seconds=BOUND_S)
        assert (await asyncio.wait_for(told.get(), BOUND_S)).data["subagent_id"] == "two"

    play(own, scene, logging_callback=keep)
