"""MCP servers as they are asked in a child: over real sockets, and over real pipes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from retinue.core.contract import Contract, Execution, Parent, Step
from retinue.core.errors import BadInput
from retinue.core.tool_servers import VARIABLE, ToolServer
from retinue.team.tools import mcp_messages
from retinue.team.tools.mcp_http import Address
from retinue.team.tools.mcp_servers import MemberServers, make_servers
from retinue.team.tools.mcp_stdio import MOST_UNREAD, StdioConnection
from retinue.team.tools.tool_registry import Toolbox
from retinue.workspaces.tool_server_checks import require_ready

pytestmark = pytest.mark.timeout(30)

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


PINGS, SIZE = 20_000, 1000
FLOOD = f"""
import json, sys

def say(**message):
    print(json.dumps({{"jsonrpc": "2.0", **message}}), flush=True)

sys.stdin.readline()
for _ in range({PINGS}):
    say(id="x" * {SIZE}, method="ping")
say(id=1, result={{}})
heard = 0
while '"id":2' not in sys.stdin.readline():
    heard += 1
say(id=2, result={{"heard": heard}})
sys.stdin.read()
"""


class Far:
    """To `slow`, signs of life and no answer; to all else, one."""

    def __init__(self) -> None:
        self.met = asyncio.Event()  # one who asks what is slow

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
            asked = json.loads(await reader.readexactly(int(length.split(b":")[1])))
            if asked["method"] == "slow":
                writer.write(STREAM)
                self.met.set()
                gone = asyncio.create_task(reader.read())
                while not (await asyncio.wait([gone], timeout=0.02))[0]:
                    writer.write(b": still here\n\n")
            said = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {}}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
        finally:
            writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        finally:
            server.close()


def test_a_slow_server_call_delays_no_other() -> None:
    async def act() -> mcp_messages.Message:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        far = Far()
        async with far.listening() as url:
            address = Address(url, {}, 60.0)
            slow = asyncio.create_task(
                address.send_request(mcp_messages.request(1, "slow", {}, {}))
            )
            await far.met.wait()
            slow.cancel()
            async with asyncio.timeout(10):
                return await address.send_request(mcp_messages.request(2, "quick", {}, {}))

    assert asyncio.run(act()) == {"jsonrpc": "2.0", "id": 2, "result": {}}


def test_a_secret_that_no_header_can_hold_is_not_disclosed(tmp_path: Path) -> None:
    terms = ToolServer(name="far", url="http://127.0.0.1:9", headers=(("Key", "Bearer ${KEY}"),))
    contract = Contract(
        parent=Parent(run_id="r", step_idx=0, task_prompt="", goal_summary=""),
        step=Step(title="", description=""),
        execution=Execution(attempt_timeout_ms=1000),
    )
    noted: list[str] = []

    async def act() -> list[str]:
        box = Toolbox(contract, lambda tool, why: noted.append(why))
        links = make_servers([terms], tmp_path, {f"{VARIABLE}KEY": "hushhush\n"})
        servers = MemberServers(links, box, lambda: 5.0, lambda tool, why: noted.append(why))
        return await servers.open()

    with pytest.raises(BadInput, match="no header can hold") as refused:
        require_ready(terms, tmp_path, {"KEY": "hushhush\n"}, "")
    told = asyncio.run(act())
    assert "MCP server far cannot be used: its header Key" in told[0] and len(noted) == 1
    assert "hushhush" not in "".join([*told, *noted, str(refused.value)])


def test_unread_messages_to_a_server_are_not_buffered(tmp_path: Path) -> None:
    async def act() -> int:
        program = StdioConnection([sys.executable, "-c", FLOOD], tmp_path, {})
        await program.open()
        try:
            await program.send_request(mcp_messages.request(1, "flood", {}, {}))
            said = await program.send_request(mcp_messages.request(2, "count", {}, {}))
        finally:
            await program.close()
        return int(said["result"]["heard"])

    heard = asyncio.run(act())
    assert 0 < heard * SIZE < 2 * MOST_UNREAD
