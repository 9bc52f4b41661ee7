"""Shortage: disk, inodes, descriptors, memory, slow disks, and a root that is gone."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from campaign import Campaign, Order, Row
from faults.tracing import traced, usable
from retinue.core.errors import RetinueError
from support.reader import Reader
from support.roots import Root, held, holder, sh, until
from support.scenarios import mounted, powerless, tell
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
        assert told != "internal", "the caller was told of an internal error"
        root.call("subagent.wait_all", task=task, timeout_seconds=60)
        assert root.call("subagent.result", task=task, subagent="kept") == kept
        assert root.run(task, sh("echo later", subagent_id="later"))[0]["answer"] == "later"
        Reader(root.path).check(finished=True)
        root.sound()
        assert processes_that_mention(task) == {}
    return told


def _read_address_space(pid: int) -> int:
    pages = int(Path("/proc", str(pid), "statm").read_text().split()[0])
    return pages * resource.getpagesize() + SLACK_BYTES


def _spawn_many(root: Root, task: str) -> str:
    """Return the error code that the caller received, or the statuses of its subagents."""
    try:
        # Large answers, so that the steward needs memory.
        script = "sleep 0.2; head -c 900000 /dev/zero | tr '\\0' x"
        briefs = [sh(script, subagent_id=f"n{n}") for n in range(20)]
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
    "slow disk": slow_disk,
    "deleted root": deleted_root,
}


def run(order: Order) -> list[Row]:
    rows = {name: Row(case=name) for name in CASES}
    alone = subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0
    for name in list(CASES)[:5] if not alone else []:
        rows[name].figures = "left out: no mount namespaces here"
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
    return list(rows.values())


CAMPAIGN = Campaign(
    promise="Without a resource, work is refused or waits with an error that names it; nothing "
    "acknowledged is lost, and work goes on when the resource is back.",
    rounds=1,
    unit="pass over all cases",
    run=run,
    left_out="clock jumps (tested with a simulated clock in tests/unit), memory limits by cgroup, "
    "a limit on processes",
)
