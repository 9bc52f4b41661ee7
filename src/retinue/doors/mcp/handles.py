"""Spawns as tasks of the protocol's Tasks extension, for clients that declare it.

A task's id is made of the ids of its subagents, so that any server of the root can serve it, also
after a crash: what is known of them is known of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from retinue.delegating import answers, tools
from retinue.delegating.asking import Request
from retinue.delegating.calls import Calls
from retinue.domain.errors import RetinueError
from retinue.domain.ids import is_id
from retinue.doors.mcp.rendering import rendered
from retinue.wire.views import timestamp

EXTENSION = "io.modelcontextprotocol/tasks"
MOST = 16  # subagents whose ids make one of bearable length
POLL_MS = 500

Context = ServerRequestContext[Any, Any]


class TaskParams(types.RequestParams):
    task_id: str


class Handles:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def serve_on(self, server: Server[Any]) -> None:
        """The server declares the extension and answers its methods."""
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", TaskParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    def wanted(self, context: Context, request: Request) -> bool:
        """Whether this call is answered with a task instead of being held open."""
        given = request.arguments
        tasks = given.get("tasks")
        few = isinstance(tasks, list) and len(tasks) <= MOST
        blocks = request.tool == tools.SPAWN and few and not given.get("background")
        return blocks and _declared(context)

    async def begin(self, request: Request, warning: str) -> dict[str, Any]:
        """The task; what there is to warn of is its message.

        Raises:
            RetinueError: nothing was begun.
        """
        names, warnings = await self._calls.begin(request)
        now = timestamp(time.time())
        found = {"created_at": now, "updated_at": now}
        task = _task(names, found, "working") | {"resultType": "task"}
        said = "; ".join(filter(None, [*warnings, warning]))
        return task | ({"statusMessage": said} if said else {})

    async def _get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        names = _names(context, params)
        try:
            found, answer = await self._calls.collect(names)
        except RetinueError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from None
        if answer is None:
            running = [row for row in found["rows"] if row["status"] in ("pending", "running")]
            message = {"statusMessage": answers.running_text(running)}
            return _task(names, found, "working") | message
        ended = {each["status"] for each in answer.document["results"]}
        if ended == {"cancelled"}:
            return _task(names, found, "cancelled")
        result = rendered(answer).model_dump(by_alias=True, mode="json", exclude_none=True)
        return _task(names, found, "completed") | {"result": result}

    async def _update(self, context: Context, params: TaskParams) -> dict[str, Any]:
        _names(context, params)  # it never asks for input, so there is nothing to take
        return {}

    async def _cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        try:
            await self._calls.stop(_names(context, params))
        except RetinueError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from None
        return {}


def _declared(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    declared = (capabilities.extensions if capabilities is not None else None) or {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in declared


def _names(context: Context, params: TaskParams) -> list[str]:
    """Raises:
    MCPError: the client did not declare the extension, or this is no task of ours.
    """
    if not _declared(context):
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"{EXTENSION} was not declared", needed
        )
    names = params.task_id.split(",")
    if len(names) > MOST or not all(map(is_id, names)):
        raise MCPError(types.INVALID_PARAMS, f"unknown task {params.task_id[:80]!a}")
    return names


def _task(names: Sequence[str], found: dict[str, Any], status: str) -> dict[str, Any]:
    return {
        "taskId": ",".join(names),
        "status": status,
        "createdAt": found["created_at"],
        "lastUpdatedAt": found["updated_at"],
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }
