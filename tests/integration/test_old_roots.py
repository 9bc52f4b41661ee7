"""Roots that released versions left: they open, verify, go on and can be rebuilt."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retinue.core.errors import IntegrityBroken
from retinue.steward import maintenance
from retinue.store.database import SCHEMA_VERSION, Database
from retinue.trust import mark_root
from support.reader import Reader
from support.roots import Root, held, sh, until

FIXTURES = Path(__file__).parents[1] / "fixtures"
# What the fixture of 0.1.0 has in its open task.
STATUSES = {
    "good": "completed",
    "keyed": "completed",
    "twice": "completed",
    "large": "completed",
    "stopped": "cancelled",
    "copied": "waiting_for_merge",
    "asks": "blocked",
}


@pytest.fixture(params=["0.1.0"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    archive = FIXTURES / f"root-{request.param}.tar.xz"
    subprocess.run(["tar", "-C", tmp_path, "--no-same-owner", "-xpJf", archive], check=True)
    path = tmp_path / ".retinue"
    mark_root(path, os.environ)
    with held(path) as made:
        yield made


def go_on(root: Root) -> None:
    """Work that the old version left is finished, and new work is done."""
    rows = root.rows("open")
    assert {name: row["status"] for name, row in rows.items()} == STATUSES
    root.call("subagent.continue", task="open", subagent="asks", message="green")
    until(lambda: root.rows("open")["asks"]["status"] == "completed")
    assert root.call("subagent.result", task="open", subagent="asks")["answer"] == "green"
    assert root.run("open", sh("echo new", subagent_id="new"))[0]["answer"] == "new"
    root.call("task.cancel", task="open")
    root.sound()


def test_an_old_root_opens_verifies_and_goes_on(root: Root) -> None:
    before = Reader(root.path).results("open")
    root.sound()
    assert root.call("subagent.result", task="open", subagent="large")["answer"] == "x" * 100_000
    go_on(root)
    after = Reader(root.path).results("open")
    ended = set(STATUSES) - {"asks", "copied"}
    assert {name: after[name] for name in ended} == {name: before[name] for name in ended}


def test_an_old_log_is_replayed_with_the_files_beside_it(root: Root) -> None:
    reader = Reader(root.path)
    results = {task: reader.results(task) for task in ("closed", "open")}
    rows = {task: reader.subagents(task) for task in ("closed", "open")}
    added = {"node_losses": 0}  # a column that the old version did not have
    (root.path / "retinue.db").unlink()
    report = maintenance.rebuild_root(root.path)
    assert (report["ok"], report["problems"]) == (True, [])
    rebuilt = Reader(root.path)
    for task in ("closed", "open"):
        assert rebuilt.results(task) == results[task]
        assert rebuilt.subagents(task) == {name: added | row for name, row in rows[task].items()}
    go_on(root)


def test_a_log_that_two_versions_wrote_is_replayed(root: Root) -> None:
    go_on(root)
    root.stop()
    before = Reader(root.path).results("open")
    (root.path / "retinue.db").unlink()
    assert maintenance.rebuild_root(root.path)["problems"] == []
    assert Reader(root.path).results("open") == before


def test_a_newer_database_is_refused_and_not_touched(root: Root) -> None:
    path = root.path / "retinue.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(IntegrityBroken) as refused:
        Database(path)
    assert refused.value.code == "schema_version"
    assert path.read_bytes() == before
