"""Conversion of tool answers and errors to MCP results."""

from __future__ import annotations

import mcp_types as types

from retinue.core.errors import AGENT, RetinueError
from retinue.delegation.result_view import ToolAnswer


def render_answer(answer: ToolAnswer) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text) for text in answer.texts],
        structured_content=answer.document,
    )


def render_refusal(error: RetinueError, command: str = "") -> types.CallToolResult:
    """Return the error as a tool result, not a protocol error: the model reads only results.

    Args:
        command: what the user can run to mend the cause.
    """
    error = error.read_by(AGENT)
    advice = [error.hint, f"the user can run: {command}" if command else ""]
    hint = "; ".join(filter(None, advice))
    text = f"error[{error.code}]: {error.message}" + (f" ({hint})" if hint else "")
    problem = {"code": error.code, "message": error.message, "hint": hint}
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content={"success": False, "error": problem},
        is_error=True,
    )
