"""Stops at durable system calls and at named points, each followed by a new steward."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from campaign import Campaign, Order, Row
from faults.tracing import Play, await_free, count_calls, traced, usable
from power_loss import Disk, list_moments, read_calls, trace_words
from retinue.core.errors import RetinueError, StewardUnavailable
from retinue.trust import make_root
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
    rows += _lose_power(order)
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


class Acknowledged(NamedTuple):
    """What a client was told, and when."""

    at: float
    results: dict[str, str]  # by subagent; empty: that the task exists


def _lose_power(order: Order) -> list[Row]:
    """Drop or tear what a plan with merges had not synced, at moments between all of its calls."""
    rows = {
        torn: Row(case=f"power loss: unsynced writes {what}")
        for torn, what in ((False, "dropped"), (True, "torn"))
    }
    folder = order.folder / "power"
    repository = Repository(folder)
    root = Root(folder / ".retinue")
    root.path.mkdir(mode=0o700)
    make_root(root.path, os.environ)
    disk = Disk(folder)
    logs = order.folder / "power-calls"
    logs.mkdir()
    told: list[Acknowledged] = []
    with _recorded(root.path, logs):
        text = plan(*(each | {"retries": 3} for each in STEPS))  # a power loss ends children
        task = root.call("run.start", plan_text=text, config_text=CONFIG.format(limit=8))["task_id"]
        told.append(Acknowledged(time.time(), {}))
        end = root.call("run.wait", task=task)
        assert end["status"] == "completed", end
        results = Reader(root.path).results(task)
        told.append(Acknowledged(time.time(), results))
        root.stop()
    root.release()
    calls = read_calls(logs, folder)
    moments = list_moments(calls)
    failed = Counter[bool]()
    chance = random.Random(order.seed)
    chosen = set(chance.sample(moments, min(order.rounds // 3 or 1, len(moments))))
    for number in range(len(calls) + 1):
        if number in chosen and time.monotonic() < order.end:
            now = calls[number].at if number < len(calls) else time.time()
            kept = [each for each in told if each.at < now]
            for torn, row in rows.items():
                row.tried += 1
                disk.lay_out(torn=torn)
                what = f"before call {number} ({calls[number - 1].name} was the last)"
                lost: list[bool] = []
                _note(row, what, lambda: lost.append(_go_on(root, repository, task, kept)))  # noqa: B023
                failed[torn] += lost.count(True)
                _stop(root)
        if number < len(calls):
            disk.apply(calls[number])
    for torn, row in rows.items():
        row.figures = (
            f"of {len(moments)} moments between {len(calls)} calls; {failed[torn]} plans failed, "
            "because a child had not synced its files"
        )
    return list(rows.values())


@contextmanager
def _recorded(root: Path, logs: Path) -> Iterator[None]:
    """Run a steward whose calls, and whose children's, are recorded."""
    ours, theirs = os.pipe()
    steward = [sys.executable, "-P", "-m", "retinue.steward", str(root), str(theirs)]
    with open(logs.parent / "strace.log", "wb") as log:
        process = subprocess.Popen(
            [*trace_words(logs / "calls"), *steward], pass_fds=[theirs], stderr=log
        )
    os.close(theirs)
    try:
        assert select.select([ours], [], [], 60)[0], "neither ready nor dead"
        yield
    finally:
        os.close(ours)
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def _go_on(root: Root, repository: Repository, task: str, told: list[Acknowledged]) -> bool:
    """Check what a new steward makes of the disk; return whether a plan lost work of a child.

    What a child wrote is not synced before it is merged: a plan may fail for it, by an error that
    names the subagent, and then has merged what completed, each once.
    """
    known = [each["task_id"] for each in root.call("task.list")]
    assert known == [task] or not told, f"the acknowledged task is gone: {known}"
    if not known:
        return False
    if told and told[-1].results:
        assert Reader(root.path).results(task) == told[-1].results, "results changed"
    end = root.call("run.wait", task=task)
    good = [each["subagent_id"] for each in end["results"] if each["status"] == "completed"]
    bad = [each for each in end["results"] if each["status"] != "completed"]
    assert all(each.get("error") for each in bad), f"no reason: {bad}"
    if end["results"]:
        joined = repository.joined(end["branch"]) if good else []
        assert joined == [name for name in ("one", "two", "three") if name in good], joined
    repository.git("fsck", "--strict", "--no-dangling")
    Reader(root.path, lost_power=True).check(finished=True)
    return bool(bad)


def _stop(root: Root) -> None:
    with suppress(RetinueError, OSError):
        root.stop()
    root.release()
    pid = holder(root.path) if (root.path / "steward.lock").exists() else None
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_over(pid))


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
    left_out="unsynced writes in another order; disks that lie about what they synced",
)
