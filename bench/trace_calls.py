"""How much code one subagent passes through: modules, functions and crossings between folders.

These are counts, not times: they are the same on every machine. What the steward writes after its
answer, such as the roster in task.yaml, is part of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client.client import Client

import core
import disk
import retinue
from measure import Figure

PROBE = str(Path(__file__).with_name("trace_probe.py"))
BOUND_S = 60.0
# Aims. A fifth of the modules is entered for one to three calls, which the output names: each holds
# one subject, such as cgroups, briefs or the verb table, that would be harder to find in another
# module. Nearly half of the crossings are calls of the pure core by the steward and its store, or
# between these two. The objects are the tools, the parent's tasks, the link that outlives a
# steward, one connection, and its other end.
MOST_MODULES, MOST_CROSSINGS, MOST_OBJECTS = 50, 150, 3
FEW = 3  # calls of a module that is listed by name
ONE_COMMAND = """
agents:
  - id: echo
    backend: {type: command, argv: [sh, -c, 'echo ok']}
orchestrator:
  coordination:
    subagent_runtime_mode: inherited
    subagent_min_timeout: 0.1
"""


def _make_root() -> Path:
    root = disk.folder() / ".retinue"
    root.mkdir(mode=0o700)
    (root / "config.yaml").write_text(ONE_COMMAND)
    return root


async def trace() -> list[Figure]:
    """Count what one isolated `echo` passes in the steward, and one spawn by MCP before it."""
    root = _make_root()
    folder = root.parent
    async with (
        _probed_steward(root, folder / "steward.json") as steward,
        retinue.connect(root) as opened,
    ):
        task = await core.task(opened, "isolated")
        await _run_echo(task)  # imports and pools are ready afterwards
        await _wait_written(root, task)
        os.kill(steward, signal.SIGUSR1)
        await _run_echo(task)
        await _wait_written(root, task)
        echo = await _stop_counting(steward, folder / "steward.json")
        chain = await _trace_mcp(root, steward, folder)
        await opened.call("steward.stop", cancel=True)
    for where, number in list(echo["between"].items())[:12]:
        print(f"  {number:5} {where}")
    print(f"  {echo['calls']} calls of {echo['functions']} functions")
    few = [f"{module} {calls}" for module, calls in echo["modules"].items() if calls <= FEW]
    print(f"  entered for up to {FEW} calls: {', '.join(few)}")
    print(f"  from the SDK's callback to the verb: {' > '.join(chain)}")
    return [
        Figure("modules", len(echo["modules"]), "entered by one echo", MOST_MODULES),
        Figure("functions", echo["functions"], "called by one echo"),
        Figure("crossings", echo["crossings"], "between folders, one echo", MOST_CROSSINGS),
        Figure("objects", len(chain), "from MCP callback to verb", MOST_OBJECTS),
    ]


async def _run_echo(task: retinue.Task) -> None:
    batch = await task.run([retinue.Brief(argv=core.ECHO, retries=0)])
    assert batch.success, batch.results[0].error


async def _wait_written(root: Path, task: retinue.Task) -> None:
    """Wait until the files of the task show its last event."""
    folder = root / "tasks" / task.id
    async with asyncio.timeout(BOUND_S):
        while True:
            last = json.loads((folder / "events.jsonl").read_text().splitlines()[-1])["seq"]
            if json.loads((folder / "status.json").read_text())["last_seq"] == last:
                return
            await asyncio.sleep(0.01)


async def _trace_mcp(root: Path, steward: int, folder: Path) -> list[str]:
    """Return the objects that a spawn by MCP passes, outermost first."""
    output = folder / "mcp.json"
    words = [PROBE, str(output), "mcp", str(root)]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    spawn = {"tasks": [{"task": "go", "context_paths": []}]}
    async with Client(server, mode="legacy") as client:
        await client.call_tool("spawn_subagents", spawn)
        probe = _find_child(PROBE, str(output))
        for process in (probe, steward):
            os.kill(process, signal.SIGUSR1)
        result = await client.call_tool("spawn_subagents", spawn)
        assert not result.is_error, result.content
        asked = await _stop_counting(probe, output)
        served = await _stop_counting(steward, folder / "steward.json")
    chain = [*served["chains"]["spawn"], *asked["chains"]["parent.spawn"]]
    return [name.partition("@")[0] for name in reversed(chain)]


def _start_steward(root: Path, output: Path, ready: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, PROBE, str(output), "steward", str(root), str(ready)]
    return subprocess.Popen(argv, pass_fds=[ready], stdin=subprocess.DEVNULL)


@asynccontextmanager
async def _probed_steward(root: Path, output: Path) -> AsyncIterator[int]:
    ready, theirs = os.pipe()
    with _start_steward(root, output, theirs) as process:
        os.close(theirs)
        readable, _, _ = select.select([ready], [], [], BOUND_S)
        assert readable, "the steward was not ready in time"
        assert b"ready" in os.read(ready, 4096)
        os.close(ready)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(BOUND_S)


async def _stop_counting(process: int, output: Path) -> dict[str, Any]:
    """Return the counts of a probe, which writes them to a named pipe."""

    def read() -> dict[str, Any]:
        os.mkfifo(output)
        os.kill(process, signal.SIGUSR2)
        report: dict[str, Any] = json.loads(output.read_text())
        output.unlink()
        return report

    return await asyncio.wait_for(asyncio.to_thread(read), BOUND_S)


def _find_child(*words: str) -> int:
    """Return the process that was started with these words."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if all(word in argv for word in words):
                return int(entry.name)
    raise AssertionError("the MCP server is not running")
