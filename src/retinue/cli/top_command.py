"""The `retinue top` command: a live table of the subagents of a root, drawn with plain ANSI."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from retinue.cli import render
from retinue.cli.options import CliCommand, select_given
from retinue.cli.steward_session import CliSession

if TYPE_CHECKING:
    from retinue.client.blocking_client import Client

AT_WORK = ("pending", "running", "blocked", "waiting_for_merge")
# The steward answers at the next change, or after this time so that elapsed times go on.
REFRESH_SECONDS = 1
MOST_TASKS = 50
MOST_CLOSED = 5  # newest closed subagents of an open task
CLEAR = "\x1b[H\x1b[J"
ENTER = "\x1b[?1049h\x1b[?25l"  # other screen, no cursor
LEAVE = "\x1b[?25h\x1b[?1049l"
HEADINGS = ("TASK", "SUBAGENT", "STATUS", "PHASE", "DONE", "TOKENS", "COST", "TIME")
NUMBERS = (4, 5, 6, 7)


@click.command(cls=CliCommand, example="retinue top\nretinue top --once")
@click.option("--once", is_flag=True, help="Print the table once and exit.")
@click.option("--all", "everyone", is_flag=True, help="Also show closed tasks.")
@click.pass_obj
def top(session: CliSession, once: bool, everyone: bool) -> None:
    """Watch the subagents of a root in the terminal; Ctrl-C ends it.

    The table changes as soon as an event is recorded. Without a terminal, or with --once, it
    is printed once.
    """
    with session.open_client() as client:
        if once or session.json or not render.is_read_by_a_person():
            session.answer(_read_rows(client, everyone), _format_rows)
            return
        _watch(client, everyone)


def _watch(client: Client, everyone: bool) -> None:
    """Draw the table at every change until the user interrupts."""
    sys.stdout.write(ENTER)
    try:
        seen = 0
        while True:
            rows = _read_rows(client, everyone)
            sys.stdout.write(CLEAR + _fit_to_screen(rows))
            sys.stdout.flush()
            # Blocks in the steward until something changes.
            found = client.call("look.changes", after=seen, wait_seconds=REFRESH_SECONDS)
            seen = found["changes"]
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


def _read_rows(client: Client, everyone: bool) -> list[dict[str, Any]]:
    """Return a row for each subagent of open tasks, those at work first."""
    rows: list[dict[str, Any]] = []
    for task in client.call("task.list", limit=MOST_TASKS):
        if task["state"] != "open" and not everyone:
            continue
        given = select_given(task=task["task_id"], limit=MOST_CLOSED)
        found = client.call("subagent.list", **given)
        rows += [row | {"task_id": task["task_id"]} for row in found]
    return sorted(rows, key=lambda row: row["status"] not in AT_WORK)


def _format_rows(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no subagents in open tasks"
    return render.format_table(HEADINGS, map(_format_row, rows), paint=2, right=NUMBERS)


def _format_row(row: dict[str, Any]) -> tuple[str, ...]:
    usage = row.get("token_usage") or {}
    tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    done = row.get("completion_percentage")
    return (
        row["task_id"],
        row["agentInstance"],
        row["status"],
        str(row.get("phase") or ""),
        "" if done is None else f"{done:.0f}%",
        f"{tokens:,}",
        f"${usage.get('estimated_cost') or 0.0:.4f}",
        render.format_seconds(row.get("elapsed_seconds")),
    )


def _fit_to_screen(rows: list[dict[str, Any]]) -> str:
    """Return the heading and as many rows as the screen has lines; cut lines that are too long."""
    size = shutil.get_terminal_size()
    work = sum(row["status"] in AT_WORK for row in rows)
    spent = sum((row.get("token_usage") or {}).get("estimated_cost") or 0.0 for row in rows)
    lines = [
        render.format_strong(f"{work} at work, {len(rows)} shown, ${spent:.4f}; Ctrl-C ends"),
        "",
        *_format_rows(rows).split("\n"),
    ]
    left = len(lines) - (size.lines - 1)
    if left > 0:
        lines = [*lines[: size.lines - 2], f"and {left + 1} more"]
    return "\n".join(render.cut_to_screen(line) for line in lines)
