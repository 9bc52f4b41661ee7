"""`./dev bench [--full] [--json] [NAME…]`: every benchmark, its floor in the same run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import core
import disk
import gateway
import local
import mcp_door
import page
import plans
from measure import Figure, guard

Bench = Callable[[bool], Awaitable[list[Figure]]]

BENCHES: dict[str, Bench] = {
    "spawn": lambda full: core.spawn(200 if full else 40),
    "throughput": lambda full: core.throughput(1000 if full else 300),
    "wake": lambda full: core.wake(200 if full else 40),
    "idle": lambda full: core.idle(200, 20 if full else 5),
    "workspace": lambda full: plans.workspace(20_000 if full else 4_000, 5 if full else 3),
    "merge": lambda full: plans.merge(20_000 if full else 4_000, 20 if full else 8),
    "history": lambda full: core.history(10_000 if full else 2_000),
    "page": lambda full: page.page(25_000 if full else 5_000, 40 if full else 15),
    "gateway": lambda full: gateway.gateway(500 if full else 100),
    "mcp": lambda full: mcp_door.door(200 if full else 40),
    "local": lambda full: local.local(100 if full else 10),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--full", action="store_true", help="as many rounds as it takes")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    given = parser.parse_args()
    guard()
    with disk.apart():
        print(disk.about(), file=sys.stderr)
        run(given)


def run(given: argparse.Namespace) -> None:
    figures: list[Figure] = []
    for name in given.names or BENCHES:
        found = asyncio.run(BENCHES[name](given.full))
        figures += found
        if not given.json:
            for figure in found:
                target = "" if figure.target is None else f"<= {figure.target:g}"
                print(
                    f"{figure.name:16} {figure.value:9.2f} {figure.unit:34} {target:8} "
                    f"{figure.verdict}",
                    flush=True,
                )
    if given.json:
        print(json.dumps([asdict(each) | {"verdict": each.verdict} for each in figures], indent=2))


if __name__ == "__main__":
    main()
