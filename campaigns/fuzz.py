"""Mutated inputs for every parser that reads what others wrote, and for servers over sockets.

Bytes are flipped, cut, doubled and spliced. Where atheris is installed (`pip install atheris`),
libFuzzer does that for a part of the inputs, and keeps those that reach new code; such code is
several times slower, so the rest is mutated without guidance. Each parser runs in processes of its
own. An input that fails is kept in the campaign's folder.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign import Campaign, Order, Row
from http_attacks import attack_servers
from parsers import Target, make_targets

SLOW_SECONDS = 1.0
SERVER_SHARES = 2  # of the time, in shares of a parser
GUIDED_ROUNDS = 0.1  # of the inputs are guided by coverage
GUIDED_TIME = 0.2  # of the time, at most
SPARE_SECONDS = 60.0  # for a parser that does not end in time, before its process is killed
YOUNG_OBJECTS = 50_000  # before a collection of garbage, of which a refusal leaves some
MOST_BYTES = 64 * 1024
PLAIN_REPORT, GUIDED_REPORT = "plain.json", "guided.json"
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
        self.name = name
        self.folder = folder
        self._target = target
        self._slowest = 0.0
        self._found: dict[str, str] = {}

    @property
    def seeds(self) -> Sequence[bytes]:
        return self._target.seeds

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
            kept = self.folder / f"{self.name.replace(' ', '-')}-{self.tried}"
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
    targets = make_targets(order.folder)
    folders = {name: order.folder / f"parser-{place}" for place, name in enumerate(targets)}
    for folder in folders.values():
        folder.mkdir()
    guided = 0
    if importlib.util.find_spec("atheris") is not None:
        guided = max(1, int(order.rounds * GUIDED_ROUNDS))
        now = time.monotonic()
        end = now + (order.end - now) * GUIDED_TIME
        _run_guided(replace(order, rounds=guided, end=end))
    # The fastest first: they leave most of their share of the time to the others.
    names = sorted(targets, key=lambda name: _measure(targets[name]))
    plain = replace(order, rounds=order.rounds - guided)

    def attack(name: str, end: float) -> None:
        _run_plain(Attack(name, targets[name], folders[name]), plain, end)

    in_turn(names, order.end, attack)
    rows = [_to_row(name, folder, bool(guided)) for name, folder in folders.items()]
    return [*rows, *attack_servers(order, mutate)]


def in_turn(names: Sequence[str], end: float, attack: Callable[[str, float], None]) -> None:
    """Attack each parser in a fork of this process, until its share of the time has passed.

    The servers keep a share as well.
    """
    fork = multiprocessing.get_context("fork")
    for place, name in enumerate(names):
        now = time.monotonic()
        share = (end - now) / (len(names) - place + SERVER_SHARES)
        child = fork.Process(target=attack, args=(name, now + share))
        child.start()
        child.join(share + SPARE_SECONDS)
        child.kill()
        child.join()


def _measure(target: Target) -> float:
    """Return how long it takes to read a seed; one that is refused would be worthless."""
    for each in target.seeds:
        target.parse(each)
    began = time.process_time()
    for each in target.seeds:
        target.parse(each)
    return (time.process_time() - began) / len(target.seeds)


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


def _run_plain(attack: Attack, order: Order, end: float) -> None:
    chance = random.Random(f"{order.seed}:{attack.name}")
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    attack.begin()
    while attack.tried < order.rounds and time.monotonic() < end:
        attack.attack(mutate(chance, attack.seeds))
    (attack.folder / PLAIN_REPORT).write_text(json.dumps(attack.to_report()))


def _to_row(name: str, folder: Path, guided: bool) -> Row:
    row = Row(case=name)
    parts = {PLAIN_REPORT: "plain", **({GUIDED_REPORT: "guided by coverage"} if guided else {})}
    for file, part in parts.items():
        try:
            report: dict[str, Any] = json.loads((folder / file).read_text())
        except FileNotFoundError:
            # It hung, took too much memory, or crashed the interpreter.
            row.note(f"{name}: the inputs {part} ended without a report, see {folder}")
            continue
        row.tried += report["tried"]
        for each in report["violations"]:
            row.note(each)
        if guided:
            row.counts[part] += report["tried"]
        if report["covered"]:
            row.counts["reached new code"] += report["covered"]
        for what, peak in (
            ("slowest {:.1f} ms of CPU", report["slowest_ms"]),
            ("memory +{:.0f} MB", report["grown_mb"]),
        ):
            row.peaks[what] = max(peak, row.peaks.get(what, 0.0))
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
