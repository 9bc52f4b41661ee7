"""A log that lost its end is written again from the database, and that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import Cli, cli

__all__ = ["cli"]


@pytest.mark.parametrize("stopped", [True, False], ids=["no-steward", "running-steward"])
def test_verify_names_a_log_that_was_written_again(cli: Cli, stopped: bool) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "--wait", "--", "echo", "ok")
    log = cli.root / "tasks" / task / "events.jsonl"
    whole = log.read_bytes()
    assert cli.json("verify") == {"ok": True, "problems": []}
    if stopped:
        cli.run("steward", "stop")
    lines = whole.splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-3]))
    first, last = len(lines) - 2, len(lines)
    message = f"events {first} to {last} were missing, and written again from the database"
    answer = cli.json("verify", task)
    repair = {"kind": "log_repaired", "where": str(log), "message": message}
    assert answer == {"ok": True, "problems": [], "repaired": [repair]}
    assert log.read_bytes() == whole
    shown = cli.run("verify")
    assert message in shown and "ok: database, logs and folders agree" in shown
    assert message in Path(cli.root / "steward.log").read_text()
