"""What is said to an MCP server and what it says, in both eras of the protocol.

A server is a stranger: whatever does not have the form that is expected is left out, and said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from retinue.domain.conversation import Tool

HANDSHAKE = "2025-11-25"  # the newest of those that begin with `initialize`
STATELESS = "2026-07-28"  # the oldest in which each request says for itself what it speaks
PING, INITIALIZE, DISCOVER = "ping", "initialize", "server/discover"
LIST, CALL = "tools/list", "tools/call"
READY, CANCELLED = "notifications/initialized", "notifications/cancelled"

NO_SUCH_METHOD = -32601
LONGEST_DESCRIPTION = 4000
LARGEST_SCHEMA = 64 * 1024  # as text
LONGEST_ERROR = 2000
DEEPEST = 100  # folds of what is passed on: whoever writes it down needs some, too

Message = dict[str, Any]


class Failed(Exception):
    """The server answered with an error, or with nothing that is an answer."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A part of a server's tools, and how to ask for the next one."""

    tools: tuple[Tool, ...]
    unfit: tuple[str, ...]  # why others were left out
    cursor: str = ""


@dataclass(frozen=True, kw_only=True)
class Said:
    text: str
    failed: bool = False


def opening(version: str) -> Message:
    """The parameters of `initialize`."""
    return {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _client(version)}


def envelope(version: str) -> Message:
    """What every request carries to a server that keeps nothing between them."""
    start = "io.modelcontextprotocol/"
    return {
        f"{start}protocolVersion": STATELESS,
        f"{start}clientInfo": _client(version),
        f"{start}clientCapabilities": {},
    }


def _client(version: str) -> Message:
    return {"name": "retinue", "version": version}


def request(number: int, method: str, params: Message, meta: Message) -> Message:
    """`meta` is the envelope, where the server wants one."""
    carried = params | ({"_meta": meta} if meta else {})
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": carried}


def page_after(cursor: str) -> Message:
    """The parameters of `tools/list`."""
    return {"cursor": cursor} if cursor else {}


def calling(tool: str, arguments: Mapping[str, Any]) -> Message:
    """The parameters of `tools/call`."""
    return {"name": tool, "arguments": dict(arguments)}


def notice(method: str, **params: Any) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def cancelled(number: int) -> Message:
    return notice(CANCELLED, requestId=number, reason="nobody waits for it any more")


def to_line(message: Message) -> bytes:
    return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def parse(data: bytes) -> Message | None:
    """The message in some bytes; None where there is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def headers_of(message: Message) -> dict[str, str]:
    """What a message over HTTP says of itself outside of its body."""
    method, params = message["method"], message.get("params", {})
    told = {"mcp-method": method}
    if method != INITIALIZE:
        told["mcp-protocol-version"] = STATELESS if "_meta" in params else HANDSHAKE
    if method == CALL:
        told["mcp-name"] = quote(params["name"], safe=" !#$&'()*+,/:;=?@[]~%")
    return told


def number_of(message: Message) -> int:
    """Of a request of ours."""
    return int(message["id"])


def answered(message: Message) -> int | None:
    """The number of the request that a message answers."""
    number = message.get("id")
    answers = "result" in message or "error" in message
    return number if answers and isinstance(number, int) else None


def reply_to(message: Message) -> Message | None:
    """What is said to a request of the server's own: that we are here, and nothing else."""
    if "method" not in message or "id" not in message:
        return None
    head: Message = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == PING:
        return head | {"result": {}}
    return head | {"error": {"code": NO_SUCH_METHOD, "message": "this client only calls tools"}}


def result_of(message: Message) -> Message:
    """Raises:
    Failed: it is an error, or no object; in the server's words.
    """
    error = message.get("error")
    if error is not None:
        told = error.get("message") if isinstance(error, dict) else error
        raise Failed(str(told)[:LONGEST_ERROR])
    result = message.get("result")
    if not isinstance(result, dict):
        raise Failed("its answer is not an object")
    kind = result.get("resultType", "complete")
    if kind != "complete":
        raise Failed(f"it answered with {str(kind)[:80]!a}, which nobody here can go on with")
    return result


def tools_in(result: Message) -> Page:
    """Raises:
    Failed: there is no list of tools in it.
    """
    listed = result.get("tools")
    if not isinstance(listed, list):
        raise Failed("its answer holds no list of tools")
    found = [_tool(each) for each in listed]
    cursor = result.get("nextCursor")
    return Page(
        tools=tuple(each for each in found if isinstance(each, Tool)),
        unfit=tuple(each for each in found if isinstance(each, str)),
        cursor=cursor if isinstance(cursor, str) else "",
    )


def _tool(given: object) -> Tool | str:
    """The tool by the server's own name for it; or why it cannot be offered."""
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(name, str) or not name:
        return "a tool without a name"
    takes = given.get("inputSchema")
    if not isinstance(takes, dict) or takes.get("type", "object") != "object":
        return f"{name[:80]!a} takes no object"
    if _is_deep(takes):
        return f"{name[:80]!a} has a schema with more than {DEEPEST} folds"
    if len(json.dumps(takes)) > LARGEST_SCHEMA:
        return f"{name[:80]!a} has a schema of more than {LARGEST_SCHEMA // 1024} KiB"
    described = given.get("description")
    text = described if isinstance(described, str) else ""
    parameters = {"properties": {}, **takes, "type": "object"}
    return Tool(name=name, description=text[:LONGEST_DESCRIPTION], parameters=parameters)


def _is_deep(value: object, left: int = DEEPEST) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left < 0 or any(_is_deep(each, left - 1) for each in inner)


def said_in(result: Message) -> Said:
    """What a tool gave, as text: other kinds are named."""
    content = result.get("content")
    parts = [_part(each) for each in content] if isinstance(content, list) else []
    structured = result.get("structuredContent")
    if not parts and structured is not None:
        deep = f"[data with more than {DEEPEST} folds, not shown]"
        parts = [deep if _is_deep(structured) else json.dumps(structured, ensure_ascii=False)]
    return Said(text="\n".join(parts), failed=result.get("isError") is True)


def _part(given: object) -> str:
    if not isinstance(given, dict):
        return "[something without a form]"
    kind, inner = given.get("type"), given.get("resource")
    for holder in (given, inner if isinstance(inner, dict) else {}):
        if isinstance(holder.get("text"), str):
            return str(holder["text"])
    if isinstance(given.get("uri"), str):
        return f"[see {given['uri'][:400]}]"
    data = given.get("data") or (inner.get("blob") if isinstance(inner, dict) else "") or ""
    named = " ".join(filter(None, [str(kind)[:40], str(given.get("mimeType", ""))[:80]]))
    return f"[{named}: {len(str(data))} characters of data, not shown]"
