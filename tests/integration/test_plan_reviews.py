"""Plans whose steps a person approves before they are joined."""

from __future__ import annotations

from typing import Any

import pytest

from integration.test_notes import ASKS, notes
from retinue.core.errors import Refused
from support.repositories import (
    Repository,
    plan,
    reasons,
    repository,
    root,
    start,
    step,
)
from support.roots import Root, sh, until

__all__ = ["repository", "root"]  # fixtures

WRITES = "echo one > one.txt; echo done"


def open_gate(root: Root, task: str) -> dict[str, Any]:
    """The gate of the task, once it is open."""
    return until(lambda: next(iter(_open(root, task)), None))


def test_an_answer_in_the_notes_counts_while_a_review_waits(
    root: Root, repository: Repository
) -> None:
    task = start(root, plan(step("one", WRITES, approve=True, owns=["one.txt"])))
    gate = open_gate(root, task)
    (asks,) = root.spawn(task, sh(ASKS, subagent_id="asks"))
    until(lambda: root.rows(task)[asks]["status"] == "blocked")
    file = notes(root, task)
    file.write_text(file.read_text() + "Blue.\n")
    until(lambda: root.rows(task)[asks]["status"] == "completed")
    log = (root.path / "steward.log").read_text()
    assert "is not watched" not in log
    root.call("gate.approve", task=task, gate=gate["gate_id"], by="user")
    assert root.call("run.wait", task=task)["status"] == "completed"


def _open(root: Root, task: str) -> list[dict[str, Any]]:
    return [each for each in root.call("gate.list", task=task) if each["state"] == "open"]


def test_a_step_is_merged_only_after_its_approval(root: Root, repository: Repository) -> None:
    reviewed = step("one", WRITES, verify=["test", "-s", "one.txt"], approve=True, owns=["one.txt"])
    later = step("two", "cat one.txt > two.txt; echo done", depends_on=["one"])
    task = start(root, plan(reviewed, later))
    gate = open_gate(root, task)
    assert gate["agentInstance"] == "one"
    (question,) = gate["questions"]
    assert question.startswith("Merge the work of one (1 file, tree ")
    (row,) = root.call("subagent.list", task=task)
    assert (row["status"], row["state"]) == ("blocked", "waiting_for_merge")
    patch = root.path / "tasks" / task / "agents" / "one" / "artifacts" / "changes.patch"
    assert "+one" in patch.read_text()
    assert repository.git("branch", "--list", f"retinue/{task}") == ""
    root.call("gate.approve", task=task, gate=gate["gate_id"], by="user")
    end = root.call("run.wait", task=task)
    assert reasons(end) == {"one": "merged", "two": "merged"}
    assert repository.files(end["branch"])["two.txt"] == "one"
    assert root.call("verify")["ok"]


def test_rejected_work_is_kept_and_not_merged(root: Root, repository: Repository) -> None:
    task = start(root, plan(step("one", WRITES, approve=True)))
    gate = open_gate(root, task)["gate_id"]
    root.call("gate.reject", task=task, gate=gate, by="user", reason="too short")
    end = root.call("run.wait", task=task)
    (result,) = end["results"]
    assert (end["status"], result["error"]) == ("failed", "rejected by user: too short")
    assert result["integration"]["reason"] == "review_rejected"
    assert repository.git("show", f"{result['integration']['branch']}:one.txt") == "one"
    assert end["branch"] is None
    (told,) = root.call("gate.list", task=task)
    assert told["state"] == "rejected"
    assert root.call("verify")["ok"]


def test_a_check_that_fails_opens_no_gate(root: Root) -> None:
    task = start(root, plan(step("one", WRITES, verify=["false"], approve=True)))
    end = root.call("run.wait", task=task)
    assert reasons(end) == {"one": "check_failed"}
    assert root.call("gate.list", task=task) == []


def test_output_that_changed_after_its_approval_is_not_merged(
    root: Root, repository: Repository
) -> None:
    task = start(root, plan(step("one", WRITES, approve=True)))
    gate = open_gate(root, task)["gate_id"]
    place = root.path / "tasks" / task / "agents" / "one" / "workspace" / "one.txt"
    place.write_text("other\n")
    root.call("gate.approve", task=task, gate=gate, by="user")
    (result,) = root.call("run.wait", task=task)["results"]
    assert result["integration"]["reason"] == "merge_refused"
    assert result["error"] == "its output changed after it was approved"


def test_an_approval_without_words_is_one(root: Root) -> None:
    task = start(root, plan(step("one", WRITES, approve=True)))
    gate = open_gate(root, task)["gate_id"]
    root.call("gate.approve", task=task, gate=gate, answer="", by="user")
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    assert reasons(root.call("run.wait", task=task)) == {"one": "merged"}
    (known,) = root.call("gate.list", task=task)
    assert known["state"] == "approved"


def test_a_review_survives_the_steward(root: Root) -> None:
    task = start(root, plan(step("one", WRITES, approve=True)))
    gate = open_gate(root, task)["gate_id"]
    root.kill()
    assert open_gate(root, task)["gate_id"] == gate
    root.call("gate.approve", task=task, gate=gate, by="user")
    assert reasons(root.call("run.wait", task=task)) == {"one": "merged"}


def test_a_cancelled_run_rejects_what_is_in_review(root: Root) -> None:
    task = start(root, plan(step("one", WRITES, approve=True)))
    open_gate(root, task)
    root.call("task.cancel", task=task, by="user", reason="enough")
    end = root.call("run.wait", task=task)
    assert reasons(end) == {"one": "review_rejected"}


def test_only_a_gate_approves(root: Root) -> None:
    task = start(root, plan(step("one", WRITES, approve=True)))
    gate = open_gate(root, task)["gate_id"]
    with pytest.raises(Refused) as refusal:
        root.call("subagent.continue", task=task, subagent="one", message="yes", by="parent")
    assert refusal.value.code == "in_review"
    root.call("gate.reject", task=task, gate=gate, by="user")
    root.call("run.wait", task=task)


def test_copied_output_is_approved_as_well(root: Root, repository: Repository) -> None:
    text = plan(step("one", WRITES, integration="copy", destination="out", approve=True), base=None)
    task = start(root, text)
    gate = open_gate(root, task)
    assert gate["questions"] == ["Copy the output of one?"]
    assert not (repository.path / "out").exists()
    root.call("gate.approve", task=task, gate=gate["gate_id"], by="user")
    root.call("run.wait", task=task)
    assert (repository.path / "out" / "one.txt").read_text() == "one\n"


def test_a_step_that_changes_nothing_asks_for_no_approval(root: Root) -> None:
    task = start(root, plan(step("one", "echo done", approve=True)))
    assert reasons(root.call("run.wait", task=task)) == {"one": "no_changes"}
