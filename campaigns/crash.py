"""Stops at durable system calls and at named points, each followed by a new steward."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from campaign import Campaign, Order, Row
from faults.tracing import Play, await_free, count_calls, traced, usable
from retinue.core.errors import RetinueError, StewardUnavailable
from support.reader import Reader
from support.repositories import Repository, plan, step
from support.roots import CONFIG, Root, held, holder, until
from support.traces import is_over, processes_that_mention

STEPS = [
    step("one", "echo 1 > one; echo x", owns=["one"], verify=["test", "-s", "one"]),
    step("two", "echo 2 > two; echo x", owns=["two"]),
    step("three", "cat one two > three; echo x", owns=["three"], depends_on=["one", "two"]),
]
# Named points on the way of a plan; each is passed several times.
POINTS = (
    "created", "workspace_made", "launched", "released", "running", "exited", "published",
    "recorded", "committed", "exported", "merge_commit_made", "ref_moved", "join_recorded",
)  # fmt: skip
MOST_PASSES = 40  # more than any point is passed in one plan


def run(order: Order) -> list[Row]:
    rows = [_crash_at_points(order)]
    if not usable():
        return [*rows, Row(case="durable calls", figures="left out: strace may not trace here")]
    calls = _list_calls(order.folder / "calls")
    chance = random.Random(order.seed)
    share = max(1, order.rounds // 3)
    for case, inject in (
        ("killed before a durable call", "signal=KILL"),
        ("a durable call fails: disk full", "error=ENOSPC"),
        ("a durable call fails: I/O error", "error=EIO"),
    ):
        row = Row(case=case, figures=f"of {len(calls)} calls")
        rows.append(row)
        chosen = chance.sample(calls, min(share, len(calls)))
        for number in order.iter_rounds(len(chosen)):
            call, place = chosen[number]
            row.tried += 1
            folder = order.folder / f"{inject.replace('=', '-')}-{call}-{place}"
            _note(row, f"{call} {place}", lambda: _crash_at_call(folder, call, place, inject))  # noqa: B023
    return rows


def _note(row: Row, what: str, act: Callable[[], None]) -> None:
    try:
        act()
    except (AssertionError, RetinueError, OSError, ValueError) as error:
        row.note(f"{what}: {type(error).__name__}: {str(error)[:400]}")


def _list_calls(folder: Path) -> list[tuple[str, int]]:
    """Return every durable system call of a run that nothing disturbs."""
    folder.mkdir()
    root = Root(folder / ".retinue")
    with traced(root.path, "-o", str(folder / "log")):
        assert Play(root).run()
        root.stop()
    return count_calls(folder / "log")


def _crash_at_call(folder: Path, call: str, place: int, inject: str) -> None:
    folder.mkdir()
    root = Root(folder / ".retinue")
    play = Play(root)
    with traced(root.path, "-o/dev/null", f"-einject={call}:{inject}:when={place}") as said:
        if "ready" in said:
            play.run()
        root.release()
        if (pid := holder(root.path)) is not None:
            os.kill(pid, signal.SIGKILL)
    for refusal in play.refusals:
        assert refusal.code in ("storage_failed", "disk_full"), refusal
    await_free(root.path)
    again = Play(root)
    assert again.run(), "the run did not end after the fault was over"
    Reader(root.path).check(finished=True)
    root.sound()
    assert processes_that_mention(str(root.path / "tasks")) == {}
    assert max(again.ran()) == 1, "a command ran twice"
    root.stop()


def _crash_at_points(order: Order) -> Row:
    """Stop a plan with merges at named points: each of them in turn, at its next pass each time."""
    row = Row(case="named points of a plan with merges")
    ended: set[str] = set()  # points that a whole plan passes less often
    passes = [(n, point) for n in range(1, MOST_PASSES) for point in POINTS]
    share = max(1, order.rounds // 3)
    for number, point in passes:
        if point in ended or row.tried >= share:
            continue
        folder = order.folder / f"{point}-{number}"
        died: list[bool] = []
        _note(row, f"{point}:{number}", lambda: died.append(_crash_at_point(folder, point, number)))  # noqa: B023
        if died == [False]:
            ended.add(point)
        else:
            row.tried += 1
    row.figures = f"{len(POINTS)} points, first passes first"
    return row


def _crash_at_point(folder: Path, point: str, number: int) -> bool:
    """Return whether a steward came to that pass of the point; check what followed."""
    repository = Repository(folder)
    untouched = repository.untouched()
    with held(folder / ".retinue") as root:
        os.environ["RETINUE_FAILPOINT"] = f"{point}:{number}"
        died = True
        acknowledged = False
        try:
            with suppress(StewardUnavailable):
                text = plan(*STEPS)
                answer = root.call("run.start", plan_text=text, config_text=CONFIG.format(limit=8))
                acknowledged = True
                root.call("run.wait", task=answer["task_id"])
                died = False
        finally:
            del os.environ["RETINUE_FAILPOINT"]
        root.release()
        if died:
            steward = int((root.path / "steward.lock").read_text())
            until(lambda: is_over(steward))
        Reader(root.path).check(finished=False)
        known = root.call("task.list")
        if known:
            end = root.call("run.wait", task=known[0]["task_id"])
            # A run that was not acknowledged may have been given up before its plan was recorded.
            if acknowledged or end["results"] or end["status"] != "failed":
                assert end["status"] == "completed", end
                joined = repository.joined(end["branch"])
                assert joined == ["one", "two", "three"], f"merged: {joined}"
        Reader(root.path).check(finished=True)
        root.sound()
        assert repository.untouched() == untouched, "the user's tree or branches were changed"
        return died


CAMPAIGN = Campaign(
    promise="A steward that stops at any durable step, or whose disk refuses it, is followed by "
    "one that finishes the work once.",
    rounds=30,
    unit="stop",
    run=run,
    left_out="torn and reordered unsynced writes (no block device underneath that drops them)",
)
