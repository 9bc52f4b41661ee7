"""What the MCP server adds: to a spawn, to control calls meanwhile, and at its start."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp_types import Implementation

import retinue
from core import stewarded
from measure import Figure, in_turns, median_ms, p99_ms

CONFIG = """
agents:
  - id: echo
    backend: {type: command, argv: [sh, -c, 'grep -q wait "$RETINUE_BRIEF" && sleep 60; echo ok']}
orchestrator:
  coordination:
    subagent_runtime_mode: inherited
    subagent_min_timeout: 0.1
    subagent_max_concurrent: 16
    subagent_cancel_grace_seconds: [1, 1]
"""
JOBS = "custom_tool__list_background_tools"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}


@asynccontextmanager
async def served(name: str = "bench") -> AsyncIterator[tuple[Client, retinue.Task]]:
    """A client of that name of the server, and the same task through the Python API."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / ".retinue"
        root.mkdir(mode=0o700)
        (root / "config.yaml").write_text(CONFIG)
        words = ["-m", "retinue", "--root", str(root), "mcp"]
        server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
        async with stewarded(root) as opened:
            task = await opened.create_task(title="bench", config=CONFIG)
            about = Implementation(name=name, version="1")
            async with Client(server, mode="legacy", client_info=about) as client:
                yield client, task


async def door(rounds: int) -> list[Figure]:
    async with served() as (client, task):

        async def call(tool: str, **arguments: Any) -> None:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result.content

        async def direct() -> None:
            batch = await task.run([retinue.Brief("go", retries=0)])
            assert batch.success, batch.results[0].error

        async def by_mcp() -> None:
            await call("spawn_subagents", tasks=[{"task": "go", "context_paths": []}])

        taken = await in_turns(rounds, {"direct": direct, "mcp": by_mcp})
        await _control(client, 1, await _any_job(client))  # a client reads each schema once
        blocked = asyncio.ensure_future(
            client.call_tool(
                "spawn_subagents",
                {"tasks": [{"task": "wait", "context_paths": [], "subagent_id": "held"}]},
            )
        )
        while not (await client.call_tool(JOBS, {})).structured_content["jobs"]:
            pass
        control = await _control(client, rounds, "held")
        await call("custom_tool__cancel_background_tool", job_id="held")
        await blocked
    starts = await in_turns(max(3, rounds // 10), {"bare": _import, "server": _start})
    ms = {name: median_ms(seconds) for name, seconds in (taken | starts).items()}
    return [
        Figure("mcp spawn", ms["mcp"] - ms["direct"], "ms more than the API", 5, details=ms),
        Figure(
            "mcp control",
            p99_ms([each for seconds in control.values() for each in seconds]),
            "ms p99 while a spawn blocks",
            10,
            details={name: median_ms(seconds) for name, seconds in control.items()},
            note="The slowest by far is the list, of fifty subagents; the others take 2 to 3 ms, "
            "where a bare ping takes 1.",
        ),
        Figure("mcp start", ms["server"] / ms["bare"], "x import mcp to first answer", 1.3),
    ]


async def _any_job(client: Client) -> str:
    everyone = await client.call_tool(JOBS, {"include_all": True})
    return str(everyone.structured_content["jobs"][0]["job_id"])


async def _control(client: Client, rounds: int, job: str) -> dict[str, list[float]]:
    """Seconds of control calls, of each kind in turn."""
    calls: list[tuple[str, dict[str, Any]]] = [("list_subagents", {}), (JOBS, {})]
    calls.append(("custom_tool__get_background_tool_status", {"job_id": job}))
    taken: dict[str, list[float]] = {tool: [] for tool, _ in calls}
    for tool, arguments in calls * rounds:
        began = time.perf_counter()
        await client.call_tool(tool, arguments)
        taken[tool].append(time.perf_counter() - began)
    return taken


async def _import() -> None:
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "import mcp"], check=True)


async def _start() -> None:
    """A server is started and has answered."""

    def act() -> None:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "retinue", "--root", f"{folder}/.retinue", "mcp"]
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(HELLO).encode() + b"\n")
            process.stdin.flush()
            assert b"serverInfo" in process.stdout.readline()
            process.kill()
            process.communicate()

    await asyncio.to_thread(act)
