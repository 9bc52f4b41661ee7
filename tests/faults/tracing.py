"""A steward under strace, which kills it or fails it at a chosen system call on a chosen file."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from retinue.core.errors import BadInput, RetinueError, StewardUnavailable
from support.roots import Root, sh, until

DURABLE = ("pwrite64", "fdatasync", "fsync", "write", "rename", "ftruncate")
NAMES = ("a", "b")
TASK = "t"
STRACE = shutil.which("strace") or ""


def usable() -> bool:
    """Whether strace may trace here at all."""
    if not STRACE:
        return False
    asked = [STRACE, "-qq", "-o", "/dev/null", "true"]
    return subprocess.run(asked, capture_output=True).returncode == 0


def watched(root: Path) -> list[Path]:
    """The files whose writing is acknowledged to someone."""
    task = root / "tasks" / TASK
    paths = [root / "retinue.db", root / "retinue.db-wal"]
    paths += [task, task / "events.jsonl", task / "task.yaml", task / ".task.yaml.new"]
    for name in NAMES:
        agent = task / "agents" / name
        paths += [agent / ".contract.json.new", agent / ".result.json.new"]
    return paths


@contextmanager
def traced(root: Path, *options: str) -> Iterator[dict[str, Any]]:
    """What a steward says as it starts: that it is ready, why it cannot be, or nothing at all."""
    root.mkdir(mode=0o700, exist_ok=True)
    ours, theirs = os.pipe()
    paths = [word for path in watched(root) for word in ("-P", str(path))]
    steward = [sys.executable, "-P", "-m", "retinue.steward", str(root), str(theirs)]
    words = [STRACE, "-qq", "-e", f"trace={','.join(DURABLE)}", *options, *paths, *steward]
    with open(root / "steward.log", "ab") as log:
        process = subprocess.Popen(words, pass_fds=[theirs], stderr=log, start_new_session=True)
    os.close(theirs)
    try:
        assert select.select([ours], [], [], 30)[0], "neither ready nor dead"
        said = os.read(ours, 65536)
        yield json.loads(said) if said else {}
    finally:
        os.close(ours)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0 if process.poll() is not None else 10)
        process.kill()
        process.wait()


def count_calls(log: Path) -> list[tuple[str, int]]:
    """Every durable system call of a traced run, as its name and its number among its kind."""
    calls = Counter(line.partition("(")[0] for line in log.read_text().splitlines())
    return [(name, n) for name in DURABLE for n in range(1, calls[name] + 1)]


class Play:
    """The whole path of two children, verb after verb, each repeated until it is done."""

    def __init__(self, root: Root, *, tries: int = 5) -> None:
        self.root = root
        self.tries = tries
        self.refusals: list[RetinueError] = []
        self.refused: Callable[[], None] | None = None  # what was given up

    def run(self) -> bool:
        """Whether it came to its end before the steward did."""
        try:
            self._until_done(self._create)
            self._until_done(self._spawn)
            self.root.call("subagent.wait_all", task=TASK, timeout_seconds=30)
        except StewardUnavailable:
            return False
        finally:
            self.root.release()
        return True

    def _until_done(self, verb: Callable[[], None]) -> None:
        for _ in range(self.tries):
            try:
                verb()
                return
            except StewardUnavailable:
                raise
            except RetinueError as refusal:
                self.refusals.append(refusal)
                self.check_refused(verb)
        self.refused = verb
        raise StewardUnavailable("given up")

    def _create(self) -> None:
        try:
            self.root.create_task(task_id=TASK)
        except BadInput as error:
            assert error.code == "duplicate_id"  # by an earlier call that was not answered

    def _spawn(self) -> None:
        briefs = [sh("echo >> ran; echo done", subagent_id=name) for name in NAMES]
        assert self.root.spawn(TASK, *briefs, key="one") == list(NAMES)

    def check_refused(self, verb: Callable[[], None]) -> None:
        """Nothing of what was refused exists."""
        if verb == self._create:
            assert self.root.call("task.list") == []
            assert not self.root.task_folder(TASK).exists()
        else:
            assert self.root.call("subagent.list", task=TASK) == []

    def ran(self) -> list[int]:
        """How often each command was run."""
        paths = [self.root.folder(TASK, name) / "workspace" / "ran" for name in NAMES]
        return [len(path.read_text().splitlines()) if path.exists() else 0 for path in paths]


def await_free(root: Path) -> None:
    """Nobody holds the root's lock any more."""

    def free() -> bool:
        with open(root / "steward.lock", "ab") as lock, suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    if (root / "steward.lock").exists():
        until(free)
