"""MCP servers of a test's own: raw lines for what no client would send, and the official client."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client

from retinue.trust import trust_root
from support.roots import held

BOUND_S = 30.0
SOURCE = Path(__file__).resolve().parents[2] / "src"
ERAS = ("legacy", "2026-07-28")
SPAWN = "spawn_subagents"
STATUS, FETCH, WAIT, CANCEL, JOBS = (
    f"custom_tool__{name}"
    for name in (
        "get_background_tool_status",
        "get_background_tool_result",
        "wait_for_background_tool",
        "cancel_background_tool",
        "list_background_tools",
    )
)
# Whoever gets a brief runs it: a brief is a shell script.
CONFIG = """
agents:
  - id: runs-its-brief
    backend: {type: command, argv: [sh, -c, 'exec sh "$RETINUE_BRIEF"']}
orchestrator:
  coordination:
    subagent_default_timeout: 20
    subagent_min_timeout: 0.1
    subagent_max_concurrent: 5
    subagent_cancel_grace_seconds: [0.4, 0.3]
    subagent_runtime_mode: inherited
"""
ENVIRONMENT = {
    "PYTHONPATH": str(SOURCE),
    "PATH": os.environ["PATH"],
    "HOME": os.environ.get("HOME", "/"),
    "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
}

Message = dict[str, Any]

HELLO: Message = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}


@contextmanager
def project(folder: Path, more: str = "") -> Iterator[Path]:
    """A root that runs briefs; nothing of it is left afterwards."""
    root = folder / "project" / ".retinue"
    root.mkdir(parents=True, mode=0o700)
    (root / "config.yaml").write_text(CONFIG + more)
    trust_root(root, os.environ, ())
    with held(root):
        yield root


def command(root: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "retinue", "--root", str(root), "mcp", *words]


@asynccontextmanager
async def client(
    root: Path, *words: str, mode: str = "legacy", **options: Any
) -> AsyncIterator[Client]:
    """The official client, with a server of its own."""
    first, *rest = command(root, *words)
    server = StdioServerParameters(command=first, args=rest, env=ENVIRONMENT, cwd=str(root.parent))
    async with Client(server, mode=mode, **options) as connected:
        yield connected


def task(script: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    """One task whose subagent runs the script."""
    named = {} if name is None else {"subagent_id": name}
    return {"task": script, "context_paths": [], **named, **more}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path) as root:
        yield root


class Raw:
    """A server at whose pipes one writes and reads lines."""

    def __init__(self, root: Path, *words: str, argv: list[str] | None = None) -> None:
        self.process = subprocess.Popen(
            argv or command(root, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=root.parent,
            env=ENVIRONMENT,
        )
        self.lines: list[bytes] = []  # everything it ever wrote to standard output
        self._arrived: queue.Queue[bytes | None] = queue.Queue()
        self._number = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(BOUND_S)

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: Message | None = None, **more: Any) -> int:
        """A request is under way; its number."""
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params or {}}
        self.write(json.dumps(message | more).encode())
        return self._number

    def notify(self, method: str, params: Message) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def reply(self, number: Any, result: Message) -> None:
        """Answer a request of the server."""
        self.write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode())

    def call(self, tool: str, arguments: Message, **meta: Any) -> int:
        params: Message = {"name": tool, "arguments": arguments}
        return self.send("tools/call", params | ({"_meta": meta} if meta else {}))

    def next(self) -> Message:
        """The next message, whatever it is."""
        line = self._arrived.get(timeout=BOUND_S)
        assert line is not None, "the server has ended"
        message: Message = json.loads(line)
        return message

    def answer(self, number: Any) -> Message:
        """The answer to a request; what comes before it is let go."""
        while (message := self.next()).get("id") != number or "method" in message:
            pass
        return message

    def open(self) -> Raw:
        """The handshake is done."""
        self.answer(self.send("initialize", HELLO["params"] | {"protocolVersion": "2025-06-18"}))
        self.notify("notifications/initialized", {})
        return self

    def alive(self) -> bool:
        return "result" in self.answer(self.send("ping"))

    def end_input(self) -> int:
        """The client is gone, and the server after it; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(BOUND_S)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._arrived.put(line)
        self._arrived.put(None)
