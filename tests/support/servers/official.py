"""An MCP server made with the official SDK. With `stateless` it refuses to shake hands, with
`http` it is at a port of this machine."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("official")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@server.tool()
def look() -> str:
    """Where it is, what it knows, and how far it sees."""
    shown = {
        "cwd": os.getcwd(),
        "variables": sorted(os.environ),
        "token": os.environ.get("TOKEN", ""),
        "network": _network(),
        "uid": os.getuid(),
    }
    return json.dumps(shown)


@server.tool()
def note(text: str) -> str:
    """Write a file where it is."""
    Path("noted.txt").write_text(text)
    return "noted"


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


def _network() -> str:
    try:
        socket.create_connection(("192.0.2.1", 9), timeout=0.2).close()
    except TimeoutError:
        return "a way out"
    except OSError as error:
        return error.strerror or "none"
    return "a way out"


def refuse_the_handshake() -> None:
    """The first line, which asks for one, is answered as a server of the newer era does."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    asked = json.loads(line)
    error = {"code": -32601, "message": f"no {asked['method']} here"}
    answer = {"jsonrpc": "2.0", "id": asked["id"], "error": error}
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    if "stateless" in sys.argv:
        refuse_the_handshake()
    if "http" in sys.argv:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[-1]))
    server.run()
