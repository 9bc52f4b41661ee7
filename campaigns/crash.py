"""Stops at durable system calls and at named points, each followed by a new steward."""

from __future__ import annotations

import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from campaign import Campaign, Order, Row
from durable_calls import CallWatch, Stop, fork
from durable_calls import usable as can_watch
from power_loss import Disk, list_moments, read_calls, trace_words
from power_loss import usable as can_record
from retinue.core.errors import RetinueError, StewardUnavailable, StorageFailed
from retinue.steward import __main__ as program
from retinue.trust import make_root
from support.reader import Reader
from support.repositories import Repository, plan, step
from support.roots import CONFIG, Root, held, holder, until
from support.traces import is_over, processes_that_mention

# The plan that is stopped at each call: two children and a merge.
TWO_STEPS = [
    step("one", "echo >> {ran}/one; echo 1 > one; echo x", owns=["one"]),
    step("two", "echo >> {ran}/two; echo 2 > two; echo x", owns=["two"]),
]
STOPS = {
    "killed before a durable call": "before",
    "killed after a durable call": "after",
    "killed in the middle of a write": "torn",
    "a durable call fails: disk full": "disk full",
    "a durable call fails: I/O error": "I/O error",
}
# What a refused call or a failed step says. Git gives no reason where it cannot rename its index.
NAMED = re.compile(
    "No space left|disk.full|Input/output error|I/O error|storage_failed|unable to write"
)
# Shared memory of SQLite, what a child and its init write, and output for people do not count.
NOT_DURABLE = re.compile(
    r"retinue\.db-shm$|/workspace/|/exit\.json|/std(out|err)\.log$|/steward\.log$"
)
LATE = (*program.IMPORTED_LATE, "retinue.formats.schemas.plan_schema")
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
TRIES = 3  # of a call that a fault refused
ORPHAN_SECONDS = 10.0  # by when children of a killed steward have ended
MOST_PASSES = 40  # more than any point is passed in one plan


def run(order: Order) -> list[Row]:
    for name in LATE:
        import_module(name)  # a steward that is forked from this process has them
    rows = [_crash_at_points(order)]
    if can_watch():
        rows += _crash_at_calls(order)
    else:
        rows.append(Row(case="durable calls", figures="left out: seccomp announces none here"))
    if can_record():
        rows += _lose_power(order)
    else:
        rows.append(Row(case="power loss", figures="left out: strace may not trace here"))
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
    if order.whole and order.part:
        return list(rows.values())  # the moments of one recorded run belong together
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
    if order.whole:
        chosen = set(moments)
    else:
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
    _start_steward(root.path)
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
    root.sound()  # and so restores contracts and results that were cut short
    Reader(root.path).check(finished=True)
    return bool(bad)


def _stop(root: Root) -> None:
    with suppress(RetinueError, OSError):
        root.stop()
    root.release()
    pid = holder(root.path) if (root.path / "steward.lock").exists() else None
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_over(pid))


def _end(pid: int) -> None:
    """Kill a fork of this process if it still runs, and reap it."""
    with suppress(ChildProcessError):  # reaped when it was stopped
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _note(row: Row, what: str, act: Callable[[], None]) -> None:
    try:
        act()
    except (AssertionError, RetinueError, OSError, ValueError) as error:
        row.note(f"{what}: {type(error).__name__}: {str(error)[:400]}")


class Scene(NamedTuple):
    """A repository that is copied for each try, and what of it is its user's."""

    repository: Repository
    untouched: tuple[Any, ...]


class Told(NamedTuple):
    """What the watched steward acknowledged."""

    task: str = ""
    results: dict[str, str] = {}  # noqa: RUF012


