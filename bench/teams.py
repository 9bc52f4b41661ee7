"""Teams: a subagent with one member whose model answers at once, from its spawn to its result."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import suppress
from pathlib import Path

import retinue
from core import stewarded
from measure import Figure, Sample, cpu_seconds, median_ms, private_kb
from provider import provider

CONFIG = """
agents:
  - id: bench
    backend: {{type: chatcompletion, model: {model}, base_url: "http://127.0.0.1:{port}/v1"}}
orchestrator:
  coordination:
    subagent_min_timeout: 0.1
    subagent_max_timeout: 600
    subagent_cancel_grace_seconds: [1, 1]
"""

PAGES = (
    "Of {all:.0f} ms of CPU, {steward:.0f} are the steward's, {servers:.0f} its fork server's, and "
    "{user:.0f} the child's own. {system:.0f} are the kernel's on the child's behalf: two clones "
    "of a process of 17 MB and their ends, namespaces, and the pages that its two processes copy: "
    "1,900 where Python counts references to what it only reads, as it does before 3.12. "
    "Populating the pages at once, another allocator, more rehearsals, huge pages, the page tables "
    "of the libraries copied along, and the code that runs moved together or its modules loaded "
    "side by side made no difference, or a worse one."
)
KEPT = (
    "Before 3.12, Python counts references to every object that it reads, and each page with a "
    "count on it is copied; from then on nothing is counted that was imported, and a team takes "
    "half of this. Two processes: the init that keeps its time and records its end, and the team. "
    "It touches 2,400 small objects, 0.3 MB in all, on 730 pages. With its code moved together, "
    "the names it uses made first, and no gaps left among older objects, it took 4.6 MB."
)

# A provider that calls new_answer at once, or never says anything to a model named hold.
PROVIDER = r"""
import asyncio, json
CALL = {"index": 0, "id": "c1", "type": "function",
        "function": {"name": "new_answer", "arguments": json.dumps({"content": "done"})}}
SHARED = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
EVENTS = [
    {**SHARED, "choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [CALL]}}]},
    {**SHARED, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {**SHARED, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3,
                                        "total_tokens": 12}},
]
BODY = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in EVENTS)
BODY += b"data: [DONE]\n\n"
REPLY = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
         % len(BODY)) + BODY

async def answer(asked, writer):
    if asked["model"] == "hold":
        print("held", flush=True)
    else:
        writer.write(REPLY)
"""


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in found for word in path.read_text().split()]


def servers(steward: int) -> list[int]:
    """The processes that children are cloned from."""
    found = []
    for pid in children(steward):
        with suppress(FileNotFoundError):  # one that has just ended is none
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found += [pid] if b"retinue-forkserver" in words[5:] else []
    return found


def tree_kb(pid: int) -> int:
    return private_kb(pid) + sum(map(tree_kb, children(pid)))


class Used:
    """CPU seconds: by the steward, by those that children are cloned from, and by all children
    whose end it has seen, themselves and in the kernel.
    """

    def __init__(self, steward: int) -> None:
        fields = Path(f"/proc/{steward}/stat").read_text().rpartition(")")[2].split()
        ticks = [int(each) / os.sysconf("SC_CLK_TCK") for each in fields[11:15]]
        self.steward, self.user, self.system = ticks[0] + ticks[1], ticks[2], ticks[3]
        self.servers = sum(map(cpu_seconds, servers(steward)))

    def since(self, before: Used, rounds: int = 1) -> dict[str, float]:
        """Milliseconds for each of so many, by whom."""
        now = vars(self)
        return {name: (now[name] - was) * 1000 / rounds for name, was in vars(before).items()}


async def teams(rounds: int, counts: list[int]) -> list[Figure]:
    async with provider(PROVIDER) as (port, waits), stewarded() as opened:
        quick = CONFIG.format(port=port, model="quick")
        task = await opened.create_task(title="quick", config=quick)
        steward = int((await opened.call("steward.status"))["pid"])

        async def one() -> float:
            began = time.perf_counter()
            batch = await task.run([retinue.Brief("Answer", retries=0)])
            (result,) = batch.results
            assert result.success and result.answer == "done", result.error
            return time.perf_counter() - began

        before = Used(steward)
        first = Sample("the first", await one() * 1000)
        loaded = sum(Used(steward).since(before).values()) / 1000
        for _ in range(3):
            await one()
        walls, costs, parts = [], [], dict[str, float]()
        for _ in range(2):  # the second half when so many have come to their end
            before = Used(steward)
            walls.append([await one() for _ in range(rounds)])
            parts = Used(steward).since(before, rounds)
            costs.append(sum(parts.values()))
        hold = CONFIG.format(port=port, model="hold")
        curve = [(float(n), await _held_mb(opened, hold, waits, steward, n)) for n in counts]
    wall, cost = median_ms(walls[1]), costs[1]
    most = max(each for _, each in curve)
    at = ", ".join(f"{each:,}" for each in counts)
    pages = PAGES.format(all=cost, **parts)
    return [
        Figure("teams", wall, "ms from spawn to result", 25, pages),
        Figure("teams", cost, "ms CPU of all processes", 25, pages, details=parts),
        Figure("teams", costs[1] / costs[0], f"x CPU after {rounds} that ended", 1.25),
        Figure("teams first", loaded, "s CPU until the first has its result", ours=first),
        Figure(
            "teams memory",
            most,
            f"MB private to each running child, at {at}",
            4,
            KEPT,
            curve=curve,
            axes="teams at once, MB for each",
        ),
    ]


async def _held_mb(
    opened: retinue.Retinue, config: str, waits: asyncio.StreamReader, steward: int, count: int
) -> float:
    """Of children that all wait for their model, each with everything below it."""
    task = await opened.create_task(title="hold", config=config, max_concurrent=count)
    others = set(children(steward))
    await task.spawn([retinue.Brief("Wait", retries=0, timeout_seconds=600)] * count)
    async with asyncio.timeout(300):
        for _ in range(count):
            await waits.readline()
    held = [pid for pid in children(steward) if pid not in others]
    assert len(held) >= count
    chosen = held[:: max(1, count // 25)]
    found = statistics.median(map(tree_kb, chosen)) / 1024
    await opened.call("task.cancel", task=task.id, by="parent", kill=True)
    return found
