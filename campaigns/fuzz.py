"""Mutated inputs for every parser that reads what others wrote, and for servers over sockets.

Where atheris is installed (`pip install atheris`), libFuzzer mutates inputs and keeps those that
reach new code. Elsewhere bytes are flipped, cut, doubled and spliced without such guidance.
Each parser runs in a process of its own. An input that fails is kept in the campaign's folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaign import Campaign, Order, Row
from http_attacks import attack_servers
from parsers import Target, make_targets

SLOW_SECONDS = 1.0
SERVER_SHARES = 6  # of the time, in shares of a parser
MOST_BYTES = 64 * 1024
TOKENS = (
    b"{", b"}", b"[", b"]", b'"', b"'", b":", b",", b"\\", b"\n", b"\r\n", b"\0", b"\xff", b"\x1b[",
    b"null", b"true", b"NaN", b"1e999", b"-1", b"0.1", b"\\ud800", b"\xed\xa0\x80", b"---\n",
    b"&a [*a]", b"<<: *a", b"!!python/object/apply:os.system [id]", b"data: ",
    b"\n\n", b"? ", b"- ",
    b"[" * 200, b'{"a":' * 200, b"9" * 400, b"\xe2\x80\xa8", b"%00", b"../", b"*" * 40, b"\t",
)  # fmt: skip


def mutate(chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a seed after one to eight changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 8)):
        place = chance.randint(0, len(data))
        match chance.randrange(7):
            case 0 if data:
                data[place % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                data[place:place] = chance.choice(TOKENS)
            case 2:
                del data[place : place + chance.randint(1, 16)]
            case 3:
                piece = data[place : place + chance.randint(1, 32)]
                data[place:place] = piece * chance.choice((1, 2, 50))
            case 4:
                other = chance.choice(seeds)
                data[place:] = other[chance.randint(0, len(other)) :]
            case 5:
                data[place : place + 1] = chance.choice(TOKENS)
            case _:
                del data[place:]
    return bytes(data[:MOST_BYTES])


class Attack:
    """One parser under attack: each kind of failure is kept once."""

    def __init__(self, name: str, target: Target, folder: Path) -> None:
        self.tried = 0
        self.covered = 0  # inputs that libFuzzer kept because they reached new code
        self.begin()
        self._name = name
        self._target = target
        self._folder = folder
        self._slowest = 0.0
        self._found: dict[str, str] = {}

    def check_seeds(self) -> None:
        """Parse each seed: one that is refused would make its mutations worthless."""
        for seed in self._target.seeds:
            self._target.parse(seed)

    def begin(self) -> None:
        """Take the memory of this process as the baseline."""
        self._memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def attack(self, data: bytes) -> None:
        self.tried += 1
        began = time.process_time()  # of this process: the machine may be busy
        wrong = ""
        try:
            self._target.parse(data)
        except self._target.refusals:
            pass
        except Exception as error:
            wrong = _name_fault(error)
        seconds = time.process_time() - began
        self._slowest = max(self._slowest, seconds)
        if seconds > SLOW_SECONDS:
            wrong = wrong or f"took {seconds:.1f} s"
        if wrong and wrong not in self._found:
            kept = self._folder / f"{self._name.replace(' ', '-')}-{self.tried}"
            kept.write_bytes(data)
            self._found[wrong] = f"{wrong}; kept as {kept}"

    def to_report(self) -> dict[str, Any]:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._memory_kb
        return {
            "tried": self.tried,
            "covered": self.covered,
            "violations": list(self._found.values()),
            "slowest_ms": self._slowest * 1000,
            "grown_mb": grown / 1024,
        }


def run(order: Order) -> list[Row]:
    names = list(make_targets(order.folder))
    if importlib.util.find_spec("atheris") is not None:
        _run_guided(order)
    else:
        for place, name in enumerate(names):
            # Each parser has its share of the time that is left, the servers at the end as well.
            share = (order.end - time.monotonic()) / (len(names) - place + SERVER_SHARES)
            _run_plain(name, order, share, order.folder / f"parser-{place}")
    rows = [_to_row(name, order.folder / f"parser-{at}") for at, name in enumerate(names)]
    return [*rows, *attack_servers(order, mutate)]


def _run_guided(order: Order) -> None:
    worker = Path(__file__).with_name("guided_fuzzing.py")
    seconds = order.end - time.monotonic()
    given = (str(order.rounds), str(seconds), str(order.seed), str(order.folder))
    environment = os.environ | {"PYTHONPATH": str(worker.parents[1] / "tests")}
    with open(order.folder / "libfuzzer.log", "wb") as log:
        subprocess.run(
            [sys.executable, str(worker), *given],
            env=environment,
            stdout=log,
            stderr=log,
            check=True,
        )


def _run_plain(name: str, order: Order, seconds: float, folder: Path) -> None:
    folder.mkdir()
    target = make_targets(folder)[name]
    attack = Attack(name, target, folder)
    attack.check_seeds()
    chance = random.Random(f"{order.seed}:{name}")
    end = time.monotonic() + seconds
    while attack.tried < order.rounds and time.monotonic() < end:
        attack.attack(mutate(chance, target.seeds))
    (folder / "report.json").write_text(json.dumps(attack.to_report()))


def _to_row(name: str, folder: Path) -> Row:
    row = Row(case=name)
    try:
        report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    except FileNotFoundError:
        # libFuzzer ended it: a hang, too much memory, or a crash of the interpreter.
        row.note(f"it ended without a report, see {folder}")
        return row
    row.tried = report["tried"]
    for each in report["violations"]:
        row.note(each)
    kept = f", {report['covered']:,} reached new code" if report["covered"] else ""
    row.figures = (
        f"slowest {report['slowest_ms']:.1f} ms of CPU, memory +{report['grown_mb']:.0f} MB{kept}"
    )
    return row


def _name_fault(error: Exception) -> str:
    """Return the exception and the innermost line of the product that raised it."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if "retinue" in Path(path).parts:
            place = f"{Path(path).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__} at {place}: {str(error)[:120]!a}"


CAMPAIGN = Campaign(
    promise="No parser answers hostile input with anything but its documented refusal, within "
    "1 s of CPU and with bounded memory; servers stay up and answer others.",
    rounds=2000,
    unit="input to each parser",
    run=run,
    left_out="what git writes is tried without git",
)
