"""Parsers under libFuzzer: `python guided_fuzzing.py ROUNDS SECONDS SEED FOLDER`.

libFuzzer keeps inputs that reach new code, and mutates these. It ends its process itself, so each
parser has one of its own, a fork of this one, and the counts are written to files.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

atheris: Any = importlib.import_module("atheris")  # by pip; the campaign runs without it as well

with atheris.instrument_imports(include=["retinue"]):
    from fuzz import GUIDED_REPORT, MOST_BYTES, TOKENS, Attack, in_turn
    from parsers import make_targets


def main() -> None:
    rounds, seconds, seed, top = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    folder = Path(top)
    targets = make_targets(folder)
    attacks = {
        name: Attack(name, target, folder / f"parser-{place}")
        for place, (name, target) in enumerate(targets.items())
    }
    in_turn(
        list(targets),
        end,
        lambda name, end: _attack(attacks[name], int(rounds), end, int(seed)),
    )


def _attack(attack: Attack, rounds: int, end: float, seed: int) -> None:
    folder = attack.folder
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed_input in enumerate(attack.seeds):
        (corpus / str(number)).write_bytes(seed_input)
    tokens = folder / "tokens"
    tokens.write_text("".join(f'"{_escape(token)}"\n' for token in TOKENS))

    def attack_once(data: bytes) -> None:
        if attack.tried == 0:
            attack.begin()  # libFuzzer has its memory by now
        attack.attack(data)
        if attack.tried >= rounds or (attack.tried % 64 == 0 and time.monotonic() >= end):
            attack.covered = len(os.listdir(corpus)) - len(attack.seeds)
            (folder / GUIDED_REPORT).write_text(json.dumps(attack.to_report()))
            os._exit(0)  # libFuzzer would go on

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
