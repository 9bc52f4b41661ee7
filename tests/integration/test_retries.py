"""How often a failing subagent is tried where nothing is said of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.brief import Brief
from support.cli import Cli, cli
from support.repositories import carry_out, plan, step
from support.roots import CONFIG, Root, fresh, root, sh, task
from support.scripted import Models, answer
from support.teams import brief, models, task_of

__all__ = ["cli", "fresh", "models", "root", "task"]

COUNTS = "echo x >> ran; wc -l < ran; exit 3"


def plainly(brief: dict[str, Any]) -> dict[str, Any]:
    """The same brief without a word on retries, which the tests' own briefs have."""
    return {key: value for key, value in brief.items() if key != "max_retries"}


def attempts(root: Root, task: str, name: str) -> int:
    return len(root.call("subagent.show", task=task, subagent=name)["attempts"])


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({}, 1),
        ({"max_retries": None}, 1),
        ({"max_retries": 1}, 2),
        ({"max_retries": 2}, 3),
        ({"retry_on_timeout": True}, 2),
        ({"retry_on_timeout": True, "max_retries": 0}, 1),
    ],
)
def test_a_failing_command_runs_as_often_as_it_was_asked_to(
    root: Root, task: str, terms: dict[str, Any], expected: int
) -> None:
    (result,) = root.run(task, plainly(sh(COUNTS, subagent_id="bad")) | terms)
    assert result["status"] == "error"
    assert attempts(root, task, "bad") == expected
    assert (Path(result["workspace"]) / "ran").read_text() == "x\n" * expected


def test_at_the_shell_a_command_runs_once_unless_retries_are_given(cli: Cli) -> None:
    name = cli.task()
    for id_, words, expected in (("one", (), 1), ("two", ("--retries", "1"), 2)):
        command = ("--id", id_, *words, "--wait", "--", "sh", "-c", COUNTS)
        cli.run("subagent", "spawn", name, *command, code=1)
        assert len(cli.json("subagent", "show", name, id_)["attempts"]) == expected


def test_programs_run_a_command_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with retinue.open(tmp_path / ".retinue") as held:
            made = await held.create_task(title="t", config=CONFIG.format(limit=2))
            batch = await made.run([Brief(argv=["sh", "-c", COUNTS])])
            assert (Path(batch.results[0].workspace) / "ran").read_text() == "x\n"

    asyncio.run(scene())


def test_a_step_of_a_plan_that_is_a_command_runs_once(fresh: Root) -> None:
    once, twice = step("once", COUNTS), step("twice", COUNTS, retries=1)
    del once["retries"]
    end = carry_out(fresh, plan(once, twice, base=None, on_failure="continue"))
    counts = {
        each["subagent_id"]: attempts(fresh, end["task_id"], each["subagent_id"])
        for each in end["results"]
    }
    assert counts == {"once": 1, "twice": 2}


@pytest.mark.requirement("R96")
def test_a_team_keeps_its_second_try(root: Root, models: Models) -> None:
    models.script = lambda heard: answer("42")
    made = task_of(root, models, "one")
    root.run(made, plainly(brief(subagent_id="team")))
    shown = root.call("subagent.show", task=made, subagent="team")
    assert shown["contract"]["execution"]["max_retries"] == 1
