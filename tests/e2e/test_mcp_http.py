"""The tools over HTTP: both eras, and nothing for whoever has no business here."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from support.mcp import (
    BOUND_S,
    ENVIRONMENT,
    ERAS,
    HELLO,
    SPAWN,
    STATUS,
    WAIT,
    command,
    project,
    task,
)
from support.roots import Root, until

PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})


@dataclass
class Served:
    url: str
    port: int
    token: str
    root: Path

    def ask(
        self, method: str = "POST", path: str = "/mcp", body: str | bytes = PING, **headers: Any
    ) -> http.client.HTTPResponse:
        """The answer to one request; headers are what is said beside the usual, or instead."""
        return self.begin(method, path, body, **headers).getresponse()

    def begin(
        self, method: str = "POST", path: str = "/mcp", body: str | bytes = PING, **headers: Any
    ) -> http.client.HTTPConnection:
        """A connection over which the request was sent, and nothing is read yet."""
        usual = {
            "Host": f"127.0.0.1:{self.port}",
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_S)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        data = body.encode() if isinstance(body, str) else body
        for name, value in (usual | said | {"Content-Length": str(len(data))}).items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(data)
        return connection

    def session(self) -> dict[str, str]:
        """The headers of a new session of the older protocol."""
        answer = self.ask(body=json.dumps(HELLO))
        given = answer.getheader("mcp-session-id")
        assert given is not None
        headers = {"mcp_session_id": given, "mcp_protocol_version": "2025-11-25"}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert self.ask(body=json.dumps(ready), **headers).status == 202
        return headers


@contextmanager
def serving(root: Path) -> Iterator[tuple[Served, subprocess.Popen[str]]]:
    """A server of the root, and its process."""
    words = command(root, "--http", "--json")
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, cwd=root.parent, env=ENVIRONMENT, text=True
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        token = Path(said["token_file"])
        assert token == root / "mcp-token" and token.stat().st_mode & 0o777 == 0o600
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/mcp", said["url"])
        assert found is not None
        yield Served(said["url"], int(found.group(1)), token.read_text().strip(), root), process
    finally:
        process.terminate()
        process.wait(BOUND_S)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with project(tmp_path_factory.mktemp("mcp")) as root, serving(root) as (served, _):
        yield served


def test_a_terminated_server_ends_in_order(own: Path) -> None:
    with serving(own) as (served, process):
        assert served.session(), "it serves"
        process.terminate()
        assert process.wait(BOUND_S) == 0, "killed by the signal, it would return no results"


@pytest.mark.parametrize("era", ERAS)
def test_the_tools_work_over_http(served: Served, era: str) -> None:
    async def scene() -> None:
        async with client(served, era) as connected:
            assert len((await connected.list_tools()).tools) == 8
            arguments = {"tasks": [task("echo over http", f"http-{era}")]}
            result = await connected.call_tool(SPAWN, arguments)
            assert result.structured_content["results"][0]["answer"] == "over http"

    asyncio.run(scene())


@asynccontextmanager
async def client(served: Served, era: str) -> AsyncIterator[Client]:
    shown = {"Authorization": f"Bearer {served.token}"}
    async with (
        asyncio.timeout(BOUND_S * 2),
        httpx2.AsyncClient(headers=shown, timeout=BOUND_S) as carrier,
        Client(streamable_http_client(served.url, http_client=carrier), mode=era) as connected,
    ):
        yield connected


def test_a_call_that_is_cut_for_its_length_is_delivered_later(served: Served) -> None:
    async def scene() -> None:
        async with client(served, "legacy") as connected:
            script = "touch ready; until [ -e go ]; do sleep 0.01; done; echo late"
            arguments = {"tasks": [task(script, "cut")]}
            with pytest.raises(Exception, match="timed out"):
                await connected.call_tool(SPAWN, arguments, read_timeout_seconds=2.0)
            workspace = served.root / "tasks/mcp/agents/cut/workspace"
            await asyncio.to_thread(until, (workspace / "ready").exists)
            (workspace / "go").touch()
            waited = await connected.call_tool(WAIT, {"timeout_seconds": BOUND_S})
            document = waited.structured_content
            assert (document["job_id"], document["result"]["answer"]) == ("cut", "late")

    asyncio.run(scene())


async def heard(connected: Client, name: str) -> dict[str, Any]:
    """What the agent is told of one subagent; others may come before it."""
    while True:
        waited = await connected.call_tool(WAIT, {"timeout_seconds": BOUND_S})
        document = waited.structured_content
        told = [document["result"], *document.get("background_results", [])]
        for result in filter(None, told):
            if result["subagent_id"] == name:
                found: dict[str, Any] = result
                return found
        assert document["status"] != "idle", "it was told to nobody"


@pytest.mark.parametrize("tool", [SPAWN, WAIT])
def test_what_went_to_a_lost_connection_is_told_to_who_asks_next(served: Served, tool: str) -> None:
    name, workspace = (
        f"lost-{tool[:5]}",
        served.root / f"tasks/mcp/agents/lost-{tool[:5]}/workspace",
    )
    spawn = {"tasks": [task("touch ready; until [ -e go ]; do sleep 0.01; done; echo late", name)]}

    async def scene() -> None:
        async with client(served, "legacy") as connected:
            if tool == WAIT:
                await connected.call_tool(SPAWN, spawn | {"background": True})
            params = {"name": tool, "arguments": spawn if tool == SPAWN else {}}
            call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
            lost = served.begin(body=json.dumps(call), **served.session())
            await asyncio.to_thread(until, (workspace / "ready").exists)
            lost.close()
            (workspace / "go").touch()
            assert (await heard(connected, name))["answer"] == "late"

    asyncio.run(scene())


def test_a_server_that_is_told_to_end_ends_what_its_clients_block_on(tmp_path: Path) -> None:
    with project(tmp_path) as root, serving(root) as (own, process):
        script = 'echo draft > "$RETINUE_ANSWER"; touch ready; exec sleep 60'
        params = {"name": SPAWN, "arguments": {"tasks": [task(script, "a")]}}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        connection = own.begin(body=json.dumps(call), **own.session())
        until((root / "tasks/mcp/agents/a/workspace/ready").exists)
        process.terminate()
        process.wait(BOUND_S)
        connection.close()
        with_root = Root(root)
        until(lambda: with_root.rows("mcp")["a"]["status"] == "cancelled")
        with_root.release()


def test_a_stream_that_the_client_closes_ends_its_subagents(served: Served) -> None:
    async def scene() -> None:
        async with client(served, ERAS[1]) as connected:
            script = 'echo draft > "$RETINUE_ANSWER"; touch ready; exec sleep 60'
            call = asyncio.ensure_future(
                connected.call_tool(SPAWN, {"tasks": [task(script, "closed")]})
            )
            ready = served.root / "tasks/mcp/agents/closed/workspace/ready"
            await asyncio.to_thread(until, ready.exists)
            call.cancel()
            waited = await connected.call_tool(WAIT, {"timeout_seconds": BOUND_S})
            document = waited.structured_content
            assert (document["job_id"], document["status"]) == ("closed", "cancelled")
            assert document["result"]["answer"] == "draft"

    asyncio.run(scene())


def test_after_a_closed_stream_a_wait_returns_at_the_first_end(served: Served) -> None:
    async def scene() -> None:
        async with client(served, ERAS[1]) as connected:
            deaf = "trap '' INT TERM; touch ready; while :; do sleep 0.05; done"
            scripts = {"quick": "touch ready; exec sleep 60", "deaf": deaf}
            tasks = [task(script, name) for name, script in scripts.items()]
            call = asyncio.ensure_future(connected.call_tool(SPAWN, {"tasks": tasks}))
            for name in scripts:
                ready = served.root / f"tasks/mcp/agents/{name}/workspace/ready"
                await asyncio.to_thread(until, ready.exists)
            call.cancel()
            waited = await connected.call_tool(WAIT, {"timeout_seconds": BOUND_S})
            looked = await connected.call_tool(STATUS, {"job_id": "deaf"})
            assert waited.structured_content["job_id"] == "quick"
            assert looked.structured_content["status"] == "running"

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (401, {"Authorization": None}),
        (401, {"Authorization": "Bearer wrong"}),
        (401, {"Authorization": "Basic {token}"}),
        (401, {"Authorization": None, "path": "/mcp?token={token}"}),
        (421, {"Host": "evil.example"}),
        (421, {"Host": "127.0.0.1"}),
        (421, {"Host": "127.0.0.1:1"}),
        (400, {"Host": None, "body": b""}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "http://127.0.0.1:1"}),
        (403, {"Origin": "null"}),
        (405, {"method": "OPTIONS"}),
        (405, {"method": "PUT"}),
        (415, {"Content_Type": "text/plain"}),
        (415, {"Content_Type": "application/x-www-form-urlencoded"}),
        (415, {"Content_Type": None}),
        (404, {"path": "/"}),
        (404, {"path": "/mcp/../../etc/passwd"}),
        (400, {"body": b""}),
        (400, {"body": b"garbage"}),
        (400, {"body": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}'}),
        (400, {"body": b"[" + PING.encode() + b"]"}),
        (413, {"body": b"x" * (9 * 1024 * 1024)}),
    ],
)
def test_requests_without_token_or_from_foreign_hosts_are_refused(
    served: Served, status: int, request_: dict[str, Any]
) -> None:
    filled = {
        name: value.replace("{token}", served.token) if isinstance(value, str) else value
        for name, value in request_.items()
    }
    answer = served.ask(**filled)
    assert answer.status == status
    assert answer.getheader("Access-Control-Allow-Origin") is None
    body = answer.read()
    assert b"Traceback" not in body and served.token.encode() not in body


def test_the_right_token_host_and_origin_are_let_in(served: Served) -> None:
    for origin in (None, f"http://127.0.0.1:{served.port}", f"http://localhost:{served.port}"):
        assert served.ask(body=json.dumps(HELLO), Origin=origin).status == 200
    assert served.ask(body=json.dumps(HELLO), Host=f"localhost:{served.port}").status == 200


def test_silent_connections_do_not_keep_others_out(served: Served) -> None:
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(300)]
    try:
        for each in silent:
            each.sendall(b"POST /mcp HTTP/1.1\r\nHost: ")
        until(lambda: served.ask(body=json.dumps(HELLO)).status == 200, 5.0)
    finally:
        for each in silent:
            each.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_a_token_only_loopback_is_served(tmp_path: Path, host: str) -> None:
    with project(tmp_path) as root:
        done = subprocess.run(
            command(root, "--http", "--host", host),
            capture_output=True,
            cwd=root.parent,
            env=ENVIRONMENT,
            timeout=BOUND_S,
            text=True,
            check=False,
        )
        assert done.returncode == 2 and "error[no_token]" in done.stderr
        assert not (root / "mcp-token").exists()