def _crash_at_calls(order: Order) -> list[Row]:
    """Stop a plan with two children and a merge at its durable calls, in each way."""
    template = Repository(order.folder / "template")
    scene = Scene(template, template.untouched())
    folder = order.folder / "counted"
    undisturbed = CallWatch(partial(_is_durable, f"{folder}/"))
    _run_plan(scene, folder, undisturbed)
    chance = random.Random(order.seed)
    rows = []
    tries: list[tuple[tuple[int, int], Row, str]] = []
    for case, how in STOPS.items():
        fit = sum(Stop(number=1, how=how).suits(call) for call in undisturbed.calls)
        row = Row(case=case, figures=f"of {fit} calls")
        rows.append(row)
        numbers: Sequence[int] = range(1, fit + 1)
        if order.whole:
            numbers = order.take_share(numbers)
        else:
            numbers = chance.sample(numbers, min(order.rounds // 3 or 1, fit))
        tries += [(place, row, how) for place in enumerate(numbers)]
    # All ways in turn: what there is no time for is missing from each.
    for (_, number), row, how in sorted(tries, key=lambda each: each[0][0]):
        if time.monotonic() >= order.end:
            row.counts["not tried for lack of time"] += 1
            continue
        folder = order.folder / f"{how.replace('/', '-').replace(' ', '-')}-{number}"
        watch = CallWatch(partial(_is_durable, f"{folder}/"), Stop(number=number, how=how))
        _note(row, f"call {number}", lambda: _crash_at_call(row, scene, folder, watch))  # noqa: B023
    return rows


def _is_durable(top: str, path: str) -> bool:
    return path.startswith(top) and NOT_DURABLE.search(path) is None


def _crash_at_call(row: Row, scene: Scene, folder: Path, watch: CallWatch) -> None:
    failed = False
    try:
        failed = _run_plan(scene, folder, watch)
    except (AssertionError, RetinueError, OSError, ValueError) as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line
        why = f"{type(error).__name__}: {str(error) or line}"
        raise AssertionError(f"{watch.stopped_at}: {why}") from error
    finally:
        if watch.stopped_at is None:
            row.counts["not reached"] += 1  # some calls are made in some runs only
        else:
            row.tried += 1
            row.counts[watch.stopped_at.kind] += 1
        row.counts["plans that failed and said why"] += failed


def _run_plan(scene: Scene, folder: Path, watch: CallWatch) -> bool:
    """Run a plan under the watch, and go on without; return whether it failed and said why."""
    shutil.copytree(scene.repository.path, folder, symlinks=True)
    repository = Repository(folder, new=False)
    ran = folder.with_name(f"{folder.name}-ran")
    ran.mkdir()
    root = Root(folder / ".retinue")
    root.path.mkdir(mode=0o700)
    make_root(root.path, os.environ)
    text = plan(*TWO_STEPS).replace("{ran}", str(ran))
    try:
        told = _begin(root, text) if _start_steward(root.path, watch) else Told()
    finally:
        _stop(root)
        _end(watch.process)
    assert not watch.failed, watch.failed
    watch.join(ORPHAN_SECONDS)
    process = _start_steward(root.path)
    try:
        known = [each["task_id"] for each in root.call("task.list")]
        assert told.task in ("", *known), f"the acknowledged task is gone: {known}"
        # A run that was refused leaves a closed task without subagents.
        others = [task for task in known if task != told.task]
        assert len(others) < TRIES if watch.fails else not (told.task and others), known
        for task in others if watch.fails else ():
            assert root.call("task.show", task=task)["state"] == "closed", task
            assert root.rows(task) == {}, task
            known.remove(task)
        end = root.call("run.wait", task=known[0]) if known else None
        may_fail = watch.fails and watch.stopped_at is not None
        failed = end is not None and _check_end(root, end, repository, bool(told.task), may_fail)
        Reader(root.path).check(finished=True)
        root.sound()
        if told.results:
            assert Reader(root.path).results(told.task) == told.results, "results changed"
        repository.git("fsck", "--strict", "--no-dangling")
        assert repository.untouched() == scene.untouched, "the user's tree or branches changed"
        runs = {path.name: path.read_text().count("\n") for path in ran.iterdir()}
        assert set(runs.values()) <= {1}, f"commands ran more than once: {runs}"
    finally:
        _stop(root)
        _end(process)
    assert watch.join(ORPHAN_SECONDS), "processes are left"
    until(lambda: not processes_that_mention(f"{folder}/"), ORPHAN_SECONDS)
    shutil.rmtree(folder)
    shutil.rmtree(ran)
    return failed


def _check_end(
    root: Root, end: Any, repository: Repository, acknowledged: bool, may_fail: bool
) -> bool:
    """Check how a plan ended, and that it merged what completed; return whether it failed."""
    if not (acknowledged or end["results"]) and end["status"] == "failed":
        return False  # given up before its plan was recorded
    good = [each["subagent_id"] for each in end["results"] if each["status"] == "completed"]
    joined = repository.joined(end["branch"]) if good else []
    assert joined == [name for name in ("one", "two") if name in good], joined
    if end["status"] == "completed":
        return False
    why = [(each.get("error"), each.get("integration")) for each in end["results"]]
    assert may_fail, why
    assert NAMED.search(json.dumps(why)), f"it does not say why: {why}"
    return True


def _begin(root: Root, text: str) -> Told:
    """Start a plan and wait for its end, as far as the steward lives."""
    task = ""
    try:
        for _ in range(TRIES):
            try:
                config = CONFIG.format(limit=8)
                task = root.call("run.start", plan_text=text, config_text=config)["task_id"]
                break
            except StewardUnavailable:
                raise
            except RetinueError as refusal:
                assert NAMED.search(f"{refusal.code} {refusal.message}"), refusal
        if task and _wait_for(root, task)["status"] == "completed":
            return Told(task, Reader(root.path).results(task))
    except StewardUnavailable:
        pass
    return Told(task)


def _wait_for(root: Root, task: str) -> Any:
    """Return the end of a run; the call itself may be refused by a fault, which is over then."""
    try:
        return root.call("run.wait", task=task)
    except StorageFailed as refusal:
        assert NAMED.search(f"{refusal.code} {refusal.message}"), refusal
        return root.call("run.wait", task=task)


def _start_steward(path: Path, watch: CallWatch | None = None) -> int:
    """Fork a steward from this process, which has imported it; return its number if it is ready."""
    ours, theirs = os.pipe()

    def be_steward() -> None:
        log = os.open(path / "steward.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(log, 2)
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number != theirs:
                with suppress(OSError):
                    os.close(number)
        sys.argv = ["retinue.steward", str(path), str(theirs)]
        os._exit(program.main())

    if watch is None:
        pid = fork(be_steward)
    else:
        watch.start(be_steward)
        pid = watch.process
    os.close(theirs)
    try:
        assert select.select([ours], [], [], 60)[0], "neither ready nor dead"
        said = os.read(ours, 65536)
    finally:
        os.close(ours)
    is_ready = said and "ready" in json.loads(said)
    # A client whose call was lost may have started the next one already.
    assert is_ready or watch is not None or b"root_held" in said, f"no steward: {said!r}"
    return pid if is_ready else 0


def _crash_at_points(order: Order) -> Row:
    """Stop a plan with merges at named points: each of them in turn, at its next pass each time."""
    row = Row(case="named points of a plan with merges")
    ended: set[str] = set()  # points that a whole plan passes less often
    points = order.take_share(POINTS) if order.whole else POINTS
    passes = [(n, point) for n in range(1, MOST_PASSES) for point in points]
    share = len(passes) if order.whole else max(1, order.rounds // 3)
    for number, point in passes:
        if point in ended or row.tried >= share or time.monotonic() >= order.end:
            continue
        folder = order.folder / f"{point}-{number}"
        died: list[bool] = []
        _note(row, f"{point}:{number}", lambda: died.append(_crash_at_point(folder, point, number)))  # noqa: B023
        if died == [False]:
            ended.add(point)
        else:
            row.tried += 1
    row.figures = f"{len(POINTS)} points, {'every pass' if order.whole else 'first passes first'}"
    return row


def _crash_at_point(folder: Path, point: str, number: int) -> bool:
    """Return whether a steward came to that pass of the point; check what followed."""
    repository = Repository(folder)
    untouched = repository.untouched()
    with held(folder / ".retinue") as root:
        os.environ["RETINUE_FAILPOINT"] = f"{point}:{number}"
        died = True
        acknowledged = False
        root.path.mkdir(mode=0o700)
        make_root(root.path, os.environ)
        try:
            _start_steward(root.path)
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
        if died:
            _start_steward(root.path)
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
