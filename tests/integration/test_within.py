"""Retinue used from within a subagent: the same doors lead to the steward that it works for."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import retinue
from support.roots import CONFIG, Root, command

SOURCE = Path(retinue.__file__).parents[1]
SEEN = sorted(
    {
        str(each)
        for each in (sys.prefix, sys.base_prefix, SOURCE)
        if not str(each).startswith("/usr")
    }
)
CLI = f"env PYTHONPATH={shlex.quote(str(SOURCE))} {shlex.quote(sys.executable)} -m retinue"


def within(root: Root, mode: str, *lines: str, agents: str = "") -> tuple[str, str]:
    """The task, and what these lines of a shell say as a subagent that may have its own."""
    text = CONFIG.replace("runtime_mode: inherited", f"runtime_mode: {mode}").format(limit=5)
    text += f"    subagent_context_roots: {json.dumps(SEEN)}\n{agents}"
    task = str(root.call("task.create", title="t", config_text=text)["task_id"])
    script = "\n".join(["exec 2>&1", f'retinue() {{ {CLI} "$@"; }}', *lines])
    brief = command("/bin/sh", "-c", script, subagent_id="above", max_delegation_depth=1)
    (result,) = root.run(task, brief | {"context_paths": SEEN}, cwd=str(root.path.parent))
    assert result["success"], result
    return task, str(result["answer"])


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_the_command_line_works_for_subagents_of_its_own_and_for_no_others(
    root: Root, mode: str
) -> None:
    _, said = within(
        root,
        mode,
        "cd /",
        'retinue subagent spawn "$RETINUE_TASK_ID" --id below --wait -- echo "from below"',
        'retinue subagent spawn "$RETINUE_TASK_ID" --id long -- sleep 600',
        'retinue subagent cancel "$RETINUE_TASK_ID" long --kill',
        'retinue subagent list "$RETINUE_TASK_ID"',
        'retinue subagent result "$RETINUE_TASK_ID" above',
        "retinue task create --title another",
        "true",
    )
    lines = said.splitlines()
    assert lines[0] == "from below" and "wait-any" not in said
    assert [line.split()[:2] for line in lines if line.startswith(("below ", "long "))] == [
        ["below", "result:"],
        ["long", "running"],
        ["long", "result:"],
        ["below", "completed"],
        ["long", "cancelled"],
    ]
    assert lines[-2].startswith("error[unknown_subagent]: above has no subagent 'above'")
    assert lines[-1].startswith("error[delegation_disabled]: subagents may not call task.create (")
    assert "another" not in {each["title"] for each in root.call("task.list")}


HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
PYTHON = """
import asyncio, os, retinue

async def main():
    async with retinue.connect() as r:
        task = r.task(os.environ["RETINUE_TASK_ID"])
        batch = await task.run([retinue.Brief(id="below", argv=["/bin/echo", "from below"])])
        print(batch.results[0].answer)
        try:
            await r.create_task(title="another")
        except retinue.Refused as error:
            print(error.code)

asyncio.run(main())
"""


def test_python_connects_to_the_steward_that_it_works_for(root: Root) -> None:
    run = f"{CLI.removesuffix('-m retinue')} -c {shlex.quote(PYTHON)}"
    assert within(root, "isolated", run)[1].split("\n") == ["from below", "delegation_disabled"]


def test_the_server_for_agents_spawns_in_the_task_that_it_works_in(root: Root) -> None:
    work = {"task": "Say it.", "subagent_id": "below", "context_paths": []}
    call = {"name": "spawn_subagents", "arguments": {"tasks": [work], "background": True}}
    asked: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": HELLO},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ]
    said = [shlex.quote(json.dumps({"jsonrpc": "2.0"} | each)) for each in asked]
    task, answer = within(root, "isolated", f"printf '%s\\n' {' '.join(said)} | retinue mcp")
    told = json.loads(answer.splitlines()[-1])["result"]["structuredContent"]
    assert [each["subagent_id"] for each in told["subagents"]] == ["below"], told
    shown = root.call("subagent.show", task=task, subagent="below")
    assert shown["contract"]["delegated_by"] == "above"


TASKS = """
import json, subprocess, sys
PREFIX = "io.modelcontextprotocol"
META = {
    f"{PREFIX}/protocolVersion": "2026-07-28",
    f"{PREFIX}/clientInfo": {"name": "raw", "version": "1"},
    f"{PREFIX}/clientCapabilities": {"extensions": {f"{PREFIX}/tasks": {}}},
}
server = subprocess.Popen(
    [sys.executable, "-m", "retinue", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
def asked(method, **params):
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": META}}
    server.stdin.write(json.dumps(request).encode() + b"\\n")
    server.stdin.flush()
    while "id" not in (answer := json.loads(server.stdout.readline())):
        pass
    return answer.get("result") or sys.exit(json.dumps(answer))
works = {"task": "echo from below", "subagent_id": "below", "context_paths": []}
begun = asked("tools/call", name="spawn_subagents", arguments={"tasks": [works]})
while (found := asked("tasks/get", taskId=begun["taskId"]))["status"] == "working":
    pass
jobs = asked("tools/call", name="list_subagents", arguments={})["structuredContent"]
print(found["result"]["structuredContent"]["results"][0]["answer"])
print(sorted(jobs))
server.stdin.close()
server.wait()
"""


def test_the_server_for_agents_answers_with_a_task_that_can_be_polled(root: Root) -> None:
    runs_its_brief = "{type: command, argv: [sh, -c, 'exec sh \"$RETINUE_BRIEF\"']}"
    agents = f"agents: [{{id: runs-its-brief, backend: {runs_its_brief}}}]\n"
    run = f"{CLI.removesuffix('-m retinue')} -c {shlex.quote(TASKS)}"
    _, said = within(root, "isolated", f"{run} || true", agents=agents)
    assert said.split("\n") == ["from below", "['subagents']"]
