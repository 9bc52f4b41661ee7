"""A root of its own for a test, held by a real steward that is gone when the test is over."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from retinue.client.blocking_client import Client, connect_if_running
from retinue.core.errors import RetinueError

BOUND_S = 20.0
ROUNDS = int(os.environ.get("RETINUE_FAULT_ROUNDS", "0"))

CONFIG = """
orchestrator:
  coordination:
    subagent_default_timeout: 20
    subagent_min_timeout: 0.1
    subagent_max_concurrent: {limit}
    subagent_cancel_grace_seconds: [0.4, 0.3]
    subagent_runtime_mode: inherited
"""

MOVING = re.compile(
    r"^retinue\.db|^steward\.log$|^(tasks/)?[^/]+/(task\.yaml|status\.json|metrics_summary\.json)$"
    r"|\.new$"
)

Value = TypeVar("Value")
Row = dict[str, Any]


def rounds(usual: int) -> int:
    """How often a race is run: as usual, unless RETINUE_FAULT_ROUNDS asks for more."""
    return max(usual, ROUNDS)


def sh(script: str, **terms: Any) -> Row:
    """A brief that runs a shell script, without a second try."""
    return command("sh", "-c", script, **terms)


def python(script: str, **terms: Any) -> Row:
    """A brief that runs a Python script, without a second try."""
    return command("python3", "-I", "-S", "-c", script, **terms)


def command(*argv: str, **terms: Any) -> Row:
    return {"argv": list(argv), "context_paths": [], "max_retries": 0} | terms


def complete_lines(log: Path) -> list[bytes]:
    """The lines of a log without the end of an append that is still in progress."""
    text = log.read_bytes()
    return text[: text.rfind(b"\n") + 1].splitlines()


class Root:
    """A root and its steward: verbs are called, files are read without the steward's word."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clients: list[Client] = []
        self._mine = threading.local()

    @property
    def pid(self) -> int:
        return int(self.call("steward.status")["pid"])

    def client(self) -> Client:
        """A connection of its own."""
        with as_owner(self.path):
            client = Client(self.path)
        self._clients.append(client)
        return client

    def call(self, verb: str, **params: Any) -> Any:
        """The verb's answer, over one connection for each thread."""
        if not hasattr(self._mine, "client"):
            self._mine.client = self.client()
        return self._mine.client.call(verb, **params)

    def create_task(self, limit: int = 20, more: str = "", **params: Any) -> str:
        """`more` are further lines of the configuration, indented as its coordination is."""
        text = CONFIG.format(limit=limit) + more
        answer = self.call("task.create", title="t", config_text=text, **params)
        return str(answer["task_id"])

    def spawn(self, task: str, *briefs: Row, **options: Any) -> list[str]:
        answer = self.call("subagent.spawn", task=task, tasks=list(briefs), **options)
        return [row["subagent_id"] for row in answer["subagents"]]

    def run(self, task: str, *briefs: Row, **options: Any) -> list[Row]:
        """The results of a whole call."""
        answer = self.call("subagent.spawn", task=task, tasks=list(briefs), wait=True, **options)
        results: list[Row] = answer["results"]
        return results

    def refusal(self, verb: str, **params: Any) -> RetinueError:
        with pytest.raises(RetinueError) as refused:
            self.call(verb, **params)
        assert refused.value.code != "internal", refused.value.message
        return refused.value

    def rows(self, task: str) -> dict[str, Row]:
        rows = self.call("subagent.list", task=task, limit=100_000)
        return {row["agentInstance"]: row for row in rows}

    def task_folder(self, task: str) -> Path:
        return self.path / "tasks" / task

    def folder(self, task: str, subagent: str) -> Path:
        return self.task_folder(task) / "agents" / subagent

    def events(self, task: str, subagent: str | None = None) -> list[Row]:
        """The events in events.jsonl, of one subagent if it is named."""
        lines = complete_lines(self.task_folder(task) / "events.jsonl")
        return [
            event
            for event in map(json.loads, lines)
            if subagent is None or event["agentInstance"] == subagent
        ]

    def types(self, task: str, subagent: str) -> list[str]:
        """What became of one subagent, without the prefix of its events."""
        return [event["type"].removeprefix("agent.") for event in self.events(task, subagent)]

    def counts(self) -> dict[str, int]:
        """How many rows every table has."""
        database = sqlite3.connect(f"file:{self.path / 'retinue.db'}?mode=ro", uri=True)
        with closing(database):
            tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            return {
                name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
                for (name,) in tables.fetchall()
            }

    def state(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Everything durable: files with their bytes, rows by their number."""
        return tree(self.path), self.counts()

    def sound(self) -> None:
        """Nothing disagrees, by the steward's own check."""
        problems = self.call("verify")["problems"]
        assert not problems, problems

    def kill(self) -> None:
        """The steward is dead without having been warned."""
        self.release()
        if (pid := holder(self.path)) is not None:
            os.kill(pid, signal.SIGKILL)
            _await_end(pid)

    def stop(self) -> None:
        """No steward holds the root any more; the subagents go on."""
        self.release()
        pid = holder(self.path)
        if pid is None:
            return
        with suppress(RetinueError, OSError), closing(self.client()) as client:
            client.call("steward.stop")
        if not _await_end(pid, bound_s=10.0):
            os.kill(pid, signal.SIGKILL)
            _await_end(pid)

    def release(self) -> None:
        """No connection of this test is left."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._mine = threading.local()


def holder(path: Path) -> int | None:
    """The steward that answers for a root, if one does."""
    with as_owner(path):
        connection = connect_if_running(path)
    if connection is None:
        return None
    connection.close()
    return int((path / "steward.lock").read_text())


@contextmanager
def as_owner(path: Path) -> Iterator[None]:
    """Within, this process is the user whom a root belongs to: no other is a client of its steward.

    Only for as long as it takes to connect: the steward asks the kernel who did that.
    """
    owner = path.stat().st_uid if path.exists() else os.geteuid()
    if os.geteuid() != 0 or owner == 0:
        yield
        return
    os.seteuid(owner)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def held(path: Path) -> Iterator[Root]:
    """A root whose subagents and steward are gone at the end."""
    root = Root(path)
    try:
        yield root
    finally:
        root.release()
        if holder(path) is not None:
            with suppress(RetinueError), closing(root.client()) as client:
                for task in client.call("task.list"):
                    client.call("task.cancel", task=task["task_id"], kill=True)
        root.stop()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """One root for all tests of a module, which have tasks of their own in it."""
    project = tmp_path_factory.mktemp("project")
    with held(project / ".retinue") as root:
        yield root


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Root]:
    """A root for one test alone, which may kill its steward or spoil its files."""
    (tmp_path / "project").mkdir()
    with held(tmp_path / "project" / ".retinue") as root:
        yield root


@pytest.fixture
def task(root: Root) -> str:
    return root.create_task()


def tree(top: Path) -> dict[str, Any]:
    """Every path below with its kind, mode and content.

    Of SQLite's own files only that they are there, because reading moves them; likewise of
    what is told from the database, because that may be told a little later.
    """
    found: dict[str, Any] = {}
    for folder, folders, files in os.walk(top):
        for name in [*folders, *files]:
            path = Path(folder, name)
            key = str(path.relative_to(top))
            with suppress(FileNotFoundError):  # a file on its way to its place
                mode = path.lstat().st_mode
                if path.is_symlink():
                    found[key] = ("link", os.readlink(path))
                elif path.is_file() and not MOVING.search(key):
                    found[key] = (mode, path.lstat().st_mtime_ns, path.read_bytes())
                elif not key.endswith((".new", "/status.json", "/metrics_summary.json")):
                    found[key] = mode
    return found


def until(holds: Callable[[], Value], bound_s: float = BOUND_S) -> Value:
    """The first truthy value, asked for again and again; fails when there is none in time."""
    end = time.monotonic() + bound_s
    while not (value := holds()):
        assert time.monotonic() < end, f"not within {bound_s} s"
        time.sleep(0.005)
    return value


def at_once(*acts: Callable[[], Value]) -> list[Value | RetinueError]:
    """What each gave or raised, all begun at the same moment in threads of their own."""
    barrier = threading.Barrier(len(acts))
    outcomes: list[Value | RetinueError | None] = [None] * len(acts)

    def perform(number: int, act: Callable[[], Value]) -> None:
        barrier.wait(BOUND_S)
        try:
            outcomes[number] = act()
        except RetinueError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=perform, args=each) for each in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S * 3)
    assert not any(thread.is_alive() for thread in threads), "one never came back"
    return [outcome for outcome in outcomes if outcome is not None]


def _await_end(pid: int, bound_s: float = BOUND_S) -> bool:
    """Whether the process is gone in time; reaped where it is ours to reap."""
    end = time.monotonic() + bound_s
    while time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return True
        except ChildProcessError:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
        time.sleep(0.005)
    return False
