"""Side by side with what people use instead: other ways to run many commands, and a bare start."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pool
import retinue
from core import COST, ECHO, stewarded, task
from measure import PYTHON, Act, Figure, Sample, in_turns, median_ms, sample
from retinue.client.blocking_client import Client

AT_ONCE = 32


@dataclass(frozen=True)
class Peer:
    """What runs a no-op once for each line that it is given."""

    spoken: str
    argv: list[str]
    share: int = 1  # it gets one line where ours gets so many


def _pool(method: str, share: int) -> Peer:
    words = [PYTHON, "-I", "-S", pool.__file__, method, str(AT_ONCE)]
    return Peer(f"multiprocessing, a {method} each", words, share)


PEERS = {
    "parallel": Peer("GNU parallel", ["parallel", "--will-cite", f"-j{AT_ONCE}", *ECHO]),
    "xargs": Peer(f"xargs -P{AT_ONCE}", ["xargs", f"-P{AT_ONCE}", "-n1", *ECHO]),
    "forkserver": _pool("forkserver", share=5),
    "spawn": _pool("spawn", share=10),
}


async def throughput(children: int, rounds: int) -> list[Figure]:
    """No-op commands, 32 at once: ours recorded and durable, theirs merely run."""
    async with stewarded() as opened:
        work = await task(opened, "inherited", AT_ONCE)
        briefs = [retinue.Brief(argv=ECHO, retries=0)] * children

        async def ours() -> None:
            batch = await work.run(briefs, queue=True)
            assert batch.success

        acts: dict[str, Act] = {"retinue": ours}
        lines = {name: max(AT_ONCE, children // PEERS[name].share) for name in _installed()}
        for name, count in lines.items():
            acts[name] = _fed(PEERS[name].argv, count)
        taken = await in_turns(rounds, acts)
    rates = {
        name: lines.get(name, children) / (median_ms(each) / 1000) for name, each in taken.items()
    }
    figures = [
        Figure(
            "throughput",
            rates["retinue"],
            f"no-op subagents a second, {AT_ONCE} at once",
            350,
            at_least=True,
            ours=Sample(f"{children:,} subagents", rates["retinue"], unit="/s"),
            details=rates,
            note=f"{COST} On two cores that is 400 to 450 a second at best.",
        )
    ]
    for name in lines:
        figures.append(
            Figure(
                f"throughput, {name}",
                rates["retinue"] / rates[name],
                f"x as many as {PEERS[name].spoken}",
                1 if name == "parallel" else None,
                at_least=True,
                ours=Sample("retinue", rates["retinue"], unit="/s"),
                floor=Sample(PEERS[name].spoken, rates[name], unit="/s"),
                note="It keeps no record of its jobs; see above for what ours costs.",
            )
        )
    return sorted(figures, key=lambda figure: figure.name)


def _installed() -> list[str]:
    return [name for name, peer in PEERS.items() if shutil.which(peer.argv[0])]


def _fed(argv: list[str], lines: int) -> Act:
    numbers = "".join(f"{number}\n" for number in range(lines)).encode()

    async def act() -> None:
        await asyncio.to_thread(
            subprocess.run, argv, input=numbers, stdout=subprocess.DEVNULL, check=True
        )

    return act


async def cli(rounds: int) -> list[Figure]:
    """What a shell command takes, against an interpreter that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / ".retinue"
        client = Client(root)
        made = client.call("task.create", title="cli")["task_id"]
        program = str(Path(sys.executable).parent / "retinue")
        acts = {
            "python": _quiet(PYTHON, "-I", "-S", "-c", "pass"),
            "help": _quiet(program, "--help"),
            "list": _quiet(program, "--root", str(root), "subagent", "list", made),
        }
        taken = await in_turns(rounds, acts)
        steward = os.pidfd_open(client.call("steward.status")["pid"])
        client.call("steward.stop")
        select.select([steward], [], [], 30)
        os.close(steward)
    floor = sample("python -I -S -c pass", taken["python"])
    figures = []
    for name, words in (("help", "retinue --help"), ("list", "retinue subagent list")):
        ours = sample(words, taken[name])
        ratio = ours.median / floor.median
        figures.append(Figure(f"cli {name}", ratio, "x python -I -S", 6, ours=ours, floor=floor))
    return figures


def _quiet(*argv: str) -> Act:
    def run() -> None:
        actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        pid = os.posix_spawn(argv[0], argv, {"PATH": os.environ["PATH"]}, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"{argv} ended with {status}"

    async def act() -> None:
        run()

    return act
