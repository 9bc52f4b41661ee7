"""Warm-up of a fork server: it runs whole attempts and leaves no files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import retinue

REHEARSED = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from retinue.child import attempt_runner, fork_server
ran = []
record = attempt_runner.AttemptRunner._record
def told(self, kind, *rest, **more):
    ran.append(kind)
    return record(self, kind, *rest, **more)
attempt_runner.AttemptRunner._record = told
fork_server.warm_up(first_free=3)
left = [number for number in range(3, 100) if os.path.exists(f"/proc/self/fd/{number}")]
here = [name for name in os.listdir("/tmp") if name == f"retinue-{os.getpid()}"]
print(json.dumps([ran, left, here, os.getcwd()]))
"""


def test_each_round_runs_a_whole_attempt_and_leaves_nothing() -> None:
    source = str(Path(retinue.__file__).parent.parent)
    argv = [sys.executable, "-I", "-S", "-c", REHEARSED, source]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    ran, left, here, where = json.loads(done.stdout)
    assert len(ran) >= 8
    assert set(ran) == {"exited"}
    assert (left, here, where) == ([], [], "/")
