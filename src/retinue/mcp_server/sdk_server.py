"""MCP server built on the official SDK, which supports the older and the newer protocol."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from retinue.cli import render
from retinue.client.blocking_client import is_inside_subagent
from retinue.core.errors import RetinueError
from retinue.core.prompts import BRIEF_TEMPLATE, format_types
from retinue.delegation.delegation_calls import DelegationCalls
from retinue.delegation.result_view import Request
from retinue.delegation.task_session import ChildSession, Choice, TaskSession
from retinue.delegation.tool_definitions import (
    LIST,
    NAMES,
    SPAWN,
    STANDARD_NAMES,
    Definition,
    build_definitions,
    format_instructions,
)
from retinue.mcp_server import stdio_transport
from retinue.mcp_server.cancelled_calls import CANCEL_WHEN_ANSWERED, CancelledCalls
from retinue.mcp_server.effective_limits import EffectiveLimits, ParentLink
from retinue.mcp_server.end_notices import EndNotices
from retinue.mcp_server.tasks_extension import TaskHandles
from retinue.mcp_server.tool_results import (
    TEXT_ONLY_CLIENTS,
    is_client,
    render_answer,
    render_refusal,
)
from retinue.trust import note_use
from retinue.version import VERSION

NAME = "retinue"
UNUSABLE = ("no_backend", "no_key")  # codes of refusals that a configuration mends
SESSION = "retinue.session"  # scope key of an HTTP request

# What the tool descriptions have no room for.
TYPES = types.Resource(
    uri="retinue://types",
    name="types",
    title="Subagent types",
    description="What each subagent type is for, and what its brief should say.",
    mime_type="text/markdown",
)
BRIEF = types.Prompt(
    name="brief_subagent",
    title="Brief a subagent",
    description="Fill in what applies, and give it to a subagent as its task.",
)

Context = ServerRequestContext[Any, Any]


def make_server(
    calls: DelegationCalls, in_force: EffectiveLimits, cuts: CancelledCalls, notices: EndNotices
) -> Server[Any]:
    """Return a server for the tools; `in_force` must have been read once."""
    handles = TaskHandles(calls)

    async def list_tools(context: Context, _: types.PaginatedRequestParams | None) -> Any:
        # An invalid configuration file leaves the limits as they were.
        with suppress(RetinueError):
            await in_force.read()
        structured = not is_client(context, TEXT_ONLY_CLIENTS)
        found = build_definitions(in_force.terms)
        return types.ListToolsResult(
            tools=[_to_sdk_tool(each, structured=structured) for each in found]
        )

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> Any:
        # Both kinds of names work, whichever of them the server lists.
        tool = STANDARD_NAMES.get(params.name, params.name)
        if tool not in NAMES or (tool == SPAWN and not await in_force.can_spawn()):
            raise MCPError(types.INVALID_PARAMS, f"unknown tool {params.name[:80]!a}")
        call = (context.request_id, _find_session(context))
        structured = not is_client(context, TEXT_ONLY_CLIENTS)
        request = _make_request(context, tool, params, was_cut=lambda: cuts.was_cut(*call))
        try:
            warning = await in_force.take_warning() if tool == SPAWN else ""
            if handles.wants_task(context, request):
                return await handles.begin(request, warning)
            if tool == LIST:
                await in_force.refresh()
            answer = await calls.perform(request)
        except RetinueError as error:
            remedy = in_force.terms.remedy if error.code in UNUSABLE else ""
            return render_refusal(error, remedy, structured=structured)
        if answer.started_in:
            notices.watch(context, answer.started_in, answer.started)
        # If the client cancels now, the results in this answer are delivered again.
        # Only their names are kept, since the record outlives the answer.
        if answer.delivered and not is_client(context, CANCEL_WHEN_ANSWERED):
            cuts.mark_answered(partial(calls.take_back, answer.delivered), *call)
        answer = answer.add_warning(warning) if warning else answer
        return render_answer(answer, structured=structured)

    async def list_resources(_: Context, __: types.PaginatedRequestParams | None) -> Any:
        return types.ListResourcesResult(resources=[TYPES])

    async def read_resource(_: Context, params: types.ReadResourceRequestParams) -> Any:
        if str(params.uri) != TYPES.uri:
            raise MCPError(types.INVALID_PARAMS, f"unknown resource {str(params.uri)[:80]!a}")
        text = format_types(in_force.terms.types) or "No subagent types are active.\n"
        content = types.TextResourceContents(uri=TYPES.uri, mime_type=TYPES.mime_type, text=text)
        return types.ReadResourceResult(contents=[content])

    async def list_prompts(_: Context, __: types.PaginatedRequestParams | None) -> Any:
        return types.ListPromptsResult(prompts=[BRIEF])

    async def get_prompt(_: Context, params: types.GetPromptRequestParams) -> Any:
        if params.name != BRIEF.name:
            raise MCPError(types.INVALID_PARAMS, f"unknown prompt {params.name[:80]!a}")
        text = types.TextContent(type="text", text=f"{BRIEF.description}\n\n{BRIEF_TEMPLATE}")
        message = types.PromptMessage(role="user", content=text)
        return types.GetPromptResult(description=BRIEF.description, messages=[message])

    server: Server[Any] = Server(
        NAME,
        version=VERSION,
        title="Retinue",
        instructions=format_instructions(in_force.terms),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )
    handles.serve_on(server)
    notices.serve_on(server)
    return server


def _make_request(
    context: Context,
    tool: str,
    params: types.CallToolRequestParams,
    was_cut: Callable[[], bool],
) -> Request:
    async def report(seconds: float, running: str) -> None:
        await context.session.report_progress(round(seconds, 3), message=running)

    return Request(
        tool=tool,
        arguments=params.arguments or {},
        caller=read_caller(context),
        report=report,
        was_cut=was_cut,
    )


def read_caller(context: Context) -> dict[str, str]:
    """Return what the client says about the caller; Claude names the call, Codex also a thread."""
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


def _find_session(context: Context) -> str:
    """Return the session in which the request id is unique; empty for the one stdio client."""
    scope = getattr(context.request, "scope", None) or {}
    return str(scope.get(SESSION, ""))


def _to_sdk_tool(definition: Definition, *, structured: bool) -> types.Tool:
    return types.Tool(
        name=definition.name,
        title=definition.title,
        description=definition.description,
        input_schema=json.loads(json.dumps(definition.takes)),
        # A client refuses a result without structure of a tool that has this schema.
        output_schema=json.loads(json.dumps(definition.gives)) if structured else None,
        annotations=types.ToolAnnotations(
            title=definition.title,
            read_only_hint=not definition.changes,
            destructive_hint=False,
            idempotent_hint=not definition.changes,
            open_world_hint=definition.changes,
        ),
    )


# Startup and shutdown of the MCP server.

Serving = Callable[[Server[Any], CancelledCalls], Awaitable[None]]


def run(root: Path, choice: Choice, serving: Serving = stdio_transport.serve) -> None:
    """Run a server until its transport ends; the default transport is stdio."""

    async def serve() -> None:
        if not is_inside_subagent(root):
            note_use(root, os.environ)
        link = ParentLink(root)
        cuts = CancelledCalls()
        notices = EndNotices(link.call, link.stream)
        session = (
            ChildSession(link.call) if is_inside_subagent(root) else TaskSession(link.call, choice)
        )
        in_force = EffectiveLimits(root, choice, session)
        calls = DelegationCalls(session, lambda: in_force.terms)
        try:
            await in_force.read()
            render.warn({"warnings": in_force.warnings})
            # An open connection would keep the steward running while this server is idle.
            link.close()
            await serving(make_server(calls, in_force, cuts, notices), cuts)
        finally:
            await notices.close()
            await calls.close()
            link.close()

    # The command line runs without garbage collection, which suits short commands only.
    gc.freeze()
    gc.enable()
    # A second signal ends the wait for what outlives its call; the steward sees the end.
    with suppress(asyncio.CancelledError):
        asyncio.run(serve())
