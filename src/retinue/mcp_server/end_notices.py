"""Log messages to a client about its background subagents that end or ask.

For clients before protocol 2026-07-28, which has no messages outside of a call. A client that
shows them, or wakes its model by them, need not poll; the results come with its next call anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, get_args

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from retinue.core import events
from retinue.core.data_structures import BoundedDict
from retinue.core.errors import NotFound, RetinueError

LOGGER = "retinue"
LEVEL: types.LoggingLevel = "notice"
LEVELS: tuple[str, ...] = get_args(types.LoggingLevel)  # from debug to emergency
MOST_CLIENTS = 64
# After these a subagent may have a result or a question.
TYPES = (events.SUBAGENT_CLOSED, events.SUBAGENT_WAITING, events.GATE_BLOCKED)
SETTLED = ("blocked", "waiting_for_merge", "completed", "failed", "cancelled")

Context = ServerRequestContext[Any, Any]
Stream = Callable[..., AsyncGenerator[Any, None]]


class EndNotices:
    """Watchers of background subagents, one per spawn, for as long as these run."""

    def __init__(self, call: Callable[..., Any], stream: Stream) -> None:
        """Both send a verb to the steward: `call` returns its result, `stream` its items."""
        self._call = call
        self._stream = stream
        # By connection: what identifies it, kept so that no other gets its number; lowest level.
        self._levels = BoundedDict[int, tuple[object, str]](MOST_CLIENTS)
        self._watching: set[asyncio.Task[None]] = set()

    def serve_on(self, server: Server[Any]) -> None:
        """Declare the logging capability on the server."""
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)

    def watch(self, context: Context, task: str, names: Iterable[str]) -> None:
        """Notify this client once about each of these subagents, when it ends or asks."""
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        watching = asyncio.create_task(self._tell_ends(context, task, set(names)))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    async def close(self) -> None:
        for each in self._watching:
            each.cancel()
        if self._watching:
            await asyncio.wait(self._watching)

    async def _set_level(self, context: Context, params: types.SetLevelRequestParams) -> Any:
        client = context.session.client_params
        self._levels[id(client)] = (client, params.level)
        return types.EmptyResult()

    async def _tell_ends(self, context: Context, task: str, names: set[str]) -> None:
        # A lost steward ends the watch: notices are a convenience, the results are kept.
        with suppress(RetinueError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            shown = await self._call("task.show", task=task, limit=0)
            # The events since then are read below, so none is missed in between.
            for name in list(names):
                await self._tell(context, task, name, names)
            if not names:
                return
            since = {"task": task, "since": shown["last_seq"], "follow": True}
            # It ends when the task is closed, though steps of a plan may never have started.
            async with aclosing(self._stream("task.events", **since)) as items:
                async for event in items:
                    if event["type"] in TYPES and event["agentInstance"] in names:
                        await self._tell(context, task, event["agentInstance"], names)
                    if not names:
                        return

    async def _tell(self, context: Context, task: str, name: str, names: set[str]) -> None:
        """Send a notice if the subagent has ended or asks; it then leaves `names`."""
        try:
            row = await self._call("parent.look", task=task, subagent=name)
        except NotFound:
            return  # a step of a plan that has not started
        status = row["status"]
        # The run joins the output of a planned step before it is a result.
        unjoined = status == "waiting_for_merge" and row.get("integrated_by") == "run"
        if status not in SETTLED or unjoined:
            return
        names.discard(name)
        _, level = self._levels.get(id(context.session.client_params), (None, LEVEL))
        if LEVELS.index(LEVEL) < LEVELS.index(level):
            return
        words = f"is {status}: its result comes with your next call of a retinue tool"
        if status == "blocked":
            words = "asks: its questions come with your next call; answer by continue_subagent"
        data = {"subagent_id": name, "status": status, "message": f"subagent {name} {words}"}
        params = types.LoggingMessageNotificationParams(level=LEVEL, logger=LOGGER, data=data)
        await context.session.send_notification(types.LoggingMessageNotification(params=params))
