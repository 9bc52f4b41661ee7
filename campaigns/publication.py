"""Tables of campaigns, on the terminal and in docs/reliability.md."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from pathlib import Path

from campaign import Campaign, Row

TOP = Path(__file__).parents[1]
PAGE = TOP / "docs" / "reliability.md"
HEADINGS = ["case", "tried", "violations", "figures"]


def render_table(rows: list[Row]) -> str:
    cells = [HEADINGS, *(row.to_cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def append_run(
    name: str,
    campaign: Campaign,
    rows: list[Row],
    seed: int,
    seconds: float,
    today: str,
    found: str,
) -> None:
    """Append one run to the page; earlier runs stay as they were published."""
    tried = sum(row.tried for row in rows)
    lines = [
        "",
        f"### {name}, {today}",
        "",
        f"{campaign.promise} Commit {_read_commit()}; {_describe_machine()}; seed {seed}; "
        f"{tried:,} tries in {seconds:.0f} s.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(row.to_cells()) + " |" for row in rows),
        "",
        f"Found and mended: {found}.",
    ]
    if campaign.left_out:
        lines.append(f"Not tried: {campaign.left_out}.")
    lines += [f"Violation: {each}" for row in rows for each in row.violations]
    with PAGE.open("a") as page:
        page.write("\n".join(lines) + "\n")


def _read_commit() -> str:
    asked = ["git", "-C", str(TOP), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _describe_machine() -> str:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    user = "root" if os.geteuid() == 0 else "a user"
    return (
        f"{os.cpu_count()} cores, {pages / 2**30:.0f} GB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, as {user}"
    )
