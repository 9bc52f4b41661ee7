"""Mutated requests over real sockets: to the page, the gateway and the MCP server."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from campaign import Order, Row
from e2e.test_mcp_http import serving
from retinue.core.errors import RetinueError
from support.mcp import HELLO, project
from support.models import model_task
from support.page import served
from support.reader import Reader
from support.roots import Root, held, sh, until
from support.upstream import KEYS, provider

AT_ONCE = 16
PATIENCE_S = 0.5  # an incomplete request has no answer
BOUND_S = 20.0
BATCH = 64  # requests between two that must be answered
GROWTH_KB = 64 * 1024
SECRETS = ("UP_OPENAI_KEY", "UP_ANTHROPIC_KEY", "UP_GEMINI_KEY")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Mutate = Callable[[random.Random, Sequence[bytes]], bytes]


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server under attack: how to reach it, and requests that it answers with 2xx."""

    connect: Callable[[], Awaitable[Streams]]
    seeds: Sequence[bytes]
    pid: int


def attack_servers(order: Order, mutate: Mutate) -> list[Row]:
    """Send each server mutated requests; return a row for each."""
    rows = []
    for place, (name, run) in enumerate(SERVERS.items()):
        row = Row(case=name)
        rows.append(row)
        folder = order.folder / f"server-{place}"
        folder.mkdir()
        seconds = (order.end - time.monotonic()) / (len(SERVERS) - place)
        try:
            with run(folder) as server:
                asyncio.run(_attack(row, server, order, mutate, seconds))
        except (AssertionError, RetinueError, OSError) as error:
            row.note(f"{type(error).__name__}: {str(error)[:300]}")
    return rows


async def _attack(row: Row, server: Server, order: Order, mutate: Mutate, seconds: float) -> None:
    chance = random.Random(f"{order.seed}:{row.case}")
    before = _read_memory_kb(server.pid)
    end = time.monotonic() + seconds
    slowest = 0.0
    statuses: set[int] = set()
    while row.tried < order.rounds and time.monotonic() < end:
        began = time.monotonic()
        for seed in server.seeds:
            status = await _send(server, seed, BOUND_S)
            assert 200 <= status < 300, f"a good request got {status}: {seed[:80]!a}"
        slowest = max(slowest, (time.monotonic() - began) / len(server.seeds))
        bad = [mutate(chance, server.seeds) for _ in range(BATCH)]
        for at in range(0, BATCH, AT_ONCE):
            part = bad[at : at + AT_ONCE]
            answers = await asyncio.gather(*(_send(server, each, PATIENCE_S) for each in part))
            for data, status in zip(part, answers, strict=True):
                if status >= 500 or (status and not 100 <= status < 600):
                    kept = order.folder / f"{row.case.replace(' ', '-')}-{row.tried}"
                    kept.write_bytes(data)
                    row.note(f"a mutated request got {status}; kept as {kept}")
                statuses.add(status)
            row.tried += len(part)
    grown = (_read_memory_kb(server.pid) - before) / 1024
    if grown > GROWTH_KB / 1024:
        row.note(f"its memory grew by {grown:.0f} MB")
    told = ", ".join(str(status) for status in sorted(statuses - {0}))
    row.figures = (
        f"good requests meanwhile: {slowest * 1000:.0f} ms at most; answers {told}; "
        f"memory +{max(0.0, grown):.0f} MB"
    )


async def _send(server: Server, data: bytes, patience_s: float) -> int:
    """Return the status of the answer; 0 if the server closed or waits for more."""
    reader, writer = await server.connect()
    try:
        writer.write(data)
        head = await asyncio.wait_for(reader.readline(), patience_s)
    except (TimeoutError, OSError, ValueError):
        return 0
    finally:
        writer.close()
    words = head.split(b" ")
    if not head:
        return 0
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else -1


