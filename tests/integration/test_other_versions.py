"""What another version of retinue left in a root, or runs there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

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


def test_who_asks_a_steward_from_before_an_upgrade_is_told_so(tmp_path: Path) -> None:
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
        assert "the steward began before retinue was last changed here" in refused()
        root.stop()
        assert "steward stop" not in refused()
