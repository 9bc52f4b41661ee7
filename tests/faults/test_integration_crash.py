"""The steward dies while output is joined, or steps finish in any order: the tree is the same."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.steward.maintenance import rebuild_root
from support.reader import Reader
from support.repositories import ISOLATED, Repository, carry_out, die_at, plan, reasons, start, step
from support.roots import Root, held, rounds, sh, until
from support.traces import processes_that_mention

STEPS = [
    step("one", "echo 1 > one; echo x", owns=["one"], verify=["test", "-s", "one"]),
    step("two", "echo 2 > two; echo x", owns=["two"]),
    step("three", "cat one two > three; echo x", owns=["three"], depends_on=["one", "two"]),
    step("copy", "echo 4 > four; echo x", integration="copy"),
]
HELD = "until [ -e {} ]; do sleep 0.02; done; echo done"
OPEN = {"close_on_completion": False}
POINTS = [
    "created:1", "workspace_made:2", "exited:1", "recorded:4", "merge_commit_made:1",
    "merge_commit_made:2", "merge_commit_made:3", "ref_moved:1", "ref_moved:2", "ref_moved:3",
    "join_recorded:1", "join_recorded:4", "committed:3", "committed:12", "exported:16",
]  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project")


@pytest.fixture
def root(repository: Repository) -> Iterator[Root]:
    with held(repository.path / ".retinue") as root:
        yield root


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.requirement("R77", "R137")
def test_after_a_crash_the_run_goes_on_and_nothing_is_merged_twice(
    repository: Repository, root: Root, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    die_at(root, monkeypatch, point, plan(*STEPS))
    Reader(root.path).check(finished=False)
    (known,) = root.call("task.list")
    end = root.call("run.wait", task=known["task_id"])
    assert end["status"] == "completed", end
    assert repository.joined(end["branch"]) == ["one", "two", "three"]
    assert repository.files(end["branch"])["three"] == "1\n2"
    assert (root.task_folder(end["task_id"]) / "shared/output/copy/four").read_text() == "4\n"
    Reader(root.path).check(finished=True)
    root.sound()
    repository.git("fsck", "--strict")
    assert processes_that_mention(end["task_id"]) == {}


def test_a_run_ends_after_all_other_subagents_of_its_task(
    repository: Repository, root: Root, tmp_path: Path
) -> None:
    task = start(root, plan(step("one", HELD.format(tmp_path / "one"), owns=["x"])))
    asks = 'echo \'{"status": "blocked"}\' > "$RETINUE_FINAL"'
    root.spawn(task, sh(HELD.format(tmp_path / "other"), subagent_id="other"))
    root.spawn(task, sh(asks, subagent_id="asks"), sh("echo kept", subagent_id="open", **OPEN))
    until(lambda: root.rows(task)["asks"]["status"] == "blocked")
    (tmp_path / "one").touch()
    until(lambda: root.rows(task)["one"]["state"] == "closed")
    root.kill()
    assert root.rows(task)["other"]["status"] == "running"
    (tmp_path / "other").touch()
    end = root.call("run.wait", task=task)
    assert end["status"] == "failed"  # by the question that nobody answered
    ends = {name: row["close_reason"] for name, row in root.rows(task).items()}
    assert ends == {
        "one": "no_changes",
        "other": "accepted",
        "asks": "blocked_unresolved",
        "open": "accepted",
    }
    Reader(root.path).check(finished=True)
    root.sound()


def test_a_check_that_outlives_its_steward_is_ended_and_done_again(
    repository: Repository, root: Root
) -> None:
    check = [
        "sh",
        "-c",
        "[ -e /tmp/$RETINUE_TASK_ID ] || { touch /tmp/$RETINUE_TASK_ID; sleep 60; }",
    ]
    task = start(root, plan(step("one", "echo 1 > one; echo x", verify=check)))
    mark = Path("/tmp") / task
    try:
        until(mark.exists)
        root.kill()
        end = root.call("run.wait", task=task)
    finally:
        mark.unlink(missing_ok=True)
    assert reasons(end) == {"one": "merged"}
    assert not [line for line in processes_that_mention(task).values() if "sleep" in line]


@pytest.mark.requirement("R77", "R139")
def test_whatever_the_order_of_finishing_the_tree_is_the_same(
    repository: Repository, root: Root
) -> None:
    """The later a step stands in its plan, the earlier it ends."""
    many = 20
    wait = "until [ {0} = 19 ] || [ -e ../../s{1}/over ]; do sleep 0.01; done; "
    work = wait + "echo {0} > f{0}; sed 's/$/ {0}/' a.txt > d{0}; touch ../over; echo x"
    forth = "echo {0} > f{0}; sed 's/$/ {0}/' a.txt > d{0}; echo x"
    trees = set()
    for turn in range(rounds(3)):
        text = forth if turn == 1 else work  # once as written, else in reverse
        steps = [step(f"s{n}", text.format(n, n + 1), owns=[f"f{n}", f"d{n}"]) for n in range(many)]
        end = carry_out(root, plan(*steps), limit=many)
        assert end["status"] == "completed"
        assert repository.joined(end["branch"]) == [f"s{n}" for n in range(many)]
        log = repository.git("log", "--format=%T", f"main..{end['branch']}")
        trees.add(log)
    assert len(trees) == 1


def test_a_steward_killed_again_and_again_still_comes_to_the_same_end(
    repository: Repository, root: Root
) -> None:
    task = start(root, plan(*STEPS), config=ISOLATED)
    for delay in (0.1, 0.25, 0.4, 0.2):
        with suppress(RetinueError):
            waiter = threading.Timer(delay, _kill, [root])
            waiter.start()
            root.call("run.wait", task=task)
        waiter.join()
        root.release()
    end = root.call("run.wait", task=task)
    assert end["status"] == "completed", end
    assert repository.joined(end["branch"]) == ["one", "two", "three"]
    Reader(root.path).check(finished=True)


def _kill(root: Root) -> None:
    with suppress(OSError, ValueError):
        os.kill(int((root.path / "steward.lock").read_text()), signal.SIGKILL)


def test_a_database_made_again_from_the_log_tells_of_every_join(
    repository: Repository, root: Root
) -> None:
    bad = step("bad", "echo 5 > astray; echo x", owns=["five"])
    end = carry_out(root, plan(*STEPS, bad, on_failure="continue"))
    reader = Reader(root.path)
    reader.check(finished=True)
    root.stop()
    for path in root.path.glob("retinue.db*"):
        path.unlink()
    report = rebuild_root(root.path)
    assert (report["ok"], report["problems"]) == (True, [])
    reader.check(finished=True)
    again = root.call("run.wait", task=end["task_id"])
    assert again == end
    root.sound()


def test_a_run_goes_on_after_its_steward_was_stopped_in_order(
    repository: Repository, root: Root
) -> None:
    held_up = "until [ -e ../go ]; do sleep 0.02; done; echo 1 > one; echo x"
    slow = ["sh", "-c", "sleep 0.5"]
    first = step("first", "echo 0 > zero; echo x", owns=["zero"], verify=slow)
    task = start(root, plan(first, step("one", held_up, owns=["one"])))
    until(lambda: root.rows(task).get("first", {}).get("state") == "waiting_for_merge")
    root.stop()
    (root.folder(task, "one") / "go").touch()
    end = root.call("run.wait", task=task)
    assert reasons(end) == {"first": "merged", "one": "merged"}
    Reader(root.path).check(finished=True)
    root.sound()


@pytest.mark.parametrize("point", ["committed:1", "exported:1"])
def test_a_task_whose_plan_was_never_recorded_does_not_stay_open(
    root: Root, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    die_at(root, monkeypatch, point, plan(*STEPS))
    (known,) = root.call("task.list")
    assert (known["state"], known["outcome"]) == ("closed", "failed")
    Reader(root.path).check(finished=True)
    root.sound()
