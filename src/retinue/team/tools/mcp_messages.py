"""Messages to and from MCP servers, for the older and the newer protocol.

Servers are untrusted: parts with an unexpected form are left out, and the member is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from retinue.core.conversation import Tool

HANDSHAKE = "2025-11-25"  # newest protocol version that begins with `initialize`
STATELESS = "2026-07-28"  # oldest version in which each request names its version
PING, INITIALIZE, DISCOVER = "ping", "initialize", "server/discover"
LIST, CALL = "tools/list", "tools/call"
READY, CANCELLED = "notifications/initialized", "notifications/cancelled"

NO_SUCH_METHOD = -32601
LONGEST_DESCRIPTION = 4000
LARGEST_SCHEMA = 64 * 1024  # as text
LONGEST_ERROR = 2000
# Levels of nesting that are passed on; well below Python's recursion limit, since the value is
# encoded again inside other documents.
DEEPEST = 100

Message = dict[str, Any]


class McpError(Exception):
    """The server answered with an error or an invalid message, or not at all."""


@dataclass(frozen=True, kw_only=True)
class ToolPage:
    """One page of a server's tools."""

    tools: tuple[Tool, ...]
    unfit: tuple[str, ...]  # reasons why others were left out
    cursor: str = ""  # of the next page


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    text: str
    failed: bool = False


def build_initialize_params(version: str) -> Message:
    return {
        "protocolVersion": HANDSHAKE,
        "capabilities": {},
        "clientInfo": _describe_client(version),
    }


def build_envelope(version: str) -> Message:
    """Return the metadata that each request to a stateless server carries."""
    start = "io.modelcontextprotocol/"
    return {
        f"{start}protocolVersion": STATELESS,
        f"{start}clientInfo": _describe_client(version),
        f"{start}clientCapabilities": {},
    }


def _describe_client(version: str) -> Message:
    return {"name": "retinue", "version": version}


def request(number: int, method: str, params: Message, meta: Message) -> Message:
    """Return a request; `meta` is the envelope for a stateless server, or empty."""
    carried = params | ({"_meta": meta} if meta else {})
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": carried}


def build_list_params(cursor: str) -> Message:
    return {"cursor": cursor} if cursor else {}


def build_call_params(tool: str, arguments: Mapping[str, Any]) -> Message:
    return {"name": tool, "arguments": dict(arguments)}


def make_notice(method: str, **params: Any) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def make_cancel_notice(number: int) -> Message:
    return make_notice(CANCELLED, requestId=number, reason="the caller no longer waits for it")


def to_line(message: Message) -> bytes:
    return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def parse(data: bytes) -> Message | None:
    """Return the JSON object in the data, or None."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def build_headers(message: Message) -> dict[str, str]:
    """Return the HTTP headers that repeat parts of a message."""
    method = message["method"]
    params = message.get("params", {})
    told = {"mcp-method": method}
    if method != INITIALIZE:
        told["mcp-protocol-version"] = STATELESS if "_meta" in params else HANDSHAKE
    if method == CALL:
        told["mcp-name"] = quote(params["name"], safe=" !#$&'()*+,/:;=?@[]~%")
    return told


def read_number(message: Message) -> int:
    return int(message["id"])


def find_answered_number(message: Message) -> int | None:
    """Return the number of the request that a message answers, or None."""
    number = message.get("id")
    answers = "result" in message or "error" in message
    return number if answers and isinstance(number, int) else None


def reply_to(message: Message) -> Message | None:
    """Return the reply to a request of the server: only ping is supported."""
    if "method" not in message or "id" not in message:
        return None
    head: Message = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == PING:
        return head | {"result": {}}
    return head | {"error": {"code": NO_SUCH_METHOD, "message": "this client only calls tools"}}


def read_result(message: Message) -> Message:
    """Return the result of an answer.

    Raises:
        McpError: it is an error, in the server's words, or has no usable result.
    """
    error = message.get("error")
    if error is not None:
        told = error.get("message") if isinstance(error, dict) else error
        raise McpError(str(told)[:LONGEST_ERROR])
    result = message.get("result")
    if not isinstance(result, dict):
        raise McpError("its answer is not an object")
    kind = result.get("resultType", "complete")
    if kind != "complete":
        raise McpError(f"it answered with a result of type {str(kind)[:80]!a}, not supported here")
    return result


def parse_tools(result: Message) -> ToolPage:
    """Return the tools of a `tools/list` result.

    Raises:
        McpError: there is no list of tools in it.
    """
    listed = result.get("tools")
    if not isinstance(listed, list):
        raise McpError("its answer holds no list of tools")
    found = [_parse_tool(each) for each in listed]
    cursor = result.get("nextCursor")
    return ToolPage(
        tools=tuple(each for each in found if isinstance(each, Tool)),
        unfit=tuple(each for each in found if isinstance(each, str)),
        cursor=cursor if isinstance(cursor, str) else "",
    )


def _parse_tool(given: object) -> Tool | str:
    """Return the tool under the server's name for it, or why it cannot be offered."""
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(name, str) or not name:
        return "a tool without a name"
    takes = given.get("inputSchema")
    if not isinstance(takes, dict) or takes.get("type", "object") != "object":
        return f"{name[:80]!a} has an input schema that is not an object"
    if _is_deep(takes):
        return f"{name[:80]!a} has a schema with more than {DEEPEST} levels"
    if len(json.dumps(takes)) > LARGEST_SCHEMA:
        return f"{name[:80]!a} has a schema of more than {LARGEST_SCHEMA // 1024} KiB"
    described = given.get("description")
    text = described if isinstance(described, str) else ""
    parameters = {"properties": {}, **takes, "type": "object"}
    return Tool(name=name, description=text[:LONGEST_DESCRIPTION], parameters=parameters)


def _is_deep(value: object, left: int = DEEPEST) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left < 0 or any(_is_deep(each, left - 1) for each in inner)


def parse_output(result: Message) -> ToolOutput:
    """Return a tool's output as text; other kinds of content are only named."""
    content = result.get("content")
    parts = [_format_part(each) for each in content] if isinstance(content, list) else []
    structured = result.get("structuredContent")
    if not parts and structured is not None:
        deep = f"[data with more than {DEEPEST} levels, not shown]"
        parts = [deep if _is_deep(structured) else json.dumps(structured, ensure_ascii=False)]
    return ToolOutput(text="\n".join(parts), failed=result.get("isError") is True)


def _format_part(given: object) -> str:
    if not isinstance(given, dict):
        return "[content of an unknown form]"
    kind = given.get("type")
    inner = given.get("resource")
    for holder in (given, inner if isinstance(inner, dict) else {}):
        if isinstance(holder.get("text"), str):
            return str(holder["text"])
    if isinstance(given.get("uri"), str):
        return f"[see {given['uri'][:400]}]"
    data = given.get("data") or (inner.get("blob") if isinstance(inner, dict) else "") or ""
    named = " ".join(filter(None, [str(kind)[:40], str(given.get("mimeType", ""))[:80]]))
    return f"[{named}: {len(str(data))} characters of data, not shown]"
