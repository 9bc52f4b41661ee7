"""The tools behind the official SDK, which speaks both eras of the protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from retinue.delegating.asking import Request
from retinue.delegating.calls import Calls
from retinue.delegating.tools import NAMES, SPAWN, Definition, definitions, instructions
from retinue.domain.errors import RetinueError
from retinue.doors.mcp.cuts import Cuts
from retinue.doors.mcp.handles import Handles
from retinue.doors.mcp.reading import InForce
from retinue.doors.mcp.rendering import refused, rendered
from retinue.version import VERSION

NAME = "retinue"
SESSION = "retinue.session"  # in the scope of a request over HTTP

Context = ServerRequestContext[Any, Any]


def make_server(calls: Calls, in_force: InForce, cuts: Cuts) -> Server[Any]:
    """A server that lists and calls the tools in force, which have been read."""
    handles = Handles(calls)

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> Any:
        with suppress(RetinueError):  # a file that was broken meanwhile leaves them as they were
            await in_force.read()
        return types.ListToolsResult(tools=[_tool(each) for each in definitions(in_force.terms)])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> Any:
        if params.name not in NAMES or (params.name == SPAWN and not in_force.terms.enabled):
            raise MCPError(types.INVALID_PARAMS, f"unknown tool {params.name[:80]!a}")
        call = (context.request_id, _session(context))
        request = _request(context, params, was_cut=lambda: cuts.was_cut(*call))
        try:
            warning = await in_force.remark() if params.name == SPAWN else ""
            if handles.wanted(context, request):
                return await handles.begin(request, warning)
            answer = await calls.perform(request)
        except RetinueError as error:
            return refused(error)
        if answer.told:
            cuts.answered(lambda: calls.take_back(answer.told), *call)
        return rendered(answer.warned(warning) if warning else answer)

    server: Server[Any] = Server(
        NAME,
        version=VERSION,
        title="Retinue",
        instructions=instructions(in_force.terms),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    handles.serve_on(server)
    return server


def _request(
    context: Context, params: types.CallToolRequestParams, was_cut: Callable[[], bool]
) -> Request:
    async def report(seconds: float, running: str) -> None:
        await context.session.report_progress(round(seconds, 3), message=running)

    return Request(
        tool=params.name,
        arguments=params.arguments or {},
        caller=caller_of(context),
        report=report,
        was_cut=was_cut,
    )


def caller_of(context: Context) -> dict[str, str]:
    """Who calls, as far as the client says: Claude names the tool call, Codex also the thread."""
    meta: Mapping[str, Any] = context.meta or {}
    client = context.session.client_params
    info = client.client_info if client is not None else None
    found = {
        "client": f"{info.name} {info.version}".strip() if info is not None else "",
        "session": meta.get("threadId"),
        "call": meta.get("claudecode/toolUseId") or meta.get("callId"),
        "trace": meta.get("traceparent"),
    }
    return {key: value for key, value in found.items() if isinstance(value, str) and value}


def _session(context: Context) -> str:
    """Within which the request's id is its own: one client over a pipe, or as HTTP told it."""
    scope = getattr(context.request, "scope", None) or {}
    return str(scope.get(SESSION, ""))


def _tool(definition: Definition) -> types.Tool:
    return types.Tool(
        name=definition.name,
        title=definition.title,
        description=definition.description,
        input_schema=json.loads(json.dumps(definition.takes)),
        output_schema=json.loads(json.dumps(definition.gives)),
        annotations=types.ToolAnnotations(
            title=definition.title,
            read_only_hint=not definition.changes,
            destructive_hint=False,
            idempotent_hint=not definition.changes,
            open_world_hint=definition.changes,
        ),
    )
