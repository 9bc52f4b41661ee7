"""Every benchmark, its floor in the same run: `./dev bench [--full] [NAME…]`.

`./dev bench --full --publish` measures everything and writes docs/performance.md and its picture;
`--json FILE` keeps the run, and `--from FILE --publish` makes the page of a kept one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

import again
import agents
import core
import disk
import events
import gateway
import history
import local
import loop
import many
import mcp_door
import mcp_tokens
import nodes
import page
import peers
import plans
import report
import teams
import trace_calls
from measure import Figure, guard

Bench = Callable[[bool], Coroutine[None, None, list[Figure]]]

BENCHES: dict[str, Bench] = {
    "spawn": lambda full: core.spawn(200 if full else 40),
    "pauses": lambda full: core.pauses(100 if full else 30),
    "throughput": lambda full: peers.throughput(1000 if full else 200, 3 if full else 1),
    "loop": lambda full: loop.loop(300, 5 if full else 2, 200 if full else 40),
    "memory": lambda full: many.memory([1, 100, 1000] if full else [1, 50]),
    "idle": lambda full: many.idle(1000 if full else 200, 20 if full else 5),
    "wake": lambda full: many.wake(200 if full else 20, 1000 if full else 50),
    "cancel": lambda full: many.cancel(
        100 if full else 20, [10, 100, 1000] if full else [10, 30, 100]
    ),
    "events": lambda full: events.events(500 if full else 50),
    "history": lambda full: history.history(
        [10, 1000, 10_000, 100_000] if full else [10, 100, 2000], 200 if full else 30
    ),
    "recover": lambda full: again.recover(1000 if full else 100),
    "restart": lambda full: again.restart(
        [1, 10, 100, 1000] if full else [1, 50, 200], 5 if full else 2
    ),
    "growth": lambda full: core.growth(10_000 if full else 700),
    "workspace": lambda full: plans.workspace(20_000 if full else 2_000, 5 if full else 3),
    "merge": lambda full: plans.merge(20_000 if full else 2_000, 20 if full else 5),
    "cli": lambda full: peers.cli(100 if full else 20),
    "page": lambda full: page.page(25_000 if full else 5_000, 40 if full else 15),
    "gateway": lambda full: gateway.gateway(500 if full else 100),
    "mcp": lambda full: mcp_door.door(200 if full else 30),
    "mcp-tokens": lambda full: mcp_tokens.tokens(),
    "local": lambda full: local.local(100 if full else 3),
    "nodes": nodes.nodes,
    "teams": lambda full: teams.teams(100 if full else 25, [1, 100, 1000] if full else [1, 100]),
    "agents": lambda full: agents.agents(7 if full else 2),
}
# Counts instead of times: measured only if named, and not published
COUNTS: dict[str, Bench] = {"trace": lambda full: trace_calls.trace()}


def main() -> int:
    given = _arguments()
    if given.earlier:
        run, failed = report.from_json(given.earlier.read_text()), list[str]()
    else:
        guard()
        with disk.apart():
            print(disk.about(), file=sys.stderr)
            run, failed = measure(given.names or list(BENCHES), given.full, given.json)
    if given.publish:
        report.publish(run)
    if failed:
        print(f"bench: could not be measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measure(names: list[str], full: bool, kept: Path | None) -> tuple[report.Run, list[str]]:
    """What could be measured, and which could not; the others must not wait for those.

    Args:
        kept: where the run is, as far as it has come.
    """
    before, failed = report.calm(), list[str]()
    run = report.Run(report.machine(), full, [before, before], {})
    for name in names:
        began = time.perf_counter()
        try:
            figures = asyncio.run((BENCHES | COUNTS)[name](full))
        except (Exception, SystemExit):
            traceback.print_exc()
            failed.append(name)
            continue
        for figure in figures:
            print(report.line(figure), flush=True)
        print(f"bench: {name} took {time.perf_counter() - began:.0f} s", file=sys.stderr)
        run = replace(run, calm=[before, report.calm()], figures={**run.figures, name: figures})
        if kept is not None:
            kept.write_text(report.to_json(run))
    return run, failed


def _arguments() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES | COUNTS))
    parser.add_argument("--full", action="store_true", help="as many of each as it takes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the run there")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="earlier", help="measure nothing")
    parser.add_argument("--publish", action="store_true", help="write docs/performance.md")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in BENCHES | COUNTS]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHES | COUNTS)}")
    return given


if __name__ == "__main__":
    sys.exit(main())
