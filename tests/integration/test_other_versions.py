"""What another version of retinue left in a root, or runs there."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import retinue
from support.cli import BOUND_S, Cli
from support.repositories import plan, start, step
from support.roots import Root, held
from support.scenes import package

HELD = "until [ -e ../go ]; do sleep 0.02; done; echo x > x; echo done"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with held(tmp_path / ".retinue") as made:
        yield made


def rewrite(root: Root, task: str, before: str, after: str) -> None:
    """What the steward that is gone had recorded of a task reads otherwise, in as many letters."""
    assert len(before) == len(after)
    with closing(sqlite3.connect(root.path / "retinue.db")) as database, database:
        guards = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
        held_off = database.execute(guards).fetchall()
        for name, _ in held_off:
            database.execute(f"DROP TRIGGER {name}")
        database.execute(
            "UPDATE events SET payload = replace(payload, ?, ?) WHERE task_id = ?",
            (before, after, task),
        )
        for _, made in held_off:
            database.execute(made)
    log = root.task_folder(task) / "events.jsonl"
    log.write_text(log.read_text().replace(before, after))


def let_go(root: Root, task: str, *names: str) -> None:
    for name in names:
        (root.folder(task, name) / "go").touch()


def test_a_plan_that_began_by_other_rules_goes_on(root: Root) -> None:
    text = plan(
        step("one", HELD, integration="copy", destination="here"),
        step("two", HELD, integration="copy", destination="else"),
        base=None,
    )
    task = start(root, text)
    root.stop()
    rewrite(root, task, '"destination":"else"', '"destination":"here"')
    let_go(root, task, "one", "two")
    assert root.call("run.wait", task=task)["outcome"] == "succeeded"
    root.sound()


def test_a_plan_with_keys_of_another_version_is_left_to_that(root: Root) -> None:
    task = start(root, plan(step("one", HELD), base=None, on_failure="stop"))
    other = root.create_task()
    root.stop()
    rewrite(root, task, '"on_failure"', '"on_mystery"')
    assert root.run(other, {"argv": ["echo", "x"], "context_paths": []})[0]["success"]
    assert "unknown key on_mystery" in (root.path / "steward.log").read_text()
    let_go(root, task, "one")
    assert root.call("subagent.wait_all", task=task, timeout_seconds=20)
    root.stop()
    rewrite(root, task, '"on_mystery"', '"on_failure"')
    assert root.call("run.wait", task=task)["outcome"] == "succeeded"
    root.sound()


def test_a_request_to_a_steward_from_before_an_upgrade_says_so(tmp_path: Path) -> None:
    with held(tmp_path / ".retinue") as root:
        cli = Cli(tmp_path)
        cli.environment["PYTHONPATH"] = package()
        cli.task()

        def refused() -> str:
            (tmp_path / "new.yaml").write_text("brand_new_key: 1\n")
            asked = cli.start("task", "create", "--title", "t", "--config", "new.yaml")
            _, said = asked.communicate(timeout=BOUND_S)
            assert (asked.returncode, "unknown_key" in said) == (2, True), said
            return said

        assert "steward stop" not in refused()
        Path(package(), "retinue", "version.py").touch()
        assert "the steward was started before retinue was updated here" in refused()
        root.stop()
        assert "steward stop" not in refused()


@pytest.fixture
def newer(tmp_path: Path) -> str:
    """Where a copy of the package lies that says it is of another release."""
    shutil.copytree(Path(package()) / "retinue", tmp_path / "newer" / "retinue")
    version = tmp_path / "newer" / "retinue" / "version.py"
    version.write_text('"""Which release this is."""\n\nVERSION = "9.9.9"\n')
    return str(tmp_path / "newer")


def test_a_steward_of_another_version_refuses_and_says_how_to_have_another(
    tmp_path: Path, newer: str
) -> None:
    with held(tmp_path / ".retinue") as root:
        task = root.create_task()
        cli = Cli(tmp_path)
        cli.environment["PYTHONPATH"] = newer
        before = root.state()
        for words in (
            ("task", "list"),
            ("subagent", "list", task),
            ("subagent", "spawn", task, "--", "echo", "ok"),
            ("subagent", "spawn", task, "--wait", "--", "echo", "ok"),
        ):
            error = cli.json(*words, code=1)["error"]
            assert error["code"] == "steward_version"
            assert f"retinue {retinue.__version__}" in error["message"]
            assert "retinue 9.9.9" in error["message"]
            assert "retinue steward stop" in error["hint"]
        assert root.state() == before
        program = f"""
import asyncio, retinue
async def main():
    async with retinue.connect({str(root.path)!r}) as r:
        try:
            await r.tasks()
        except retinue.RetinueError as error:
            print(error.code)
asyncio.run(main())
"""
        said = subprocess.run(
            [sys.executable, "-c", program],
            env=cli.environment,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
        )
        assert said.stdout == "steward_version\n", said.stderr


def test_status_marks_a_steward_of_another_version_and_stop_ends_it(
    tmp_path: Path, newer: str
) -> None:
    with held(tmp_path / ".retinue") as root:
        task = root.create_task()
        cli = Cli(tmp_path)
        same = cli.json("steward", "status")
        assert same["client_version"] == same["version"] and "problem" not in same
        cli.environment["PYTHONPATH"] = newer
        marked = cli.json("steward", "status")
        assert (marked["version"], marked["client_version"]) == (same["version"], "9.9.9")
        assert "retinue steward stop" in marked["problem"]
        assert "retinue steward stop" in cli.run("steward", "status")
        cli.run("steward", "stop")
        (row,) = cli.json("task", "list")
        assert row["task_id"] == task
        assert cli.json("steward", "status")["version"] == "9.9.9"
        cli.run("steward", "stop")
