"""Campaigns against what Retinue promises: `./dev campaign NAME [--rounds N] [--seed S]`.

Each prints one table. `--publish` appends it to docs/reliability.md, with `--found TEXT` for what
was found and mended. The default sizes are small; a longer run says so by its own figures.
"""

from __future__ import annotations

import argparse
import importlib
import os
import secrets
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from campaign import Campaign, Order, run_parts, split
from publication import append_run, render_table

NAMES = ("kill", "crash", "starve", "fuzz", "soak", "escape", "chaos")


def main() -> int:
    given = _parse_arguments()
    folder = Path(tempfile.mkdtemp(prefix=f"retinue-campaign-{given.name}-"))
    folder.chmod(0o755)  # stewards of other users have roots below
    os.environ["XDG_STATE_HOME"] = str(folder / "state")  # not on the list of the user's roots
    campaign: Campaign = importlib.import_module(given.name).CAMPAIGN
    rounds = given.rounds or campaign.rounds
    began = time.monotonic()
    end = began + given.minutes * 60
    order = Order(rounds=rounds, seed=given.seed, end=end, folder=folder, whole=given.all)
    size = "all that there is" if given.all else f"up to {rounds:,} rounds ({campaign.unit} each)"
    print(f"{given.name}: {size}, seed {given.seed}")
    print(f"promise: {campaign.promise}")
    rows = run_parts(campaign.run, split(order, given.workers))
    seconds = time.monotonic() - began
    print(render_table(rows))
    violations = sum(len(row.violations) for row in rows)
    if campaign.left_out:
        print(f"not tried: {campaign.left_out}")
    print(f"{given.name}: {seconds:.0f} s, {violations} violations")
    if given.publish:
        today = datetime.now(UTC).date().isoformat()
        append_run(given.name, campaign, rows, given.seed, seconds, today, given.found)
    if violations:
        print(f"kept for inspection: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if violations else 0


def _parse_arguments() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__, formatter_class=raw)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--rounds", type=int, help="default: small, see the campaign")
    parser.add_argument("--all", action="store_true", help="crash: every call once, in order")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--minutes", type=float, default=60.0, help="end early after so long")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the rounds")
    parser.add_argument("--publish", action="store_true", help="append to docs/reliability.md")
    parser.add_argument("--found", default="nothing", metavar="TEXT", help="found and mended")
    return parser.parse_args()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    sys.exit(main())
