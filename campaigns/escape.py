"""The isolation tests with different rights: what a hostile child tries must fail in each.

Each mode runs the tests of `tests/faults/test_isolation_*.py`, in which a child tries to reach
files, processes, the network, the kernel and the steward, and reports what worked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from campaign import Campaign, Order, Row

TESTS = Path(__file__).parents[1] / "tests"
WITHOUT_ADMIN = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
TOTALS = re.compile(r"(\d+) (passed|failed|skipped|errors?)")


def list_modes() -> dict[str, list[str]]:
    if os.geteuid() != 0:
        return {"as a user": []}
    return {"as root": [], "as root without CAP_SYS_ADMIN": WITHOUT_ADMIN}


def run(order: Order) -> list[Row]:
    rows = []
    files = sorted(TESTS.glob("faults/test_isolation_*.py"))
    for mode, prefix in list_modes().items():
        row = Row(case=mode)
        rows.append(row)
        seconds = max(60.0, order.end - time.monotonic())
        words = [*prefix, sys.executable, "-m", "pytest", "-q", "-rf", *map(str, files)]
        try:
            done = subprocess.run(
                words, cwd=TESTS.parent, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            row.violations.append("did not end in time")
            continue
        totals = {word: int(number) for number, word in TOTALS.findall(done.stdout)}
        row.tried = totals.get("passed", 0) + totals.get("failed", 0)
        row.figures = f"{totals.get('skipped', 0)} left out in this mode"
        lines = done.stdout.splitlines()
        row.violations += [line[:300] for line in lines if line.startswith(("FAILED", "ERROR"))]
        if not totals or (done.returncode and not row.violations):
            row.violations.append(f"pytest ended with {done.returncode}: {done.stdout[-300:]}")
    return rows


CAMPAIGN = Campaign(
    promise="An isolated child reaches nothing outside of its workspace, contexts and models.",
    rounds=1,
    unit="pass over all tests",
    run=run,
    left_out="nodes, and the same attempts beside bubblewrap",
)
