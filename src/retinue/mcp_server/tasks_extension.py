"""Spawns as tasks of the MCP Tasks extension, for clients that declare it.

A task id is the list of its subagent ids. So any server of the root can serve the task, also
after a crash, and no server stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from retinue.clock import get_timestamp
from retinue.core.errors import RetinueError
from retinue.core.ids import is_id
from retinue.delegation import answer_text, tool_definitions
from retinue.delegation.delegation_calls import DelegationCalls
from retinue.delegation.plan_tool import needs_plan
from retinue.delegation.result_view import Request
from retinue.mcp_server.tool_results import TEXT_ONLY_CLIENTS, is_client, render_answer

EXTENSION = "io.modelcontextprotocol/tasks"
MOST = 16  # subagents in one task; bounds the length of its id
POLL_MS = 500

Context = ServerRequestContext[Any, Any]


class TaskParams(types.RequestParams):
    task_id: str


class TaskHandles:
    def __init__(self, calls: DelegationCalls) -> None:
        self._calls = calls

    def serve_on(self, server: Server[Any]) -> None:
        """Declare the extension on the server and register its methods."""
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", TaskParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    def wants_task(self, context: Context, request: Request) -> bool:
        """Return whether this call is answered with a task instead of blocking."""
        given = request.arguments
        tasks = given.get("tasks")
        few = isinstance(tasks, list) and len(tasks) <= MOST
        blocks = request.tool == tool_definitions.SPAWN and few and not given.get("background")
        # The id of a task names subagents; those of a plan do not exist from the start.
        return blocks and _has_declared(context) and not needs_plan(given)

    async def begin(self, request: Request, warning: str) -> dict[str, Any]:
        """Spawn the subagents and return their task, with warnings as its status message.

        Raises:
            RetinueError: nothing was started.
        """
        names, warnings = await self._calls.begin(request)
        now = get_timestamp()
        found = {"created_at": now, "updated_at": now}
        task = _to_task(names, found, "working") | {"resultType": "task"}
        said = "; ".join(filter(None, [*warnings, warning]))
        return task | ({"statusMessage": said} if said else {})

    async def _get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        names = _parse_names(context, params)
        try:
            found, answer = await self._calls.collect(names)
        except RetinueError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from None
        if answer is None:
            running = [row for row in found["rows"] if row["status"] in ("pending", "running")]
            message = {"statusMessage": answer_text.format_running(running)}
            return _to_task(names, found, "working") | message
        # Only if all were cancelled; otherwise the results say which ones were.
        ended = {each["status"] for each in answer.document["results"]}
        if ended == {"cancelled"}:
            return _to_task(names, found, "cancelled")
        structured = not is_client(context, TEXT_ONLY_CLIENTS)
        result = render_answer(answer, structured=structured)
        document = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return _to_task(names, found, "completed") | {"result": document}

    async def _update(self, context: Context, params: TaskParams) -> dict[str, Any]:
        # Tasks never ask for input: check the id and ignore the rest.
        _parse_names(context, params)
        return {}

    async def _cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        try:
            await self._calls.stop(_parse_names(context, params))
        except RetinueError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from None
        return {}


def _has_declared(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    declared = (capabilities.extensions if capabilities is not None else None) or {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in declared


def _parse_names(context: Context, params: TaskParams) -> list[str]:
    """Return the subagent ids of a task id.

    Raises:
        MCPError: the client did not declare the extension, or the id is invalid.
    """
    if not _has_declared(context):
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"{EXTENSION} was not declared", needed
        )
    names = params.task_id.split(",")
    if len(names) > MOST or not all(map(is_id, names)):
        raise MCPError(types.INVALID_PARAMS, f"unknown task {params.task_id[:80]!a}")
    return names


def _to_task(names: Sequence[str], found: dict[str, Any], status: str) -> dict[str, Any]:
    return {
        "taskId": ",".join(names),
        "status": status,
        "createdAt": found["created_at"],
        "lastUpdatedAt": found["updated_at"],
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }
