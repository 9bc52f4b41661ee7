"""Work outside of plans that is merged: side by side only where it owns different paths."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import retinue
from support import repositories
from support.repositories import Repository, plan, reasons, start, step
from support.roots import Root, sh, until

repository, root = repositories.repository, repositories.root
HELD = "until [ -e ../go ]; do sleep 0.02; done; "
BLOCKED = 'echo \'{"status": "blocked", "questions": ["Which?"]}\' > "$RETINUE_FINAL"; echo x'


def owning(name: str, *owns: str, script: str = "", **more: Any) -> dict[str, Any]:
    script = script or f"{HELD}mkdir -p d; echo {name} > d/{name}; echo x"
    return sh(script, subagent_id=name, integration="merge", owns=list(owns)) | more


def go(root: Root, task: str, *names: str) -> None:
    for name in names:
        (root.folder(task, name) / "go").touch()


def statuses(root: Root, task: str) -> dict[str, str]:
    return {name: row["status"] for name, row in root.rows(task).items()}


@pytest.mark.requirement("R138")
def test_overlapping_owners_wait_and_others_run_at_once(repository: Repository, root: Root) -> None:
    task = root.create_task()
    root.spawn(task, owning("one", "d/one", "x/**"))
    root.spawn(task, owning("two", "d/two", "x/y.md"), owning("three", "d/three"))
    until(lambda: statuses(root, task)["three"] == "running")
    rows = root.rows(task)
    assert statuses(root, task) == {"one": "running", "two": "pending", "three": "running"}
    assert rows["two"]["waiting_for"] == "the end of one, which may change the same paths"
    assert "waiting_for" not in rows["three"]
    go(root, task, "one")
    until(lambda: statuses(root, task)["two"] == "running")
    assert statuses(root, task)["one"] == "waiting_for_merge"
    go(root, task, "two", "three")
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    for name in ("one", "two", "three"):
        assert root.call("subagent.integrate", task=task, subagent=name)["success"]
    assert repository.joined(f"retinue/{task}") == ["one", "two", "three"]
    root.sound()


@pytest.mark.requirement("R138")
def test_work_that_owns_nothing_in_particular_is_merged_alone(
    repository: Repository, root: Root
) -> None:
    task = root.create_task()
    root.spawn(task, owning("any"), owning("named", "d/named"), owning("other", "d/other"))
    copied = sh(HELD + "echo x", subagent_id="copied", integration="copy", owns=["d/named"])
    root.spawn(task, copied, sh(HELD + "echo x", subagent_id="free"))
    until(lambda: statuses(root, task)["free"] == "running")
    assert statuses(root, task) == {
        "any": "running",
        "named": "pending",
        "other": "pending",
        "copied": "running",
        "free": "running",
    }
    go(root, task, "any", "copied", "free")
    until(lambda: {statuses(root, task)[name] for name in ("named", "other")} == {"running"})
    go(root, task, "named", "other")
    root.call("subagent.wait_all", task=task, timeout_seconds=20)


@pytest.mark.parametrize("how", ["cancelled", "blocked", "killed"])
def test_a_waiting_owner_starts_however_the_other_ends(
    repository: Repository, root: Root, how: str
) -> None:
    task = root.create_task()
    first = owning("first", "d", script=BLOCKED if how == "blocked" else "")
    root.spawn(task, first, owning("second", "d/second"), owning("third", "d/third"))
    until(lambda: statuses(root, task)["first"] in ("running", "blocked"))
    assert statuses(root, task)["second"] == "pending"
    if how == "blocked":
        until(lambda: statuses(root, task)["first"] == "blocked")
        assert statuses(root, task)["second"] == "pending"
        root.call("subagent.close", task=task, subagent="first")
    elif how == "cancelled":
        root.call("subagent.cancel", task=task, subagent="second")
        root.call("subagent.cancel", task=task, subagent="first")
    else:
        root.kill()
        assert statuses(root, task)["second"] == "pending"
        go(root, task, "first")
    until(lambda: statuses(root, task)["third"] == "running")
    go(root, task, "second", "third")
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    root.sound()


@pytest.mark.requirement("R138")
def test_a_change_outside_of_owned_paths_is_refused_at_the_merge(
    repository: Repository, root: Root
) -> None:
    task = root.create_task()
    root.run(task, owning("one", "d/one", script="echo 1 > outside; echo x"))
    answer = root.call("subagent.integrate", task=task, subagent="one")
    assert (answer["success"], answer["close_reason"]) == (False, "policy_violation")
    assert "does not own: outside" in answer["integration"]["message"]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"integration": "none"}, "owns applies only to output that is merged or copied"),
        ({"owns": ["../x"]}, "is not a pattern of paths inside the repository"),
        ({"owns": [".git/config"]}, "is not a pattern of paths inside the repository"),
        ({"owns": ["/etc"]}, "is not a pattern of paths inside the repository"),
    ],
)
def test_a_path_that_cannot_be_owned_is_refused_and_nothing_exists(
    repository: Repository, root: Root, terms: dict[str, Any], words: str
) -> None:
    task = root.create_task()
    refused = root.refusal("subagent.spawn", task=task, tasks=[owning("one", "a") | terms])
    assert (refused.code, refused.exit_code) == ("invalid_owns", 2)
    assert words in refused.message
    assert root.rows(task) == {}


def test_spawned_work_waits_for_a_planned_step_with_the_same_paths(
    repository: Repository, root: Root
) -> None:
    text = plan(step("planned", HELD + "mkdir d; echo 1 > d/p; echo x", owns=["d"]))
    task = start(root, text)
    until(lambda: statuses(root, task).get("planned") == "running")
    root.spawn(task, owning("same", "d/same"), owning("else", "e", script=f"{HELD}echo x"))
    until(lambda: statuses(root, task)["else"] == "running")
    assert statuses(root, task)["same"] == "pending"
    go(root, task, "planned")
    until(lambda: statuses(root, task)["same"] == "running")
    go(root, task, "same", "else")
    assert reasons(root.call("run.wait", task=task))["planned"] == "merged"


def test_python_sets_the_owned_paths_of_a_subagent(repository: Repository) -> None:
    async def main() -> dict[str, Any]:
        async with retinue.open(repository.path / ".retinue") as opened:
            task = await opened.create_task(title="t")
            brief = retinue.Brief(
                argv=["sh", "-c", "echo 1 > one; echo x"],
                id="one",
                integration="merge",
                owns=["one"],
            )
            await task.run([brief])
            shown = await opened.call("subagent.show", task=task.id, subagent="one")
            return dict(shown["contract"]["outputs"])

    assert asyncio.run(main())["owns"] == ["one"]
