"""Limits that hold for a whole child, where this machine has cgroup v2 to give."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.roots import python, sh, until
from support.scenes import USERS, Scene, needs_python, staged

NEEDED = {"memory", "pids", "cpu"}


def mounted() -> Path | None:
    """Where cgroup v2 is, if it has what is needed."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [Path(line.split()[4]) for line in lines if " - cgroup2 " in line]
    for place in places:
        if set((place / "cgroup.controllers").read_text().split()) >= NEEDED:
            return place
    return None


pytestmark = [
    needs_python,
    pytest.mark.skipif(
        os.geteuid() != 0 or mounted() is None,
        reason="needs root, and memory, pids and cpu in cgroup v2",
    ),
]

LIMITS = "    subagent_limits: {memory_mb: 64, processes: 20, cpus: 0.5}\n"
SHARED = """
import os, time
for _ in range(4):
    if not os.fork():
        kept = bytearray(30 << 20)
        for at in range(0, len(kept), 4096): kept[at] = 1
        time.sleep(5)
        os._exit(0)
codes = [os.wait()[1] for _ in range(4)]
raise SystemExit(any(codes))
"""
FORKS = "import os, time\nfor _ in range(40):\n    if not os.fork(): time.sleep(60)\n"


@contextmanager
def subtree(uid: int) -> Iterator[Path]:
    """A part of the hierarchy that belongs to this user, as systemd delegates it."""
    top = mounted()
    assert top is not None
    (top / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    base = top / f"delegated-{os.getpid()}"
    session = base / "session"
    base.mkdir()
    (base / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    session.mkdir()
    for folder in (base, session):
        for path in (folder, *(folder / f"cgroup.{n}" for n in ("procs", "subtree_control"))):
            os.chown(path, uid, uid)
    try:
        yield base
    finally:
        until(lambda: not left(base))
        for folder in (session, base):
            until(lambda folder=folder: not (folder / "cgroup.procs").read_text())
            folder.rmdir()


def left(base: Path) -> list[str]:
    """Folders of Retinue's there."""
    return [str(path) for path in base.rglob("*") if path.is_dir() and path.name != "session"]


def start(scene: Scene, base: Path) -> None:
    """A steward of the scene's user runs in the session of that subtree."""
    own = Path("/proc/self/cgroup").read_text().splitlines()
    (path,) = [line[3:] for line in own if line.startswith("0::")]
    (base / "session" / "cgroup.procs").write_text(str(os.getpid()))
    try:
        assert json.loads(scene.start())["ready"]
    finally:
        Path(f"{mounted()}{path}", "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture(params=USERS)
def delegated(request: pytest.FixtureRequest) -> Iterator[tuple[Scene, Path]]:
    with staged(request.param) as scene, subtree(scene.who.uid) as base:
        start(scene, base)
        yield scene, base
        scene.root.stop()
        until(lambda: not left(base))
        assert not (scene.root.path / "cgroups").exists()


def test_limits_hold_for_the_whole_child_and_nothing_is_left(
    delegated: tuple[Scene, Path],
) -> None:
    scene, base = delegated
    task = scene.task(LIMITS)
    (name,) = scene.root.spawn(task, sh("touch up; sleep 60"))
    until((scene.root.folder(task, name) / "workspace" / "up").exists)
    (folder,) = [Path(path) for path in left(base) if Path(path, "memory.max").exists()][1:]
    assert (folder / "memory.max").read_text().strip() == str(64 << 20)
    assert (folder / "pids.max").read_text().strip() == "20"
    assert (folder / "cpu.max").read_text().strip() == "50000 100000"
    assert len((folder / "cgroup.procs").read_text().split()) == 2, "its first process is outside"
    scene.root.call("subagent.cancel", task=task, subagent=name, kill=True)
    until(lambda: not folder.exists())


def test_an_end_by_the_oom_killer_is_told(delegated: tuple[Scene, Path]) -> None:
    scene, _ = delegated
    (result,) = scene.root.run(scene.task(LIMITS), python(SHARED))
    assert result["status"] == "error"
    assert "of it at the memory limit of 64 MB for all of them" in result["error"]
    assert "the kernel ended" in result["error"]


def test_the_limit_on_processes_is_known_for_sure(delegated: tuple[Scene, Path]) -> None:
    scene, _ = delegated
    (result,) = scene.root.run(scene.task(LIMITS), python(FORKS))
    assert "(at the process limit of 20)" in result["error"]


def test_doctor_says_that_limits_hold_for_the_whole_child(delegated: tuple[Scene, Path]) -> None:
    scene, _ = delegated
    found = scene.root.call("doctor")["isolation"]
    assert found["limits"] == "for each process, and by cgroup v2 for the whole child"


def test_what_a_killed_steward_left_is_removed_by_the_next(delegated: tuple[Scene, Path]) -> None:
    scene, base = delegated
    task = scene.task(LIMITS)
    (name,) = scene.root.spawn(task, sh("touch up; while [ ! -e go ]; do sleep 0.05; done; echo x"))
    workspace = scene.root.folder(task, name) / "workspace"
    until((workspace / "up").exists)
    scene.root.kill()
    assert len(left(base)) == 2, "its child goes on in its cgroup"
    # Elsewhere than before: only the note in the root leads there.
    assert json.loads(scene.start())["ready"]
    assert len(left(base)) == 2
    (workspace / "go").touch()
    until(lambda: scene.root.rows(task)[name]["state"] == "closed")
    until(lambda: not left(base))
