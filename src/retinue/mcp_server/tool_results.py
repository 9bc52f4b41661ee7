"""Conversion of tool answers and errors to MCP results."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext

from retinue.core.errors import AGENT, RetinueError
from retinue.delegation.result_view import ToolAnswer

# Clients that give their model the structured content instead of the text, by the name they send.
# The text says the same with a third of the tokens, so they get the text alone.
TEXT_ONLY_CLIENTS = ("claude-code", "codex-mcp-client")


def is_client(context: ServerRequestContext[Any, Any], names: Collection[str]) -> bool:
    """Return whether the client says that it has one of these names."""
    client = context.session.client_params
    return client is not None and client.client_info.name in names


def render_answer(answer: ToolAnswer, *, structured: bool) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text) for text in answer.texts],
        structured_content=answer.document if structured else None,
    )


def render_refusal(
    error: RetinueError, remedy: str = "", *, structured: bool
) -> types.CallToolResult:
    """Return the error as a tool result, not a protocol error: the model reads only results.

    Args:
        remedy: what the user can do to mend the cause.
    """
    error = error.read_by(AGENT)
    hint = "; ".join(filter(None, [error.hint, remedy]))
    text = f"error[{error.code}]: {error.message}" + (f" ({hint})" if hint else "")
    problem = {"code": error.code, "message": error.message, "hint": hint}
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content={"success": False, "error": problem} if structured else None,
        is_error=True,
    )
