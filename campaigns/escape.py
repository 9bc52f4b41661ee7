"""The isolation tests: what a hostile child tries must fail.

In the tests of `tests/faults/test_isolation_*.py` a child tries to reach files, processes, the
network, the kernel and the steward, and reports what worked. They start stewards as root, as an
ordinary user and with fewer capabilities, as far as the rights of this process allow.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from campaign import Campaign, Order, Row

TESTS = Path(__file__).parents[1] / "tests"
TOTALS = re.compile(r"(\d+) (passed|failed|skipped|errors?)")


def run(order: Order) -> list[Row]:
    files = sorted(TESTS.glob("faults/test_isolation_*.py"))
    rows = {file: Row(case=file.stem.removeprefix("test_isolation_")) for file in files}
    for _ in order.iter_rounds():
        for file, row in rows.items():
            _run_tests(file, row, max(30.0, order.end - time.monotonic()))
    return list(rows.values())


def _run_tests(file: Path, row: Row, seconds: float) -> None:
    words = [sys.executable, "-m", "pytest", "--color=no", "-rf", str(file)]
    try:
        done = subprocess.run(
            words, cwd=TESTS.parent, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        row.note("did not end in time")
        return
    lines = done.stdout.splitlines()
    totals = {word: int(number) for number, word in TOTALS.findall(lines[-1] if lines else "")}
    row.tried += totals.get("passed", 0) + totals.get("failed", 0)
    row.figures = f"{totals.get('skipped', 0)} not possible here"
    row.violations += [line[:300] for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode and not row.violations:
        row.note(f"pytest ended with {done.returncode}: {done.stdout[-300:]}")


CAMPAIGN = Campaign(
    promise="An isolated child reaches nothing outside of its workspace, contexts and models.",
    rounds=1,
    unit="pass over all tests",
    run=run,
    left_out="nodes, and the same attempts beside bubblewrap",
)
