"""The gateway against no gateway: the same client asks the same provider, in turns."""

from __future__ import annotations

import json
from pathlib import Path

import retinue
from core import stewarded
from measure import PYTHON, Figure, cpu_seconds, median_ms
from provider import provider

CONFIG = """
agents:
  - id: bench
    backend: {{type: chatcompletion, model: bench, base_url: "http://127.0.0.1:{port}/v1"}}
orchestrator:
  coordination:
    subagent_runtime_mode: {mode}
    subagent_network: {network}
    subagent_min_timeout: 0.1
    subagent_max_timeout: 600
"""

# How often 32 streams come at once, of how many pieces each, with what pause between them.
KINDS = [("paced", 3, 100, 0.01), ("flood", 21, 200, 0)]

# A provider: so many pieces, with a pause after each; a pause of 0 sends as fast as it can.
PROVIDER = r"""
import asyncio, json
PIECE = {"id": "x", "object": "chat.completion.chunk",
         "choices": [{"index": 0, "delta": {"content": "hello there"}}]}
PIECE = b"data: " + json.dumps(PIECE).encode() + b"\n\n"
PIECE = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

async def answer(asked, writer):
    writer.write(HEAD)
    for _ in range(asked["pieces"]):
        writer.write(PIECE)
        await writer.drain()
        await asyncio.sleep(asked["pause"])
    writer.write(b"0\r\n\r\n")
"""

# A child that asks both ways in turns and tells how long each took.
CLIENT = r"""
import asyncio, json, os, sys, time
rounds, direct, KINDS = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
TOKEN = os.environ["RETINUE_GATEWAY_TOKEN"]
gateway = int(os.environ["RETINUE_GATEWAY"].split(":")[2])
PLACES = {"direct": (direct, "/v1"), "gateway": (gateway, "/openai/v1")}

def request(way, pieces, pause):
    body = json.dumps({"model": "bench", "stream": True, "pieces": pieces, "pause": pause}).encode()
    lines = [f"POST {PLACES[way][1]}/chat/completions HTTP/1.1", "Host: x",
             "Content-Type: application/json", f"Authorization: Bearer {TOKEN}",
             f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body

async def ask(way, connection, pieces, pause):
    reader, writer = connection
    began = time.perf_counter()
    writer.write(request(way, pieces, pause))
    await reader.readuntil(b"data: ")
    first, tail = time.perf_counter() - began, b""
    while not tail.endswith(b"0\r\n\r\n"):
        data = await reader.read(65536)
        assert data, "cut"
        tail = (tail + data)[-16:]
    return first

async def connect(way):
    return await asyncio.open_connection("127.0.0.1", PLACES[way][0])

async def many(connections, way, pieces, pause):
    began = time.perf_counter()
    await asyncio.gather(*(ask(way, c, pieces, pause) for c in connections[way]))
    return time.perf_counter() - began

async def main():
    if not direct:
        del PLACES["direct"]
    taken = {kind: {way: [] for way in PLACES} for kind in ("first", "paced", "flood")}
    one = {way: await connect(way) for way in PLACES}
    for n in range(rounds):
        for way in PLACES:
            first = await ask(way, one[way], 1, 0)
            if n >= rounds // 10:
                taken["first"][way].append(first)
    all_ = {way: [await connect(way) for _ in range(32)] for way in PLACES}
    for kind, times, pieces, pause in KINDS:
        for n in range(times + 1):
            for way in PLACES:
                spent = await many(all_, way, pieces, pause)
                if n:
                    taken[kind][way].append(spent)
    print(json.dumps(taken))

asyncio.run(main())
"""


async def gateway(rounds: int) -> list[Figure]:
    """Time to the first byte, and 32 streams at once, against asking the provider directly."""
    async with provider(PROVIDER) as (port, _), stewarded() as opened:
        text = CONFIG.format(port=port, mode="inherited", network="on")
        task = await opened.create_task(title="gateway", config=text)
        argv = [PYTHON, "-I", "-c", CLIENT, str(rounds), str(port), json.dumps(KINDS)]
        steward = (await opened.call("steward.status"))["pid"]
        before = cpu_seconds(steward)
        batch = await task.run([retinue.Brief(argv=argv, retries=0, timeout_seconds=300)])
        spent = cpu_seconds(steward) - before
        (result,) = batch.results
        assert result.success and result.answer, f"{result.error} {Path(result.log_path)}"
    taken = json.loads(result.answer)
    passed = rounds + sum((times + 1) * 32 * pieces for _, times, pieces, _ in KINDS)
    first, paced, flood = (
        {way: median_ms(each) for way, each in taken[kind].items()}
        for kind in ("first", "paced", "flood")
    )
    return [
        Figure("gateway", first["gateway"] - first["direct"], "ms to first byte over direct", 2.0),
        Figure("gateway", paced["gateway"] / paced["direct"], "x direct, 32 streams, 3200/s", 1.18),
        # Without a target: no model writes this fast.
        Figure("gateway", flood["gateway"] / flood["direct"], "x direct, 32 streams, flood"),
        Figure("gateway", spent * 1e6 / passed, "us of the steward's CPU a piece"),
        Figure("gateway", first["direct"], "ms to first byte, direct"),
    ]
