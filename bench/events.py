"""Events: how many become durable in a second, and how soon the log has them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import retinue
from core import ECHO, stewarded, task
from measure import Figure, Sample, p99_ms
from retinue.clock import get_timestamp
from retinue.core.contract import Contract, Execution, Outputs, Parent, Step
from retinue.core.events import SUBAGENT_CLOSED, TASK_CREATED, Event
from retinue.core.ids import RunId, SubagentId, TaskId
from retinue.core.subagent import Attempt, Draft, Subagent, Task
from retinue.ports import Admission, EventFacts
from retinue.steward import event_factory
from retinue.steward.journal import Journal
from retinue.store.database import DATABASE, Database
from retinue.store.event_log import EventLogWriter
from retinue.store.reads import Records
from retinue.store.sqlite_store import SqliteStore

TASK, RUN = TaskId("bench"), RunId("run-1")


async def events(rounds: int, writers: int = 32) -> list[Figure]:
    """So many lives record at once, each the next event when its last one is durable."""
    ours: list[float] = []
    floor: list[float] = []
    used: list[float] = []
    for _ in range(3):
        floor.append(_bare(rounds, writers))
        began = time.process_time()
        ours.append(await _recorded(rounds, writers))
        used.append(time.process_time() - began)
    of_cpu = writers * rounds / statistics.median(used)
    rate, least = statistics.median(ours), statistics.median(floor)
    lag, seen = await _lag(writers * 8)
    return [
        Figure(
            "events",
            rate,
            f"durable events a second from {writers} writers",
            10_000,
            at_least=True,
            ours=Sample("journal, rows and log", rate, unit="/s"),
            floor=Sample(f"bare rows, {writers} to a commit", least, unit="/s"),
            details={"per_cpu_second": of_cpu},
            note=f"In a second of its own CPU it records {of_cpu:,.0f}: each event is checked "
            "against where its subagent stands, and takes two statements and a line in the log. "
            "The rest of the time it waits for the disk or for its turn, as the floor does.",
        ),
        Figure(
            "events.jsonl",
            p99_ms(lag),
            f"ms p99 behind, {writers} children at once",
            50,
            ours=Sample("behind the event", statistics.median(lag) * 1000, p99_ms(lag)),
            details={"events_per_second_of_no_ops": seen},
            note=f"The last of it is one call that creates {writers * 8} subagents: their lines "
            "come together, when all of them are durable, at about 0.1 ms each; what follows is "
            "some 15 ms behind at most.",
        ),
    ]


async def _recorded(rounds: int, writers: int) -> float:
    """Events a second through the journal, each with its row and its line in the log."""
    with _journal() as journal:
        lives = _running(journal, writers)

        async def write(subagent: Subagent) -> None:
            for number in range(rounds):
                new = event_factory.make_message_sent(subagent, "parent", f"message {number}")
                await journal.record_soon(TASK, [new], EventFacts())

        began = time.perf_counter()
        await asyncio.gather(*map(write, lives))
        return writers * rounds / (time.perf_counter() - began)


@contextmanager
def _journal() -> Iterator[Journal]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / TASK).mkdir()
        database = Database(Path(folder) / DATABASE)
        records = Records(database)
        exporter = EventLogWriter(Path(folder), records, print)
        try:
            yield Journal(SqliteStore(database, records, get_timestamp), [exporter])
        finally:
            database.close()


def _running(journal: Journal, count: int) -> list[Subagent]:
    """Subagents that run, as the store knows them."""
    at = get_timestamp()
    made = Task(
        id=TASK,
        run=RUN,
        title="bench",
        description="",
        state="open",
        outcome="running",
        created_at=at,
        updated_at=at,
    )
    journal.create_task(made, Event(type=TASK_CREATED, summary="bench"))
    contract = Contract(
        parent=Parent(run_id=RUN, step_idx=0, task_prompt="", goal_summary=""),
        step=Step(title="bench", description=""),
        execution=Execution(attempt_timeout_ms=1000),
        outputs=Outputs(),
    )
    drafts = [Draft(id=SubagentId(f"s{each}"), contract=contract) for each in range(count)]
    found = journal.admit(TASK, Admission(drafts=tuple(drafts), by="parent", limit=count))
    up = Attempt(number=1, boot_id="", pid=1, start_ticks=1, started_at="", started_monotonic_ms=1)
    for subagent in found:
        journal.record(TASK, event_factory.make_started(subagent, up), EventFacts(attempt=up))
    return found


def _bare(rounds: int, writers: int) -> float:
    """Rows a second into a database that does nothing else, as durable, in the same groups."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(sqlite3.connect(f"{folder}/bare.db", isolation_level=None)) as database,
    ):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, text TEXT)")
        began = time.perf_counter()
        for _ in range(rounds):
            database.execute("BEGIN")
            rows = [("x" * 300,)] * writers
            database.executemany("INSERT INTO events (text) VALUES (?)", rows)
            database.execute("COMMIT")
        return writers * rounds / (time.perf_counter() - began)


async def _lag(children: int) -> tuple[list[float], float]:
    """Seconds from each event to its line in the log, and how many came in a second."""
    late: list[float] = []
    async with stewarded() as opened:
        work = await task(opened, "inherited", 32)
        folder = Path((await opened.call("task.show", task=work.id))["path"])
        words = ("tail", "-n", "+1", "-f", str(folder / "events.jsonl"))
        tail = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        assert tail.stdout is not None
        await tail.stdout.readline()  # what was there before; from now on it follows
        running = asyncio.create_task(
            work.run([retinue.Brief(argv=ECHO, retries=0)] * children, queue=True)
        )
        began, closed = time.time(), 0
        while closed < children:
            line = json.loads(await tail.stdout.readline())
            late.append(time.time() - datetime.fromisoformat(line["ts"]).timestamp())
            closed += line["type"] == SUBAGENT_CLOSED
        seconds = time.time() - began
        await running
        tail.terminate()
        await tail.wait()
    return late[1:], len(late) / seconds
