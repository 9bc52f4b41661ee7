"""Output that waits to be integrated: its own status in every answer, and no end is lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ruamel.yaml import YAML

import retinue
from retinue.cli import tables
from support import repositories
from support.reader import Reader
from support.repositories import Repository, plan, start, step
from support.roots import Root, sh, until

repository, root = repositories.repository, repositories.root
HELD = "until [ -e ../go ]; do sleep 0.02; done; "


def merging(name: str, script: str) -> dict[str, Any]:
    return sh(f"{script}; echo x", subagent_id=name, integration="merge")


def waited(root: Root, task: str, consumer: str = "default") -> tuple[str, str]:
    answer = root.call("subagent.wait_any", task=task, timeout_seconds=20, consumer=consumer)
    return answer["agentInstance"], answer["status"]


@pytest.mark.requirement("R108", "R116")
def test_output_is_reported_when_it_waits_and_again_at_its_end(
    repository: Repository, root: Root
) -> None:
    task = root.create_task()
    root.spawn(task, merging("one", "echo 1 > one"))
    assert waited(root, task) == ("one", "waiting_for_merge")
    row = root.rows(task)["one"]
    assert (row["status"], row["state"], row["integrated_by"]) == (
        "waiting_for_merge",
        "waiting_for_merge",
        "parent",
    )
    assert "to be joined: one" in tables.format_subagents([row])
    assert root.call("subagent.show", task=task, subagent="one")["status"] == "waiting_for_merge"
    (shown,) = [each for each in root.call("task.list") if each["task_id"] == task]
    assert shown["counts"]["waiting_for_merge"] == 1
    counted = {word: number for word, number in shown["counts"].items() if word != "total"}
    assert sum(counted.values()) == shown["counts"]["total"]
    roster = root.task_folder(task) / "task.yaml"
    until(lambda: YAML().load(roster.read_text())["roster"][0]["state"] == "active")
    refused = root.refusal("subagent.wait_any", task=task)
    assert refused.code == "nothing_to_wait_for" and "one waits to be merged" in str(refused.hint)
    assert root.refusal("subagent.cancel", task=task, subagent="one").code == "already_delivered"
    root.call("subagent.integrate", task=task, subagent="one")
    assert waited(root, task) == ("one", "completed")
    assert root.refusal("subagent.wait_any", task=task).code == "nothing_to_wait_for"
    assert waited(root, task, "other") == ("one", "completed")  # it had not asked before
    root.sound()


def test_a_merge_that_fails_after_delivery_reaches_every_waiter(
    repository: Repository, root: Root
) -> None:
    task = root.create_task()
    consumers = ("first", "second")
    root.spawn(task, merging("one", "echo 1 > a.txt"), merging("two", "echo 2 > a.txt"))
    for consumer in consumers:
        told = {waited(root, task, consumer) for _ in range(2)}
        assert told == {("one", "waiting_for_merge"), ("two", "waiting_for_merge")}
    with ThreadPoolExecutor(2) as threads:  # they wait while it is integrated
        ends = [threads.submit(waited, root, task, consumer) for consumer in consumers]
        root.call("subagent.integrate", task=task, subagent="one")
        assert [end.result(20) for end in ends] == [("one", "completed")] * 2
        ends = [threads.submit(waited, root, task, consumer) for consumer in consumers]
        answer = root.call("subagent.integrate", task=task, subagent="two")
        assert (answer["success"], answer["status"]) == (False, "failed")
        assert [end.result(20) for end in ends] == [("two", "failed")] * 2
    result = root.call("subagent.result", task=task, subagent="two")
    assert (result["status"], result["integration"]["reason"]) == ("error", "merge_conflict")
    root.sound()


@pytest.mark.parametrize("how", ["subagent.close", "task.close"])
def test_output_closed_without_a_join_is_reported_as_failed(
    repository: Repository, root: Root, how: str
) -> None:
    task = root.create_task()
    root.spawn(task, merging("one", "echo 1 > one"))
    assert waited(root, task) == ("one", "waiting_for_merge")
    root.call(how, task=task, **({"subagent": "one"} if how == "subagent.close" else {}))
    assert waited(root, task) == ("one", "failed")
    Reader(root.path).check(finished=True)


def test_a_result_is_delivered_by_the_next_steward(repository: Repository, root: Root) -> None:
    task = root.create_task()
    root.spawn(task, merging("one", "echo 1 > one"))
    assert waited(root, task) == ("one", "waiting_for_merge")
    root.kill()
    assert root.rows(task)["one"]["status"] == "waiting_for_merge"
    root.call("subagent.integrate", task=task, subagent="one")
    root.kill()
    assert waited(root, task) == ("one", "completed")


@pytest.mark.requirement("R120")
def test_only_the_end_of_a_planned_step_is_delivered(repository: Repository, root: Root) -> None:
    text = plan(
        step("slow", HELD + "echo 1 > slow; echo x", owns=["slow"]),
        step("fast", "echo 2 > fast; echo x", owns=["fast"]),
    )
    task = start(root, text)
    until(lambda: root.rows(task).get("fast", {}).get("status") == "waiting_for_merge")
    assert root.rows(task)["fast"]["integrated_by"] == "run"
    assert "to be joined" not in tables.format_subagents(list(root.rows(task).values()))
    early = root.refusal("subagent.wait_any", task=task, timeout_seconds=0.2)
    assert early.code == "wait_timed_out"
    (root.folder(task, "slow") / "go").touch()
    assert [waited(root, task) for _ in range(2)] == [("slow", "completed"), ("fast", "completed")]
    assert root.refusal("subagent.wait_any", task=task).code == "nothing_to_wait_for"


def test_python_is_given_both(repository: Repository) -> None:
    async def main() -> list[retinue.Settled]:
        async with retinue.open(repository.path / ".retinue") as opened:
            task = await opened.create_task(title="t")
            brief = retinue.Brief(
                argv=["sh", "-c", "echo 1 > one; echo x"], id="one", integration="merge"
            )
            await task.spawn([brief])
            first = await task.wait_any(20)
            await opened.call("subagent.integrate", task=task.id, subagent="one")
            return [first, await task.wait_any(20)]

    told = asyncio.run(main())
    assert [each.status for each in told] == ["waiting_for_merge", "completed"]


@pytest.mark.parametrize("between", [False, True])
def test_what_a_merged_subagent_does_later_is_merged_onto_its_own_work(
    repository: Repository, root: Root, between: bool
) -> None:
    task = root.create_task()
    # Told more, it does that; what it is told comes after its first brief.
    script = (
        'if grep -q "[f]ourth" "$RETINUE_BRIEF"; then :; '
        'elif grep -q "[t]hird" "$RETINUE_BRIEF"; then rm new.txt; echo c >> a.txt; '
        'elif grep -q "[s]econd" "$RETINUE_BRIEF"; then echo 2 >> new.txt; '
        "else echo 1 > new.txt; fi"
    )
    root.spawn(task, merging("one", script))
    assert waited(root, task) == ("one", "waiting_for_merge")
    root.call("subagent.integrate", task=task, subagent="one")
    if between:  # the branch has moved on
        root.spawn(task, merging("other", "echo other > other.txt"))
        until(lambda: root.rows(task)["other"]["status"] == "waiting_for_merge")
        root.call("subagent.integrate", task=task, subagent="other")
    for message, names in (("the second", "a.txt new.txt"), ("the third", "a.txt")):
        name = root.call("subagent.continue", task=task, subagent="one", message=message)[
            "subagent_id"
        ]
        until(lambda name=name: root.rows(task)[name]["status"] == "waiting_for_merge")
        # The first id stands for the newest of its line.
        answer = root.call("subagent.integrate", task=task, subagent="one")
        assert (answer["subagent_id"], answer["status"]) == (name, "completed"), answer
        listed = repository.git("ls-tree", "--name-only", f"retinue/{task}").split()
        assert set(names.split()) <= set(listed), listed
    assert "new.txt" not in listed and ("other.txt" in listed) == between
    patch = root.folder(task, name) / "artifacts" / "changes.patch"
    assert "+c" in patch.read_text() and "-2" in patch.read_text()
    idle = root.call("subagent.continue", task=task, subagent="one", message="the fourth")
    until(lambda: root.rows(task)[idle["subagent_id"]]["status"] == "waiting_for_merge")
    answer = root.call("subagent.integrate", task=task, subagent="one")
    assert answer["integration"]["reason"] == "no_changes", answer
    root.sound()
