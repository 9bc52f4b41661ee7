"""A team of one does once, before any child is cloned, what every child will do.

What is run for the first time imports, compiles and builds. It is run here,
against a server of our own on loopback, so that no child has to.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from retinue.backends.choice import backend_for
from retinue.domain.contract import Contract, Execution, Parent, Step, Team, TeamMember
from retinue.domain.conversation import Tool, Turn
from retinue.executors import team
from retinue.executors.member import AgentBackend
from retinue.executors.surroundings import Surroundings, look_around
from retinue.executors.toolbox import TEXT, schema
from retinue.wire.contract import contract_to_text

TIMES = 10  # by then the interpreter has adapted itself to what it runs, and writes less into it
WIRES = ("openai", "anthropic", "gemini", "local")

# The shortest answer there is, as each vendor streams it.
CALL = json.dumps({"tool": "new_answer", "args": {"content": "hello"}})
CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
DELTA = {"index": 0, "delta": {"role": "assistant", "content": CALL}, "finish_reason": "stop"}
MESSAGE = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": []}
CHAT: list[dict[str, object]] = [
    {**CHUNK, "choices": [DELTA]},
    {
        **CHUNK,
        "choices": [],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    },
]
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
    with tempfile.TemporaryDirectory(prefix="retinue-") as folder:
        asyncio.run(_rehearse(Path(folder)))


async def _rehearse(folder: Path) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        environment = _stage(folder, address)
        for _ in range(TIMES):
            await team.Team(look_around(environment), backend, environment).work()
        hello = [Turn(role="user", text="hello")]
        tool = Tool(name="new_answer", description="", parameters=schema({"content": TEXT}))
        for wire in WIRES:
            member = TeamMember(id="", route=wire, wire=wire, model="m")
            await backend_for(member, address, "token").reply(hello, [tool])


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
        "RETINUE_ATTEMPT": "1",
        "RETINUE_GATEWAY": address,
        "RETINUE_GATEWAY_TOKEN": "token",
    }


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Whatever is asked, in whichever vendor's format."""
    head = await reader.readuntil(b"\r\n\r\n")
    sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(sizes[0].partition(b":")[2]) if sizes else 0)
    body = _said(head.split(b" ")[1].decode())
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    await writer.drain()
    writer.close()


def _said(path: str) -> bytes:
    if path.endswith("/chat/completions"):
        return b"".join(map(_sse, CHAT))
    return b"".join(map(_sse, MESSAGES if "/messages" in path else GENERATED))


def _sse(event: dict[str, object]) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()
