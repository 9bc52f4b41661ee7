"""Plans that the team of a run submits: carried out in its own task, joined, and told to it."""

from __future__ import annotations

from typing import Any

from support import repositories
from support.repositories import Repository
from support.roots import Root, Row, until
from support.scripted import Heard, Models, Said, answer, call
from support.teams import models

__all__ = ["models"]

repository, root = repositories.repository, repositories.root
PLANNING = "enable_subagents: true\nenable_agent_task_planning: true"
PROMPT = "Build a site"


def begin(root: Root, models: Models, coordination: str = PLANNING) -> str:
    config = models.config("boss", coordination=coordination)
    return str(root.call("run.begin", prompt=PROMPT, config_text=config)["task_id"])


def run(root: Root, models: Models, coordination: str = PLANNING) -> Row:
    ended: Row = root.call("run.wait", task=begin(root, models, coordination))
    return ended


def turn(heard: Heard) -> int:
    return sum(each["role"] == "assistant" for each in heard.document["messages"])


def steps(*more: Row) -> list[Row]:
    page = {"id": "page", "description": "Write the page", "owns": ["page.md"], "retries": 0}
    index = {"id": "index", "title": "Index", "owns": ["index.md"], "depends_on": ["page"]}
    made: dict[str, Any] = {"command": ["sh", "-c", "cp page.md index.md; echo x"], "retries": 0}
    return [page, index | made, *more]


def boss_or_step(boss: Any) -> Any:
    def script(heard: Heard) -> Said:
        if PROMPT in heard.words:
            return boss(heard)  # type: ignore[no-any-return]
        made = call("write_file", path="page.md", content="a page")
        return made if turn(heard) == 0 else answer("wrote page.md")

    return script


def test_a_plan_of_the_root_is_run_and_its_result_delivered(
    repository: Repository, root: Root, models: Models
) -> None:
    told: list[str] = []
    bad = [{"id": "page", "description": "Write", "owns": ["../x"]}]
    astray = [{"id": "a", "description": "x", "integration": "copy", "destination": "out"}]

    def boss(heard: Heard) -> Said:
        told.append(heard.last)
        base = {"repository": "."}
        tries: list[Row] = [
            {"goal": "Site", "base": base, "steps": bad},
            {"goal": "Site", "steps": steps(), "colour": "blue"},
            {"goal": "Site", "steps": astray},
            {"goal": "Site", "base": {"repository": "/"}, "steps": steps()},
            {"goal": "Site", "base": base, "steps": steps()},
            {"goal": "Site", "base": base, "steps": steps()},
            {"goal": "More", "base": base, "steps": steps()},
        ]
        at = turn(heard)
        return call("submit_plan", **tries[at]) if at < len(tries) else answer("built")

    models.script = boss_or_step(boss)
    before = repository.untouched()
    end = run(root, models)
    assert (end["status"], end["answer"]) == ("completed", "built"), told
    assert "submit_plan" in models.heard[0].tools
    for number, words in enumerate(("not a pattern", "colour", "destination", "outside"), start=1):
        assert words in told[number]
    assert f"joined on the branch {end['branch']}" in told[5]
    assert "[page] merged" in told[5] and "wrote page.md" in told[5]
    assert told[6] == told[5]  # the same plan is the same
    assert "page is taken" in told[7] and "Background results" not in told[7]
    assert repository.joined(end["branch"]) == ["page", "index"]
    assert repository.files(end["branch"])["index.md"] == "a page"
    assert repository.untouched() == before
    contract = root.call("subagent.show", task=end["task_id"], subagent="page")["contract"]
    assert (contract["delegated_by"], contract["depth"]) == ("root", 1)
    assert [each["step_idx"] for each in root.rows(end["task_id"]).values()] == [0, 1, 2]
    root.sound()


