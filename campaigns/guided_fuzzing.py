"""Parsers under libFuzzer: `python guided_fuzzing.py ROUNDS SECONDS SEED FOLDER`.

libFuzzer keeps inputs that reach new code, and mutates these. It ends its process itself, so each
parser has one of its own, a fork of this one, and the counts are written to files.
"""

from __future__ import annotations

import atexit
import importlib
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

atheris: Any = importlib.import_module("atheris")  # by pip; the campaign runs without it as well

with atheris.instrument_imports(include=["retinue"]):
    from fuzz import MOST_BYTES, SERVER_SHARES, TOKENS, Attack
    from parsers import Target, make_targets

REPORT = "report.json"


def main() -> None:
    rounds, seconds, seed, folder = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    fork = multiprocessing.get_context("fork")
    names = list(make_targets(Path(folder)))
    for place, name in enumerate(names):
        mine = Path(folder, f"parser-{place}")
        mine.mkdir()
        share = (end - time.monotonic()) / (len(names) - place + SERVER_SHARES)
        child = fork.Process(target=_attack, args=(name, int(rounds), share, int(seed), mine))
        child.start()
        child.join(share + 60)
        child.kill()
        child.join()


def _attack(name: str, rounds: int, seconds: float, seed: int, folder: Path) -> None:
    target: Target = make_targets(folder)[name]
    attack = Attack(name, target, folder)
    attack.check_seeds()
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed_input in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(seed_input)
    tokens = folder / "tokens"
    tokens.write_text("".join(f'"{_escape(token)}"\n' for token in TOKENS))
    end = time.monotonic() + seconds

    def attack_once(data: bytes) -> None:
        if attack.tried == 0:
            attack.begin()  # libFuzzer has its memory by now
        attack.attack(data)
        if attack.tried >= rounds or (attack.tried % 64 == 0 and time.monotonic() >= end):
            attack.covered = len(os.listdir(corpus)) - len(target.seeds)
            (folder / REPORT).write_text(json.dumps(attack.to_report()))
            atexit._run_exitfuncs()  # removes the parsers' folders; libFuzzer would not
            os._exit(0)

    words = [
        sys.argv[0],
        str(corpus),
        f"-max_len={MOST_BYTES}",
        f"-dict={tokens}",
        f"-seed={seed or 1}",
        f"-artifact_prefix={folder}/",
        "-timeout=20",  # of wall time, on a machine that may be busy; CPU time is checked apart
        "-rss_limit_mb=2048",
        "-verbosity=0",
    ]
    atheris.Setup(words, attack_once)
    atheris.Fuzz()


def _escape(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


if __name__ == "__main__":
    main()
