"""Warm-up of the team fork server.

The first run of a team imports modules, compiles patterns and fills caches. A team of one runs
here against a fake model server on loopback, so that no child has to do this.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retinue.core.contract import Contract, Execution, Parent, Step, Team, TeamMember
from retinue.core.conversation import Call, Tool, Turn
from retinue.formats.contract_json import contract_to_text
from retinue.gateway.vendors import find_vendor
from retinue.team.environment import TeamEnvironment, read_environment
from retinue.team.member import AgentBackend
from retinue.team.models.local_backend import make_backend
from retinue.team.team_main import work
from retinue.team.tools.tool_registry import TEXT, build_schema

# By then CPython has specialised the bytecode; children write to fewer shared pages.
TIMES = 10
SILENCE_S = 10
WIRES = ("openai", "anthropic", "gemini", "local")

ANSWER = Call(id="x", tool="new_answer", arguments={"content": "hello"})
# The local model calls a tool by writing JSON.
LOCAL_ANSWER = json.dumps({"tool": ANSWER.tool, "args": dict(ANSWER.arguments)})


def make_member_backend(member: TeamMember, environment: TeamEnvironment) -> AgentBackend:
    return make_backend(member, environment.gateway, environment.token)


def warm_up() -> None:
    """Ask each kind of backend once and run a small team several times."""
    with tempfile.TemporaryDirectory(prefix="retinue-") as folder, _serve_model() as address:
        variables = _prepare_folder(Path(folder), address)
        hello = [Turn(role="user", text="hello")]
        tool = Tool(name="new_answer", description="", parameters=build_schema({"content": TEXT}))
        for wire in WIRES:
            member = TeamMember(id="", route=wire, wire=wire, model="m")
            asked = make_backend(member, address, "token")
            _run_once(asked.reply(hello, [tool]))
        for _ in range(TIMES):
            environment = read_environment(variables)
            _run_once(work(environment, make_member_backend, variables))


def _run_once(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine in a new event loop, as a child does."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(coroutine)
    loop.close()


def _prepare_folder(folder: Path, address: str) -> dict[str, str]:
    member = TeamMember(id="", route="openai", wire="openai", model="m")
    contract = Contract(
        parent=Parent(run_id="r", step_idx=0, task_prompt="", goal_summary=""),
        step=Step(title="", description=""),
        execution=Execution(attempt_timeout_ms=30_000),
        team=Team(members=(member,)),
    )
    for name in ("workspace", "context", "logs", "inbox"):
        (folder / name).mkdir()
    (folder / "contract").write_text(contract_to_text(contract))
    (folder / "brief").write_text("hello")
    files = ("contract", "brief", "workspace", "context", "logs", "inbox", "answer", "final")
    paths = {f"RETINUE_{name.upper()}": str(folder / name) for name in files}
    return paths | {
        "RETINUE_SUBAGENT_ID": "rehearsal",
        "RETINUE_GATEWAY": address,
        "RETINUE_GATEWAY_TOKEN": "token",
    }


@contextmanager
def _serve_model() -> Iterator[str]:
    """Yield the address of a fake model server that runs in a forked process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pid = os.fork()
        if pid == 0:
            try:
                # Exit if the parent was killed and can no longer stop this process.
                server.settimeout(SILENCE_S)
                while True:
                    _answer(server.accept()[0])
            finally:
                os._exit(1)
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _answer(connection: socket.socket) -> None:
    """Answer one request in the format of the vendor that its path names."""
    with connection, connection.makefile("rb") as asked:
        path = asked.readline().split(b" ")[1].decode()
        lines = [line.lower() for line in iter(asked.readline, b"\r\n")]
        sizes = [line for line in lines if line.startswith(b"content-length:")]
        asked.read(int(sizes[0].partition(b":")[2]) if sizes else 0)
        body = _build_answer(path)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )


def _build_answer(path: str) -> bytes:
    wire = path.split("/")[1]
    vendor = find_vendor(wire)
    local = wire == "local"
    events = vendor.build_events(LOCAL_ANSWER) if local else vendor.build_events("", ANSWER)
    return b"".join(map(_format_sse, events))


def _format_sse(event: dict[str, object]) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()