def test_without_planning_there_is_no_such_tool(root: Root, models: Models) -> None:
    seen: list[list[str]] = []

    def boss(heard: Heard) -> Said:
        seen.append(heard.tools)
        return answer("alone")

    models.script = boss_or_step(boss)
    assert run(root, models, coordination="enable_subagents: true")["answer"] == "alone"
    assert "spawn_subagents" in seen[0] and "submit_plan" not in seen[0]


def test_a_step_that_fails_fails_the_run_and_the_root_hears_of_it(
    repository: Repository, root: Root, models: Models
) -> None:
    told: list[str] = []

    def boss(heard: Heard) -> Said:
        told.append(heard.last)
        failing = {"id": "bad", "command": ["false"], "owns": ["x"], "retries": 0}
        later = {"id": "later", "command": ["true"], "owns": ["y"], "depends_on": ["bad"]}
        if turn(heard):
            return answer("one step failed")
        base = {"repository": "."}
        return call("submit_plan", goal="Site", base=base, steps=[failing, later])

    models.script = boss_or_step(boss)
    end = run(root, models)
    assert (end["status"], end["answer"]) == ("failed", "one step failed"), told
    assert "[later] not started: bad, which it depends on, did not complete" in told[1]
    assert list(end["not_started"]) == ["later"]


def test_a_submitted_plan_is_answered_with_the_limits_that_are_not_enforced(
    root: Root, models: Models
) -> None:
    told: list[str] = []

    def boss(heard: Heard) -> Said:
        told.append(heard.last)
        loose = {"id": "loose", "command": ["echo", "x"], "owns": ["a"], "retries": 0}
        return answer("done") if turn(heard) else call("submit_plan", goal="Site", steps=[loose])

    models.script = boss_or_step(boss)
    assert run(root, models)["answer"] == "done"
    assert "\nwarning: the output of loose is not joined, " in told[1]


def test_a_root_that_is_cancelled_takes_its_plan_with_it(
    repository: Repository, root: Root, models: Models
) -> None:
    def boss(heard: Heard) -> Said:
        slow = {"id": "slow", "command": ["sleep", "60"], "retries": 0}
        more = {"id": "more", "command": ["true"], "retries": 0}
        return call("submit_plan", goal="Site", steps=[slow, more], on_failure="continue",
                    base={"repository": "."})  # fmt: skip

    models.script = boss_or_step(boss)
    task = begin(root, models)
    until(lambda: root.rows(task).get("slow", {}).get("status") == "running")
    root.call("subagent.cancel", task=task, subagent="root")
    end = root.call("run.wait", task=task)
    assert end["status"] == "failed"
    assert "more" not in root.rows(task) and list(end["not_started"]) == ["more"]
    assert root.rows(task)["slow"]["close_reason"] == "cancelled_by_parent"


def test_a_plan_goes_on_after_its_steward_was_killed(
    repository: Repository, root: Root, models: Models
) -> None:
    """Its root asks the next steward for the same plan, and is told how that one ended."""
    told: list[str] = []

    def boss(heard: Heard) -> Said:
        told.append(heard.last)
        if "joined on the branch" in heard.last:
            return answer("built")
        held_up = {"id": "one", "owns": ["one"], "retries": 0}
        wait = "until [ -e ../go ]; do sleep 0.02; done; echo 1 > one; echo x"
        step = held_up | {"command": ["sh", "-c", wait]}
        return call("submit_plan", goal="Site", base={"repository": "."}, steps=[step])

    models.script = boss_or_step(boss)
    task = begin(root, models, PLANNING + "\nsubagent_runtime_mode: inherited")
    until(lambda: root.rows(task).get("one", {}).get("status") == "running")
    root.kill()
    assert root.rows(task)["one"]["status"] == "running"
    (root.folder(task, "one") / "go").touch()
    end = root.call("run.wait", task=task)
    assert (end["status"], end["answer"]) == ("completed", "built"), told
    assert repository.joined(end["branch"]) == ["one"]
    root.sound()
