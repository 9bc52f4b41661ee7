"""`run --retry`: what was merged is not done again and not lost."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import BadInput
from support import repositories
from support.repositories import Repository, carry_out, plan, reasons, step
from support.roots import Root

repository, root = repositories.repository, repositories.root

FAILS = "test -e /nonexistent"


def run_two(root: Root) -> dict[str, Any]:
    """The end of a run of which the first step is merged and the second fails."""
    return carry_out(
        root,
        plan(
            step("first", "echo one > one; echo done", owns=["one"]),
            step("second", FAILS, owns=["two"], depends_on=["first"]),
        ),
    )


def retry(root: Root, task: str) -> dict[str, Any]:
    again = root.call("run.retry", task=task, by="user")
    end: dict[str, Any] = root.call("run.wait", task=again["task_id"])
    return end


@pytest.mark.parametrize("what", ["removed", "reset"])
def test_a_retry_does_not_begin_without_the_work_that_was_merged(
    repository: Repository, root: Root, what: str
) -> None:
    first = run_two(root)
    words = {"removed": ["-D", first["branch"]], "reset": ["-f", first["branch"], "main"]}
    repository.git("branch", *words[what])
    with pytest.raises(BadInput) as refused:
        retry(root, first["task_id"])
    assert refused.value.code == "unfit_repository"
    assert refused.value.message == f"the branch {first['branch']} lacks the work of first"
    assert first["head"] in refused.value.hint
    assert len(root.call("task.list")) == 1
    repository.git("branch", "-f", first["branch"], first["head"])
    assert reasons(retry(root, first["task_id"])) == {"second": ""}


def test_a_retry_begins_with_what_the_user_rebased(repository: Repository, root: Root) -> None:
    first = run_two(root)
    repository.write({"theirs.txt": "theirs\n"})
    repository.commit("theirs")
    repository.git("checkout", "-q", first["branch"])
    repository.git("rebase", "-q", "main")
    repository.git("checkout", "-q", "main")
    assert reasons(retry(root, first["task_id"])) == {"second": ""}


def test_candidates_of_which_none_was_merged_work_again(repository: Repository, root: Root) -> None:
    steps = plan(
        step("bad", "echo bad > x; echo done", candidate_of="best", verify=["grep", "good", "x"]),
        step("idle", "echo nothing to do", candidate_of="best"),
        step("next", "cat x > y; echo done", depends_on=["best"]),
    )
    first = carry_out(root, steps)
    assert reasons(first) == {"bad": "check_failed", "idle": "no_changes"}
    end = retry(root, first["task_id"])
    assert reasons(end) == {"bad": "check_failed", "idle": "no_changes"}
    assert list(end["not_started"]) == ["next"]


def test_a_retry_of_uncommitted_work_of_which_nothing_was_merged_is_refused(
    repository: Repository, root: Root
) -> None:
    repository.write({"a.txt": "changed\n"})
    first = carry_out(root, plan(step("only", "exit 3")), include_dirty=True)
    with pytest.raises(BadInput) as refused:
        retry(root, first["task_id"])
    assert "began with uncommitted changes" in refused.value.message
    assert "--include-dirty" in refused.value.hint
