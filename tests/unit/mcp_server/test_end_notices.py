"""Log messages about background subagents: which are sent, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import SetLevelRequestParams

from retinue.core.errors import NotFound, StewardUnavailable
from retinue.mcp_server.end_notices import EndNotices

BOUND_S = 20.0
CLOSED, BLOCKED = "agent.subagent_closed", "gate.blocked"


class Steward:
    """Fake steward of one task: its rows, and events that a test adds."""

    def __init__(self, **statuses: str) -> None:
        self.rows: dict[str, dict[str, Any]] = {
            name: {"status": status} for name, status in statuses.items()
        }
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.looked: asyncio.Queue[str] = asyncio.Queue()  # names that were looked up

    def end(self, name: str, status: str, kind: str = CLOSED, **more: Any) -> None:
        self.rows[name] = {"status": status, **more}
        self.events.put_nowait({"type": kind, "agentInstance": name})

    async def call(self, verb: str, subagent: str = "", **_: Any) -> Any:
        if verb == "task.show":
            return {"last_seq": 7}
        self.looked.put_nowait(subagent)
        if subagent not in self.rows:
            raise NotFound("not started", code="unknown_subagent")
        return self.rows[subagent]

    async def stream(self, verb: str, since: int, **_: Any) -> AsyncGenerator[Any, None]:
        assert (verb, since) == ("task.events", 7)
        while (event := await self.events.get()) is not None:
            yield event


class Client:
    """Fake connection of a client, which keeps what it is told."""

    def __init__(self, protocol_version: str = "2025-11-25") -> None:
        self.client_params = object()
        self.protocol_version = protocol_version
        self.told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.context: Any = SimpleNamespace(session=self, protocol_version=protocol_version)

    async def send_notification(self, notification: Any) -> None:
        data = notification.params.data
        assert data["subagent_id"] in data["message"] and notification.params.logger == "retinue"
        self.told.put_nowait((data["subagent_id"], data["status"]))


def play(scene: Any) -> None:
    async def staged() -> None:
        async with asyncio.timeout(BOUND_S):
            await scene

    asyncio.run(staged())


def test_each_end_and_question_is_told_once_also_one_before_the_watch() -> None:
    async def scene() -> None:
        steward, client = Steward(early="completed", late="running", asks="running"), Client()
        notices = EndNotices(steward.call, steward.stream)
        notices.watch(client.context, "mcp", ["early", "late", "asks"])
        assert await client.told.get() == ("early", "completed")
        steward.end("stranger", "completed")
        steward.end("asks", "blocked", BLOCKED)
        steward.end("early", "completed")
        steward.end("late", "failed")
        assert await client.told.get() == ("asks", "blocked")
        assert await client.told.get() == ("late", "failed")
        await notices.close()
        assert client.told.empty()

    play(scene())


def test_a_planned_step_is_told_when_it_is_joined_and_not_before_it_started() -> None:
    async def scene() -> None:
        steward, client = Steward(), Client()
        notices = EndNotices(steward.call, steward.stream)
        notices.watch(client.context, "mcp-plan-1", ["step"])
        assert await steward.looked.get() == "step"
        waiting = "agent.subagent_waiting_for_merge"
        steward.end("step", "waiting_for_merge", waiting, integrated_by="run")
        assert await steward.looked.get() == "step"
        steward.end("step", "completed")
        assert await client.told.get() == ("step", "completed")
        await notices.close()

    play(scene())


@pytest.mark.parametrize(("level", "heard"), [("error", False), ("notice", True), ("debug", True)])
def test_a_client_that_asks_for_higher_levels_is_not_told(level: Any, heard: bool) -> None:
    async def scene() -> None:
        steward, quiet, other = Steward(a="completed"), Client(), Client()
        notices = EndNotices(steward.call, steward.stream)
        handlers: dict[str, Any] = {}
        server: Any = SimpleNamespace(
            add_request_handler=lambda method, _, handle: handlers.update({method: handle})
        )
        notices.serve_on(server)
        await handlers["logging/setLevel"](quiet.context, SetLevelRequestParams(level=level))
        notices.watch(quiet.context, "mcp", ["a"])
        notices.watch(other.context, "mcp", ["a"])
        assert await other.told.get() == ("a", "completed"), "the other was watched after it"
        assert quiet.told.empty() != heard
        await notices.close()

    play(scene())


def test_a_client_of_the_newer_protocol_is_told_by_its_calls_only() -> None:
    async def scene() -> None:
        steward, modern, other = Steward(a="completed"), Client("2026-07-28"), Client()
        notices = EndNotices(steward.call, steward.stream)
        notices.watch(modern.context, "mcp", ["a"])
        notices.watch(other.context, "mcp", ["a"])
        assert await other.told.get() == ("a", "completed"), "the other was watched after it"
        assert modern.told.empty()
        await notices.close()

    play(scene())


def test_a_lost_steward_ends_the_watch() -> None:
    async def scene() -> None:
        async def lost(verb: str, **_: Any) -> Any:
            raise StewardUnavailable("it is gone")

        notices = EndNotices(lost, Steward().stream)
        notices.watch(Client().context, "mcp", ["a"])
        await notices.close()

    play(scene())
