"""Those who wait for a slot, and people who edit task.yaml meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.reader import Reader
from support.roots import Root, held, sh, until

HELD = "until [ -e {door} ]; do sleep 0.02; done; echo done"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with held(tmp_path / ".retinue") as root:
        yield root
        Reader(root.path).check(finished=False)


def in_place(path: Path, text: str) -> None:
    path.write_text(text)


def by_a_new_file(path: Path, text: str) -> None:
    new = path.with_name("edited")
    new.write_text(text)
    new.replace(path)


def statuses(root: Root, task: str) -> list[str]:
    return [row["status"] for _, row in sorted(root.rows(task).items())]


@pytest.mark.parametrize("save", [in_place, by_a_new_file])
def test_a_raised_limit_starts_waiting_subagents(
    root: Root, tmp_path: Path, save: Callable[[Path, str], None]
) -> None:
    task = root.create_task(limit=1)
    script = HELD.format(door=tmp_path / "door")
    root.spawn(task, *(sh(script, subagent_id=name) for name in "abcd"), queue=True)
    until(lambda: statuses(root, task) == ["running", *["pending"] * 3])
    assert [row.get("waiting_for") for row in root.rows(task).values()].count(
        "a free slot: 1 may work at once"
    ) == 3
    path = root.task_folder(task) / "task.yaml"
    until(lambda: "active" in path.read_text())  # the last that we ourselves have to say in it
    save(path, re.sub("maxConcurrentAgents: 1", "maxConcurrentAgents: 3", path.read_text()))
    until(lambda: statuses(root, task) == [*["running"] * 3, "pending"])
    assert "3 may work at once" in root.rows(task)["d"]["waiting_for"]
    assert "waiting_for" not in root.rows(task)["a"]
    (tmp_path / "door").touch()
    until(lambda: statuses(root, task) == ["completed"] * 4)
    root.sound()


def test_a_corrected_configuration_starts_waiting_subagents(root: Root, tmp_path: Path) -> None:
    task = root.create_task(limit=1)
    script = HELD.format(door=tmp_path / "door")
    root.spawn(task, *(sh(script, subagent_id=name) for name in "abc"), queue=True)
    path = root.task_folder(task) / "task.yaml"
    until(lambda: "active" in path.read_text())
    kept = path.rename(path.with_name("kept"))
    path.write_text(": [ {")
    (tmp_path / "door").touch()
    until(lambda: "task.yaml" in root.rows(task)["b"].get("waiting_for", ""))
    until(lambda: statuses(root, task) == ["completed", "pending", "pending"])
    shown = root.call("subagent.show", task=task, subagent="c")
    assert "line 1" in shown["waiting_for"]
    kept.rename(path)
    until(lambda: statuses(root, task) == ["completed"] * 3)
    root.sound()


def test_waiting_subagents_start_under_a_new_steward_with_a_broken_configuration(
    root: Root, tmp_path: Path
) -> None:
    task = root.create_task(limit=1)
    script = HELD.format(door=tmp_path / "door")
    root.spawn(task, *(sh(script, subagent_id=name) for name in "ab"), queue=True)
    root.stop()
    path = root.task_folder(task) / "task.yaml"
    kept = path.rename(path.with_name("kept"))
    (tmp_path / "door").touch()
    until(lambda: statuses(root, task) == ["completed", "pending"])
    kept.rename(path)
    until(lambda: statuses(root, task) == ["completed"] * 2)
    root.sound()
