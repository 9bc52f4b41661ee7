"""Output that is judged before it is merged: reviews of a step, votes among candidates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from support import repositories
from support.reader import Reader
from support.repositories import ISOLATED, Repository, carry_out, plan, reasons, start, step
from support.roots import Root, until

repository, root = repositories.repository, repositories.root

# The patch is where every context path is; the workspace has the change applied.
PATCH = "find $RETINUE_CONTEXT/ -name changes.patch"


def say(**answer: Any) -> str:
    return f"echo '{json.dumps(answer)}'"


def review(command: str, **terms: Any) -> dict[str, Any]:
    return step("critic", command, reviews="fix") | terms


def candidate(name: str, command: str, **terms: Any) -> dict[str, Any]:
    return step(name, command, candidate_of="best", verify=["grep", "-q", "good", "x"]) | terms


def voter(name: str, choice: str) -> dict[str, Any]:
    return step(name, say(vote=choice, reason="it is"), votes_on="best")


def test_an_approved_change_is_merged_after_its_review(repository: Repository, root: Root) -> None:
    looks = f"test -s x && grep -q '^+new' $({PATCH}) && ! touch y 2>/dev/null && "
    text = plan(
        step("fix", "echo new > x; echo done"),
        review(looks + say(approve=True, reason="fine")),
        step("next", "cat x > z; echo done", depends_on=["fix"]),
    )
    end = carry_out(root, text, config=ISOLATED)
    assert reasons(end) == {"fix": "merged", "critic": "", "next": "merged"}, end
    assert end["outcome"] == "succeeded"
    assert end["reviews"]["critic"]["verdict"] == {"approve": True, "reason": "fine"}
    assert repository.joined(end["branch"]) == ["fix", "next"]
    assert repository.files(end["branch"])["z"] == "new"
    Reader(root.path).check(finished=True)


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (say(approve=False, reason="it breaks y"), "critic does not approve it: it breaks y"),
        ("echo looks good to me", "the reviewer critic gave no verdict"),
        ("exit 3", "the reviewer critic gave no verdict"),
    ],
)
def test_a_change_without_approval_is_kept_and_not_merged(
    repository: Repository, root: Root, verdict: str, why: str
) -> None:
    text = plan(
        step("fix", "echo new > x; echo done"),
        review(verdict),
        step("next", "echo x", depends_on=["fix"]),
    )
    end = carry_out(root, text, config=ISOLATED)
    fix = next(each for each in end["results"] if each["subagent_id"] == "fix")
    assert (end["outcome"], end["branch"]) == ("failed", None)
    assert fix["integration"]["reason"] == "review_rejected" and fix["error"] == why
    assert "+new" in Path(fix["integration"]["patch"]).read_text()
    assert repository.files(fix["integration"]["branch"])["x"] == "new"
    assert end["not_started"] == {"next": "fix, which it depends on, did not complete"}
    Reader(root.path).check(finished=True)


def test_a_change_that_fails_its_check_is_not_reviewed(repository: Repository, root: Root) -> None:
    text = plan(
        step("fix", "echo new > x; echo done", verify=["false"]),
        review("touch /tmp/never; " + say(approve=True, reason="")),
    )
    end = carry_out(root, text, config=ISOLATED)
    assert reasons(end) == {"fix": "check_failed"}
    assert (end["outcome"], end["not_started"]) == ("failed", {})


def test_a_step_without_changes_needs_no_review(repository: Repository, root: Root) -> None:
    text = plan(step("fix", "echo nothing to do"), review("false"))
    end = carry_out(root, text, config=ISOLATED)
    assert (end["outcome"], reasons(end)) == ("succeeded", {"fix": "no_changes"})


def test_votes_decide_among_the_candidates_that_pass(repository: Repository, root: Root) -> None:
    text = plan(
        candidate("one", "echo good one > x; echo done"),
        candidate("two", "echo bad > x; echo done"),
        candidate("three", "echo good three > x; echo done"),
        voter("v1", "three"),
        voter("v2", "three"),
        voter("v3", "one"),
        step("next", "cat x > z; echo done", depends_on=["best"]),
    )
    end = carry_out(root, text, config=ISOLATED)
    assert end["outcome"] == "succeeded", end
    choice = end["choices"]["best"]
    assert (choice["winner"], choice["reason"]) == ("three", "2 of 3 votes")
    assert (choice["passed"], choice["votes"]) == (["one", "three"], {"three": 2, "one": 1})
    assert {name: reasons(end)[name] for name in ("one", "two", "three", "next")} == {
        "one": "not_chosen",
        "two": "check_failed",
        "three": "merged",
        "next": "merged",
    }
    assert repository.joined(end["branch"]) == ["three", "next"]
    assert repository.files(end["branch"])["z"] == "good three"
    for name in ("one", "two"):
        kept = next(e["integration"] for e in end["results"] if e["subagent_id"] == name)
        assert Path(kept["patch"]).exists() and Path(kept["workspace"], "x").exists()
        assert "x" in repository.files(kept["branch"])
    Reader(root.path).check(finished=True)


def test_the_only_candidate_that_passes_needs_no_vote(repository: Repository, root: Root) -> None:
    text = plan(
        candidate("one", "exit 3"),
        candidate("two", "echo good > x; echo done"),
        voter("v1", "one"),
    )
    end = carry_out(root, text, config=ISOLATED)
    assert (end["outcome"], repository.joined(end["branch"])) == ("succeeded", ["two"])
    assert end["choices"]["best"]["reason"] == "only this candidate passed"
    assert "v1" not in reasons(end) and end["not_started"] == {}


def test_a_run_of_which_no_candidate_passes_has_failed(repository: Repository, root: Root) -> None:
    text = plan(
        candidate("one", "echo bad > x; echo done"),
        candidate("two", "echo idle"),
        voter("v1", "one"),
        step("next", "echo x", depends_on=["best"]),
    )
    end = carry_out(root, text, config=ISOLATED)
    assert (end["outcome"], end["branch"]) == ("failed", None)
    assert end["choices"]["best"]["winner"] is None
    assert list(end["not_started"]) == ["next"]


@pytest.mark.parametrize("killed_when", ["agent.output_checked", "agent.worktree_merged"])
def test_a_decision_is_the_same_under_the_next_steward(
    repository: Repository, root: Root, killed_when: str
) -> None:
    text = plan(
        candidate("one", "echo good one > x; echo done"),
        candidate("two", "echo good two > x; echo done"),
        voter("v1", "two"),
    )
    task = start(root, text, config=ISOLATED)
    until(lambda: any(each["type"] == killed_when for each in root.events(task)))
    root.kill()
    end = root.call("run.wait", task=task)
    assert (end["outcome"], end["choices"]["best"]["winner"]) == ("succeeded", "two")
    assert repository.joined(end["branch"]) == ["two"]
    checks = [e["agentInstance"] for e in root.events(task) if e["type"] == "agent.output_checked"]
    assert sorted(checks) == ["one", "two"]
    Reader(root.path).check(finished=True)


def test_a_retry_works_and_judges_again(repository: Repository, root: Root) -> None:
    refused = "test -e /nonexistent || " + say(approve=False, reason="no")
    first = carry_out(
        root, plan(step("fix", "echo n > x; echo done"), review(refused)), config=ISOLATED
    )
    again = root.call("run.retry", task=first["task_id"], by="user")
    end = root.call("run.wait", task=again["task_id"])
    assert reasons(end) == {"fix": "review_rejected", "critic": ""}


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([step("fix", "x"), step("c", "x", reviews="fixx")], "which is no step that is merged"),
        ([step("fix", "x"), step("c", "x", votes_on="best")], "of which no step is a candidate"),
        ([step("best", "x"), step("c", "x", candidate_of="best")], "is the id of a step"),
        (
            [step("fix", "x"), step("c", "x", reviews="fix", integration="merge")],
            "only judges",
        ),
        (
            [step("fix", "x"), step("c", "x", reviews="fix"), step("d", "x", depends_on=["c"])],
            "depends on c, which only judges",
        ),
        ([step("fix", "x"), step("c", "x", reviews="fix", depends_on=["fix"])], "joined as one"),
        (
            [step("fix", "x"), step("c", "x", reviews="fix", answer_schema={"type": "object"})],
            "has to require the boolean 'approve'",
        ),
    ],
)
def test_a_plan_whose_judges_make_no_sense_is_refused(
    repository: Repository, root: Root, steps: list[dict[str, Any]], why: str
) -> None:
    with pytest.raises(RetinueError, match=why) as refused:
        carry_out(root, plan(*steps))
    assert refused.value.code == "invalid_plan"
    assert root.call("task.list") == []


def open_gates(root: Root, task: str) -> list[dict[str, Any]]:
    return [each for each in root.call("gate.list", task=task) if each["state"] == "open"]


def test_a_person_is_asked_after_the_reviewer_approved(repository: Repository, root: Root) -> None:
    text = plan(
        step("fix", "echo new > x; echo done", approve=True),
        review(say(approve=True, reason="fine")),
    )
    task = start(root, text, config=ISOLATED)
    gate = until(lambda: next(iter(open_gates(root, task)), None))
    assert gate["agentInstance"] == "fix"
    order = [(e["type"], e.get("agentInstance")) for e in root.events(task)]
    assert order.index(("agent.subagent_closed", "critic")) < order.index(("gate.blocked", "fix"))
    assert repository.git("branch", "--list", f"retinue/{task}") == ""
    root.call("gate.approve", task=task, gate=gate["gate_id"], by="user")
    end = root.call("run.wait", task=task)
    assert (end["outcome"], reasons(end)) == ("succeeded", {"fix": "merged", "critic": ""})
    Reader(root.path).check(finished=True)


def test_no_person_is_asked_about_output_that_a_reviewer_rejects(
    repository: Repository, root: Root
) -> None:
    text = plan(
        step("fix", "echo new > x; echo done", approve=True),
        review(say(approve=False, reason="no")),
    )
    end = carry_out(root, text, config=ISOLATED)
    assert reasons(end)["fix"] == "review_rejected"
    assert root.call("gate.list", task=end["task_id"]) == []


def test_the_next_candidate_is_merged_if_a_person_rejects_the_first(
    repository: Repository, root: Root
) -> None:
    text = plan(
        candidate("one", "echo good one > x; echo done", approve=True),
        candidate("two", "echo good two > x; echo done", approve=True),
        voter("v1", "two"),
    )
    task = start(root, text, config=ISOLATED)
    gate = until(lambda: next(iter(open_gates(root, task)), None))
    assert gate["agentInstance"] == "two"
    root.call("gate.reject", task=task, gate=gate["gate_id"], by="user", reason="too long")
    gate = until(lambda: next(iter(open_gates(root, task)), None))
    assert gate["agentInstance"] == "one"
    root.call("gate.approve", task=task, gate=gate["gate_id"], by="user")
    end = root.call("run.wait", task=task)
    assert end["outcome"] == "succeeded", end
    ends = {name: reasons(end)[name] for name in ("one", "two")}
    assert ends == {"one": "merged", "two": "review_rejected"}
    assert end["choices"]["best"]["winner"] == "one"
    Reader(root.path).check(finished=True)


def test_output_that_changed_after_its_check_is_not_merged(
    repository: Repository, root: Root
) -> None:
    waits = "while ! test -e go; do sleep 0.02; done; "
    text = plan(
        step("fix", "echo new > x; echo done"), review(waits + say(approve=True, reason="fine"))
    )
    task = start(root, text, config=ISOLATED)
    agents = root.path / "tasks" / task / "agents"
    until(lambda: (agents / "critic" / "workspace" / "x").exists())
    (agents / "fix" / "workspace" / "x").write_text("other\n")
    (agents / "critic" / "workspace" / "go").touch()
    end = root.call("run.wait", task=task)
    fix = next(each for each in end["results"] if each["subagent_id"] == "fix")
    assert fix["integration"]["reason"] == "merge_refused", fix
    assert fix["error"] == "its output changed after it was judged"


def test_candidates_can_come_from_a_matrix(repository: Repository, root: Root) -> None:
    text = plan(
        candidate("try", "echo {{word}} > x; echo done", matrix={"word": ["bad", "good"]}),
        step("next", "cat x > z; echo done", depends_on=["best"]),
    )
    end = carry_out(root, text, config=ISOLATED)
    assert end["outcome"] == "succeeded", end
    assert repository.joined(end["branch"]) == ["try-good", "next"]
