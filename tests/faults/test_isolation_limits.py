"""A child that takes too much gets no more, is told apart by its limit, and harms no sibling."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from support.roots import python, sh, until
from support.scenes import Scene, needs_python
from support.traces import processes_that_mention

pytestmark = needs_python

LIMITS = "    subagent_limits: {memory_mb: 64, processes: 20, file_mb: 1, output_mb: 8}\n"
SIBLING = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo $i >> work; done; wc -l < work"

FORKS = "import os, time\nfor _ in range(200):\n    if not os.fork(): time.sleep(60)\n"
THREADS = "import threading, time\nfor _ in range(200): "
THREADS += "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
# What it holds is let go again, for it would lack the memory to say why it ends.
MEMORY = """
kept = []
try:
    while True: kept.append(bytearray(1 << 20))
finally:
    kept.clear()
"""
AT_ONCE = "bytearray(1 << 30)"
FILE = "open('big', 'wb').write(bytes(10 << 20))"
FILES = "kept = [open('/dev/null') for _ in range(10_000)]"


@pytest.fixture(scope="module")
def task(scene: Scene) -> str:
    return scene.task(LIMITS, limit=20)


def beside_a_sibling(scene: Scene, task: str, brief: dict[str, Any]) -> dict[str, Any]:
    """What became of it; another one that started with it finished its own work meanwhile."""
    result, sibling = scene.root.run(task, brief, sh(SIBLING))
    assert (sibling["status"], sibling["answer"].strip()) == ("completed", "20")
    assert sibling["execution_time_seconds"] < 15
    return dict(result)


@pytest.mark.requirement("R110")
@pytest.mark.parametrize(
    ("script", "limit", "words"),
    [
        (FORKS, "at the process limit of 20", "BlockingIOError: [Errno 11]"),
        (THREADS, "process limit of 20", "can't start new thread"),
        (MEMORY, "the memory limit of 64 MB", "MemoryError"),
        (AT_ONCE, "probably the memory limit of 64 MB", "MemoryError"),
        (FILE, "probably the file size limit of 1 MB", "File too large"),
        (FILES, "probably the limit of 4096 open files", "Too many open files"),
    ],
    ids=["processes", "threads", "memory", "memory at once", "file", "files"],
)
def test_a_limit_that_was_reached_is_named_in_the_error(
    scene: Scene, task: str, script: str, limit: str, words: str
) -> None:
    result = beside_a_sibling(scene, task, python(script))
    assert result["status"] == "error"
    assert limit in result["error"]
    assert words in result["error"]


def test_a_program_killed_for_the_size_of_its_file_is_told_so(scene: Scene, task: str) -> None:
    brief = sh("exec head -c 10000000 /dev/zero > big")
    result = beside_a_sibling(scene, task, brief)
    assert result["error"] == "killed by SIGXFSZ (the file size limit of 1 MB)"
    assert Path(result["workspace"], "big").stat().st_size == 1024 * 1024


def test_a_shell_that_tells_of_such_a_program_is_understood(scene: Scene, task: str) -> None:
    (result,) = scene.root.run(task, sh("head -c 10000000 /dev/zero > big; exit $?"))
    assert "exited with code 153 (probably the file size limit of 1 MB)" in result["error"]


@pytest.mark.requirement("R111")
def test_a_fork_bomb_is_limited_and_its_processes_are_killed(scene: Scene, task: str) -> None:
    marker = f"bomb-{os.getpid()}-{time.monotonic_ns()}"
    bomb = f"bomb() {{ : {marker}; bomb | bomb & bomb; }}; bomb; sleep 60"
    result = beside_a_sibling(scene, task, sh(f"{bomb} 2> /dev/null", timeout_seconds=1.5))
    assert result["status"] in ("timeout", "error")
    until(lambda: not processes_that_mention(marker), 5)


def test_a_busy_child_ends_at_its_deadline(scene: Scene, task: str) -> None:
    started = time.monotonic()
    result = beside_a_sibling(scene, task, python("while True: pass", timeout_seconds=0.5))
    assert (result["status"], result["error"]) == ("timeout", "reached its time limit")
    assert time.monotonic() - started < 10


def test_a_child_within_its_limits_is_told_of_none(scene: Scene, task: str) -> None:
    (result,) = scene.root.run(task, sh("exit 3"))
    assert result["error"] == "exited with code 3"


def test_the_limit_on_files_is_not_one_on_what_it_says(scene: Scene, task: str) -> None:
    (result,) = scene.root.run(task, sh("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end"))
    log = Path(result["log_path"], "stdout.log")
    assert log.stat().st_size > 3_000_000
    assert not result.get("warning")


def test_each_child_has_its_own_share_of_processes(scene: Scene, task: str) -> None:
    """15 each of 20, four children at once: whoever counts them together finds too many."""
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 1 & done; wait; echo all"
    results = scene.root.run(task, *[sh(script) for _ in range(4)])
    assert [each["answer"].strip() for each in results] == ["all"] * 4


def test_limits_hold_within_the_parents_boundary_too(scene: Scene) -> None:
    inherited = scene.task(LIMITS + "    subagent_runtime_mode: inherited\n")
    hog, writer = scene.root.run(inherited, python(MEMORY), python(FILE))
    assert "the memory limit of 64 MB" in hog["error"]
    assert "probably the file size limit of 1 MB" in writer["error"]
