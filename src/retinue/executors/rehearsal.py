"""A team of one does once, before any child is cloned, what every child will do.

What is run for the first time imports, compiles and builds. It is run here,
against a server of our own on loopback, so that no child has to.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retinue.backends.choice import backend_for
from retinue.domain.contract import Contract, Execution, Parent, Step, Team, TeamMember
from retinue.domain.conversation import Tool, Turn
from retinue.executors.member import AgentBackend
from retinue.executors.surroundings import Surroundings, look_around
from retinue.executors.team import work
from retinue.executors.toolbox import TEXT, schema
from retinue.wire.contract import contract_to_text

TIMES = 10  # by then the interpreter has adapted itself to what it runs, and writes less into it
SILENCE_S = 10
WIRES = ("openai", "anthropic", "gemini", "local")

# The shortest answer there is, as each vendor streams it.
ARGUMENTS = {"content": "hello"}
SAID = {"content": json.dumps({"tool": "new_answer", "args": ARGUMENTS})}
FUNCTION = {"name": "new_answer", "arguments": json.dumps(ARGUMENTS)}
CALLED = {"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": FUNCTION}]}
CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
MESSAGE = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": []}
USED = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
MESSAGES: list[dict[str, object]] = [
    {
        "type": "message_start",
        "message": MESSAGE | {"usage": {"input_tokens": 1, "output_tokens": 1}},
    },
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": "hello"},
    },
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 1},
    },
    {"type": "message_stop"},
]
GENERATED: list[dict[str, object]] = [
    {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": "hello"}]}, "finishReason": "STOP"}
        ],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
        "modelVersion": "m",
    }
]


def backend(member: TeamMember, around: Surroundings) -> AgentBackend:
    return backend_for(member, around.gateway, around.token)


def rehearse() -> None:
    """Everything a child needs is loaded and warm."""
    with tempfile.TemporaryDirectory(prefix="retinue-") as folder, _served() as address:
        environment = _stage(Path(folder), address)
        hello = [Turn(role="user", text="hello")]
        tool = Tool(name="new_answer", description="", parameters=schema({"content": TEXT}))
        for wire in WIRES:
            member = TeamMember(id="", route=wire, wire=wire, model="m")
            asked = backend_for(member, address, "token")
            _done(asked.reply(hello, [tool]))
        for _ in range(TIMES):
            around = look_around(environment)
            _done(work(around, backend, environment))


def _done(course: Coroutine[Any, Any, object]) -> None:
    """In a loop like that of a child."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(course)
    loop.close()


def _stage(folder: Path, address: str) -> dict[str, str]:
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
def _served() -> Iterator[str]:
    """The address of a process that answers whatever it is asked, one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pid = os.fork()
        if pid == 0:
            try:
                server.settimeout(SILENCE_S)  # whoever rehearses may be gone without a word
                while True:
                    _answer(server.accept()[0])
            finally:
                os._exit(1)
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _answer(way: socket.socket) -> None:
    """In whichever vendor's format."""
    with way, way.makefile("rb") as asked:
        path = asked.readline().split(b" ")[1].decode()
        lines = [line.lower() for line in iter(asked.readline, b"\r\n")]
        sizes = [line for line in lines if line.startswith(b"content-length:")]
        asked.read(int(sizes[0].partition(b":")[2]) if sizes else 0)
        body = _said(path)
        way.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )


def _said(path: str) -> bytes:
    if path.endswith("/chat/completions"):
        return b"".join(map(_sse, _chat(SAID if path.startswith("/local/") else CALLED)))
    return b"".join(map(_sse, MESSAGES if "/messages" in path else GENERATED))


def _chat(delta: Mapping[str, object]) -> list[dict[str, object]]:
    first = {"index": 0, "delta": {"role": "assistant", **delta}}
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return [
        {**CHUNK, "choices": [first]},
        {**CHUNK, "choices": [last]},
        {**CHUNK, "choices": [], "usage": USED},
    ]


def _sse(event: dict[str, object]) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()
