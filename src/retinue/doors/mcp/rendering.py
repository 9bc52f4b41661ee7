"""A tool's answer, or its refusal, as the protocol has it."""

from __future__ import annotations

import mcp_types as types

from retinue.delegating.asking import Answer
from retinue.domain.errors import RetinueError


def rendered(answer: Answer) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text) for text in answer.texts],
        structured_content=answer.document,
    )


def refused(error: RetinueError) -> types.CallToolResult:
    """The error as the tool's answer, so that the agent that reads it can mend the call."""
    hint = f" ({error.hint})" if error.hint else ""
    text = f"error[{error.code}]: {error.message}{hint}"
    problem = {"code": error.code, "message": error.message, "hint": error.hint}
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content={"success": False, "error": problem},
        is_error=True,
    )
