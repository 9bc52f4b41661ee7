"""Shortage of disk, descriptors, memory and processes; clocks that jump; a root that is gone."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from campaign import Campaign, Order, Row
from faults.tracing import traced, usable
from retinue.core.errors import RetinueError
from support.reader import Reader
from support.roots import Root, held, holder, sh, until
from support.scenarios import mounted, powerless, tell
from support.scenes import USERS, Scene, pytest_sessionfinish, staged
from support.traces import is_over, processes_that_mention

SMALL = 'mount -t tmpfs -o size=1m none "$folder"'
FEW_NAMES = 'mount -t tmpfs -o size=8m,nr_inodes=120 none "$folder"'
SLACK_BYTES = 2 * 1024 * 1024  # enough to read a request
ITSELF = 'mount --bind "$folder" "$folder"'


def _tell(name: str, folder: Path, *prefix: str) -> None:
    story = tell(name, folder, *prefix, bound_s=120)
    assert not story["problems"], story["problems"]
    assert story.get("next", "completed") == "completed", story


def full_disk(folder: Path) -> None:
    _tell("full_disk", folder, *mounted(folder, SMALL))


def full_disk_and_kill(folder: Path) -> None:
    _tell("full_disk_and_killed", folder, *mounted(folder, SMALL))


def full_disk_and_cancel(folder: Path) -> None:
    _tell("full_disk_and_cancelled", folder, *mounted(folder, SMALL))


def no_inodes(folder: Path) -> None:
    _tell("few_inodes", folder, *mounted(folder, FEW_NAMES))


def read_only_root(folder: Path) -> None:
    _tell("read_only", folder, *mounted(folder, ITSELF))


def no_permission(folder: Path) -> None:
    _tell("locked", folder, *powerless())


def _starve(folder: Path, limit: int, soft: int) -> str:
    """Lower a limit of the steward, ask for more than it allows, and lift it again.

    Return what the caller was told. A limit of 0 is hardly more than the steward uses now.
    """
    with held(folder / ".retinue") as root:
        task = root.create_task(limit=40)
        (kept,) = root.run(task, sh("echo kept", subagent_id="kept"))
        before, hard = resource.prlimit(root.pid, limit)
        resource.prlimit(root.pid, limit, (soft or _read_address_space(root.pid), hard))
        told = _spawn_many(root, task)
        pid = holder(root.path)
        if pid is not None:
            resource.prlimit(pid, limit, (before, hard))
        root.release()
        _check_afterwards(root, task, kept, told)
    return told


def _check_afterwards(root: Root, task: str, kept: dict[str, Any], told: str) -> None:
    """Nothing acknowledged is lost, work goes on, and no process is left."""
    assert told != "internal", "the caller was told of an internal error"
    root.call("subagent.wait_all", task=task, timeout_seconds=60)
    assert root.call("subagent.result", task=task, subagent="kept") == kept
    assert root.run(task, sh("echo later", subagent_id="later"))[0]["answer"].strip() == "later"
    Reader(root.path).check(finished=True)
    root.sound()
    assert processes_that_mention(task) == {}


def _read_address_space(pid: int) -> int:
    pages = int(Path("/proc", str(pid), "statm").read_text().split()[0])
    return pages * resource.getpagesize() + SLACK_BYTES


# Large answers, so that the steward needs memory.
LARGE_ANSWER = "sleep 0.2; head -c 900000 /dev/zero | tr '\\0' x"


def _spawn_many(root: Root, task: str, script: str = LARGE_ANSWER, number: int = 20) -> str:
    """Return the error code that the caller received, or the statuses of its subagents."""
    try:
        briefs = [sh(script, subagent_id=f"n{n}") for n in range(number)]
        root.spawn(task, *briefs)
        root.call("subagent.wait_all", task=task, timeout_seconds=30)
    except RetinueError as error:
        return error.code
    except OSError:
        return "connection lost"
    counted = Counter(row["status"] for row in root.rows(task).values())
    return ", ".join(f"{number} {status}" for status, number in counted.items())


def no_descriptors(folder: Path) -> str:
    return _starve(folder, resource.RLIMIT_NOFILE, 48)


def no_memory(folder: Path) -> str:
    return _starve(folder, resource.RLIMIT_AS, 0)


class MemoryGroup:
    """A cgroup with a limit on memory below that of this process, version 1 or 2."""

    def __init__(self) -> None:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = {fields[1]: fields[2] for fields in (line.split(":", 2) for line in lines)}
        first = Path("/sys/fs/cgroup/memory")
        if "memory" in own and first.is_dir():
            self._home = above = first / own["memory"].lstrip("/")
            self._limit, self._kills = "memory.limit_in_bytes", "memory.oom_control"
        else:
            top = Path("/sys/fs/cgroup")
            self._home = top / own[""].lstrip("/")
            above = top if self._home == top else self._home.parent  # processes are in leaves only
            self._limit, self._kills = "memory.max", "memory.events"
        self._folder = above / f"retinue-starve-{os.getpid()}"

    def find_obstacle(self) -> str:
        """Return why there can be no such cgroup here, or nothing."""
        try:
            self._folder.mkdir()
        except OSError as error:
            return f"no cgroup can be made here: {error.strerror}"
        limited = (self._folder / self._limit).exists()
        self._folder.rmdir()
        return "" if limited else "cgroups have no limit on memory here"

    @contextmanager
    def limit(self, pids: list[int], limit_bytes: int) -> Iterator[None]:
        """Within, these processes and those that they start have so much memory in all."""
        self._folder.mkdir()
        try:
            (self._folder / self._limit).write_text(str(limit_bytes))
            for pid in pids:
                (self._folder / "cgroup.procs").write_text(str(pid))
            yield
        finally:
            until(self._is_removed)

    def count_kills(self) -> int:
        """Return how many processes the kernel has ended at the limit."""
        words = (self._folder / self._kills).read_text().split()
        return int(words[words.index("oom_kill") + 1])

    def _is_removed(self) -> bool:
        """Move the processes out; those that end meanwhile keep the folder for a moment."""
        for pid in (self._folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (self._home / "cgroup.procs").write_text(pid)
        with suppress(OSError):
            self._folder.rmdir()
        return not self._folder.exists()


def _list_family(pid: int) -> list[int]:
    """Return a process and all below it."""
    family = [pid]
    for each in family:
        with suppress(OSError):  # it has ended
            words = Path(f"/proc/{each}/task/{each}/children").read_text().split()
            family += map(int, words)
    return family


HELD_BYTES = 40_000_000
HOLDS = f"(head -c {HELD_BYTES} /dev/zero; sleep 1) | tail -c {HELD_BYTES} >/dev/null && echo held"


def memory_limit(folder: Path) -> str:
    """Eight children need 320 MB where there are 128: the kernel chooses whom it ends.

    Often it is the steward, which is larger than each child when the limit is reached.
    """
    return _limit_memory(folder, HOLDS)


def memory_limit_on_children(folder: Path) -> str:
    """The kernel ends children first, because they ask for that."""
    return _limit_memory(folder, f"echo 1000 > /proc/self/oom_score_adj; {HOLDS}", spared=True)


def _limit_memory(folder: Path, script: str, *, spared: bool = False) -> str:
    group = MemoryGroup()
    with held(folder / ".retinue") as root:
        task = root.create_task(limit=40)
        (kept,) = root.run(task, sh("echo kept", subagent_id="kept"))
        steward = root.pid
        with group.limit(_list_family(steward), 128 * 1024 * 1024):
            told = _spawn_many(root, task, script, 8)
            kills = group.count_kills()
        root.release()
        ended = is_over(steward)
        assert kills, "the limit was never reached"
        assert not (ended and spared), "the steward was ended"
        _check_afterwards(root, task, kept, told)
    return f"{told}; the kernel ended {kills}, {'with' if ended else 'without'} the steward"


def no_processes(folder: Path) -> str:
    """The steward and what it has started may start no process more; then they may again."""
    with staged("ordinary", str(folder)) as scene:  # for root there is no such limit
        root = scene.root
        assert json.loads(scene.start())["ready"]
        task = scene.task(limit=40)
        (kept,) = root.run(task, sh("echo kept", subagent_id="kept"))
        family = _list_family(root.pid)
        _limit_processes(scene, family, lowered=True)
        told = _spawn_many(root, task, "sleep 0.1 & wait; echo done | cat", 8)
        assert told != "9 completed", "the limit was never reached"
        _limit_processes(scene, _list_family(root.pid), lowered=False)
        _check_afterwards(root, task, kept, told)
    return told


def _limit_processes(scene: Scene, pids: list[int], *, lowered: bool) -> None:
    """Lower the soft limit to what is used already, or raise it to the hard one."""
    for pid in pids:
        with suppress(FileNotFoundError):  # it has ended
            limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
            (hard,) = [line.split()[3] for line in limits if line.startswith("Max processes")]
            soft = f"--nproc={1 if lowered else hard}:"
            # By its own user, because root needs CAP_SYS_RESOURCE for the limits of others.
            words = [*scene.who.prefix, "prlimit", "--pid", str(pid), soft]
            done = subprocess.run(words, capture_output=True, text=True)
            assert done.returncode == 0 or is_over(pid), done.stderr


def clock_jumps(folder: Path) -> str:
    """The steward's clock goes a day ahead, then two days back; deadlines stay where they were."""
    with staged(USERS[0], str(folder)) as scene:
        root, clock = scene.root, scene.write(scene.place / "clock", "+0", mode=0o644)
        faked = {"LD_PRELOAD": str(_find_faketime()), "FAKETIME_TIMESTAMP_FILE": str(clock)}
        faked |= {"FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        assert json.loads(scene.start(environment=faked))["ready"]
        task, told = scene.task(), []
        (kept,) = root.run(task, sh("echo kept", subagent_id="kept"))
        for name, jump in (("ahead", "+1d"), ("back", "-1d")):
            seconds = _jump(root, task, name, clock, jump)
            told.append(f"a deadline of 2 s after {seconds:.1f} s with the clock {name}")
        said = [datetime.fromisoformat(event["ts"]) for event in root.events(task)]
        hours = (max(said) - min(said)).total_seconds() / 3600
        assert hours > 40, f"the steward saw its clock jump by {hours:.1f} hours only"
        _check_afterwards(root, task, kept, "")
    return ", ".join(told)


def _jump(root: Root, task: str, name: str, clock: Path, jump: str) -> float:
    """Move the clock under two subagents; return how long the one with a deadline took."""
    script = 'echo found > "$RETINUE_ANSWER"; sleep 30'
    names = [f"late-{name}", f"quick-{name}"]
    late = sh(script, subagent_id=names[0], timeout_seconds=2)
    root.spawn(task, late, sh("sleep 0.5; echo quick", subagent_id=names[1]))
    until(lambda: root.rows(task)[names[0]]["status"] == "running")
    began = time.monotonic()
    clock.write_text(jump)
    root.call("subagent.wait_all", task=task, timeout_seconds=20)
    seconds = time.monotonic() - began
    results = [root.call("subagent.result", task=task, subagent=each) for each in names]
    statuses = [result["status"] for result in results]
    assert statuses == ["completed_but_timeout", "completed"], statuses
    assert 1 < seconds < 6, f"a deadline of 2 s took {seconds:.1f} s"
    return seconds


def _find_faketime() -> Path | None:
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def slow_disk(folder: Path) -> None:
    """Each sync takes 50 ms longer; deadlines and results stay right."""
    root = Root(folder / ".retinue")
    delay = "-einject=fdatasync,fsync:delay_enter=50000"
    with traced(root.path, "-o/dev/null", delay) as said:
        assert "ready" in said, said
        task = root.create_task()
        began = time.monotonic()
        results = root.run(
            task,
            sh("echo quick", subagent_id="quick"),
            sh('echo found > "$RETINUE_ANSWER"; sleep 30', subagent_id="late", timeout_seconds=1),
        )
        seconds = time.monotonic() - began
        root.stop()
    statuses = [result["status"] for result in results]
    assert statuses == ["completed", "completed_but_timeout"], statuses
    assert seconds < 6, f"a deadline of 1 s took {seconds:.1f} s"
    Reader(root.path).check(finished=True)


def deleted_root(folder: Path) -> None:
    """The root is deleted under its steward: no process is left, and a new one can be made."""
    root = Root(folder / ".retinue")
    task = root.create_task()
    root.spawn(task, sh("sleep 1", subagent_id="one", timeout_seconds=2))
    until(lambda: root.rows(task)["one"]["status"] == "running")
    pid = root.pid
    shutil.rmtree(root.path)
    with suppress(RetinueError, OSError):  # it names the root that is gone
        root.call("task.list")
    root.release()
    until(lambda: is_over(pid), 30)
    until(lambda: processes_that_mention(task) == {}, 30)
    with held(folder / ".retinue") as again:
        assert again.call("task.list") == []


CASES: dict[str, Callable[[Path], str | None]] = {
    "full disk": full_disk,
    "full disk and kill -9": full_disk_and_kill,
    "full disk and cancel": full_disk_and_cancel,
    "no inodes": no_inodes,
    "read-only root": read_only_root,
    "no permission": no_permission,
    "no descriptors": no_descriptors,
    "no memory": no_memory,
    "memory limit by cgroup": memory_limit,
    "memory limit by cgroup, children ended first": memory_limit_on_children,
    "no processes": no_processes,
    "clock jumps": clock_jumps,
    "slow disk": slow_disk,
    "deleted root": deleted_root,
}


def run(order: Order) -> list[Row]:
    rows = {name: Row(case=name) for name in CASES}
    alone = subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0
    for name in list(CASES)[:5] if not alone else []:
        rows[name].figures = "left out: no mount namespaces here"
    for name in [each for each in CASES if each.startswith("memory limit")]:
        if reason := MemoryGroup().find_obstacle():
            rows[name].figures = f"left out: {reason}"
    if _find_faketime() is None:
        rows["clock jumps"].figures = "left out: libfaketime is not installed"
    if not usable():
        rows["slow disk"].figures = "left out: strace may not trace here"
    for number in order.iter_rounds():
        for name, case in CASES.items():
            row = rows[name]
            if row.figures.startswith("left out") or time.monotonic() >= order.end:
                continue
            folder = order.folder / f"{name.replace(' ', '-')}-{number}"
            folder.mkdir()
            row.tried += 1
            try:
                row.figures = case(folder) or ""
            except (AssertionError, RetinueError, OSError, subprocess.SubprocessError) as error:
                row.note(f"round {number}: {type(error).__name__}: {str(error)[:500]}")
    pytest_sessionfinish()  # removes the copies of the package that ordinary users read
    return list(rows.values())


CAMPAIGN = Campaign(
    promise="Without a resource, work is refused or waits with an error that names it; nothing "
    "acknowledged is lost, and work goes on when the resource is back.",
    rounds=1,
    unit="pass over all cases",
    run=run,
    left_out="jumps of the monotonic clock",
)