def _read_memory_kb(pid: int) -> int:
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def _request(line: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    if body:
        headers = headers | {"Content-Length": str(len(body))}
    said = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{line} HTTP/1.1\r\n{said}Connection: close\r\n\r\n".encode() + body


@contextmanager
def _serve_page(folder: Path) -> Iterator[Server]:
    with held(folder / ".retinue") as root:
        task = root.create_task()
        root.run(task, sh("echo hi", subagent_id="one"))
        with served(root.path) as page:
            page.enter()
            usual = {"Host": page.host, "Cookie": page.cookie, "X-CSRF-Token": page.word}
            own = usual | {"Origin": page.base, "Content-Type": "application/json"}
            one = f"/api/tasks/{task}/subagents/one"
            yield Server(
                connect=lambda: asyncio.open_connection("127.0.0.1", page.port),
                seeds=[
                    _request("GET /", {"Host": page.host, "Cookie": page.cookie}),
                    _request(f"GET /api/tasks/{task}", usual),
                    _request(f"GET {one}/output?stream=stdout&bytes=100", usual),
                    _request(f"GET {one}/files", usual),
                    _request(f"POST {one}/close", own, b"{}"),
                ],
                pid=page.process.pid,
            )
            assert page.process.poll() is None, "the server ended"
        _check(root)


@contextmanager
def _serve_mcp(folder: Path) -> Iterator[Server]:
    with project(folder) as path, serving(path) as (mcp, process):
        usual = {
            "Host": f"127.0.0.1:{mcp.port}",
            "Authorization": f"Bearer {mcp.token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        session = {name.replace("_", "-"): value for name, value in mcp.session().items()}
        ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        yield Server(
            connect=lambda: asyncio.open_connection("127.0.0.1", mcp.port),
            seeds=[
                _request("POST /mcp", usual, json.dumps(HELLO).encode()),
                _request("POST /mcp", usual | session, ping),
            ],
            pid=process.pid,
        )
        assert process.poll() is None, "the server ended"
        _check(Root(path))


@contextmanager
def _serve_gateway(folder: Path) -> Iterator[Server]:
    with ExitStack() as stack:
        stack.callback(_restore, {name: os.environ.get(name) for name in SECRETS})
        os.environ.update(KEYS)
        upstream = stack.enter_context(provider())
        root = stack.enter_context(held(folder / ".retinue"))
        task = model_task(root, upstream)
        script = 'echo "$RETINUE_GATEWAY_TOKEN $OPENAI_BASE_URL" > told; sleep 3600'
        root.spawn(task, sh(script, subagent_id="child", timeout_seconds=3600))
        told = root.folder(task, "child") / "workspace" / "told"
        until(lambda: told.exists() and told.read_text().endswith("\n"))
        token, url = told.read_text().split()
        path = "/" + url.split("/", 3)[3]
        usual = {
            "Host": "127.0.0.1",
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
        }
        body = b'{"model":"gpt-4o-mini","messages":[{"role":"user","content":"hi"}]}'
        streamed = body.replace(b"}]}", b'}],"stream":true}')
        gateway = str(root.path / "gateway.sock")
        yield Server(
            connect=lambda: asyncio.open_unix_connection(gateway),
            seeds=[
                _request(f"POST {path}/chat/completions", usual, body),
                _request(f"POST {path}/chat/completions", usual, streamed),
            ],
            pid=root.pid,
        )
        root.call("subagent.cancel", task=task, subagent="child", reason="over")
        _check(root)


def _restore(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _check(root: Root) -> None:
    """The steward works, its files agree, and no error of the program is in its log."""
    root.call("task.list")  # starts one, where none was needed
    log = (root.path / "steward.log").read_text(errors="replace")
    assert "Traceback" not in log, log[-1000:]
    Reader(root.path).check(finished=False)
    root.sound()


SERVERS = {
    "page over sockets": _serve_page,
    "gateway over sockets": _serve_gateway,
    "MCP over HTTP": _serve_mcp,
}
