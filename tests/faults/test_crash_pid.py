"""A process is known by its boot, number and start: never by its number alone."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.reader import Reader
from support.roots import Root, sh, until
from support.traces import is_over

SCRIPT = Path(__file__).with_name("reuse.py")
UNSHARE = ["unshare", "-Urpf", "--mount-proc"]


def may_unshare() -> bool:
    try:
        asked = [*UNSHARE, "sh", "-c", "echo 300 > /proc/sys/kernel/ns_last_pid"]
        return subprocess.run(asked, capture_output=True, timeout=10).returncode == 0
    except OSError:
        return False


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.skipif(not may_unshare(), reason="no PID namespace may be made here")
@pytest.mark.requirement("R13", "R14")
def test_a_number_that_went_to_an_innocent_process_is_left_alone(tmp_path: Path) -> None:
    words = [*UNSHARE, sys.executable, str(SCRIPT), str(tmp_path / ".retinue")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "innocent_lives": True,
        "status": "failed",
        "close_reason": "supervisor_lost",
        "kept": "kept\n",
    }


@pytest.mark.parametrize("same", ["boot", "start"])
def test_neither_number_and_boot_nor_number_and_start_make_a_child_ours(
    fresh: Root, innocent: subprocess.Popen[bytes], same: str
) -> None:
    task = fresh.create_task()
    fresh.spawn(task, sh("echo kept > up; exec sleep 60", subagent_id="one"))
    until((fresh.folder(task, "one") / "workspace" / "up").exists)
    child = Reader(fresh.path).attempts(task, "one")[0]
    fresh.kill()
    os.kill(child["pid"], signal.SIGKILL)
    until(lambda: is_over(child["pid"]))
    stat = Path(f"/proc/{innocent.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(stat[19]) if same == "start" else child["start_ticks"]
    boot = child["boot_id"] if same == "boot" else "another"
    with closing(sqlite3.connect(fresh.path / "retinue.db")) as database:
        change = "UPDATE attempts SET pid = ?, start_ticks = ?, boot_id = ?"
        database.execute(change, (innocent.pid, ticks, boot))
        database.commit()
    fresh.call("subagent.wait_all", task=task, timeout_seconds=20)
    Reader(fresh.path).check(finished=True)
    row = fresh.rows(task)["one"]
    assert (row["status"], row["close_reason"]) == ("failed", "supervisor_lost")
    result = fresh.call("subagent.result", task=task, subagent="one")
    assert (Path(result["workspace_path"]) / "up").read_text() == "kept\n"
    assert innocent.poll() is None
