"""What a long history costs those who look: nothing."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import retinue
from core import ECHO, stewarded, task
from measure import Act, Figure, Sample, in_turns, median_ms, p99_ms
from retinue.store.database import DATABASE, Database
from retinue.store.event_log import EventLogWriter
from retinue.store.reads import Records

# How each table tells subagent-1's rows again, for number n; :events are the events of each.
TOLD_AGAIN = {
    "sub_agents": {
        "sub_agent_id": "'subagent-' || n",
        "step_idx": "n - 1",
        "settled_seq": "t.settled_seq + (n - 1) * :events",
    },
    "attempts": {"sub_agent_id": "'subagent-' || n"},
    "results": {"sub_agent_id": "'subagent-' || n"},
    "events": {
        "sub_agent_id": "'subagent-' || n",
        "step_idx": "n - 1",
        "seq": "t.seq + (n - 1) * :events",
    },
}
NUMBERS = "WITH RECURSIVE c(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM c WHERE n < :count)"


async def history(counts: list[int], rounds: int) -> list[Figure]:
    """`list`, `show` and wait-any, in turns with few and with many closed subagents."""
    async with AsyncExitStack() as stack:
        grown = {count: await stack.enter_async_context(_grown(count)) for count in counts}
        looks = {
            f"{verb} {count}": _look(verb, *work)
            for count, work in grown.items()
            for verb in ("list", "show", "wait_any")
        }
        taken = await in_turns(rounds, looks)
    figures = []
    few, many = counts[0], counts[-1]
    for verb, spoken in (("list", "list"), ("show", "show"), ("wait_any", "wait-any")):
        ms = {count: median_ms(taken[f"{verb} {count}"]) for count in counts}
        tail = {count: p99_ms(taken[f"{verb} {count}"]) for count in counts}
        figures.append(
            Figure(
                spoken,
                ms[many] / ms[few],
                f"x from {few:,} to {many:,} closed subagents",
                1.5,
                ours=Sample(f"of {many:,}", ms[many], tail[many]),
                floor=Sample(f"of {few:,}", ms[few], tail[few]),
                curve=[(float(count), each) for count, each in ms.items()],
                axes="closed subagents, ms",
            )
        )
    return figures


def _look(verb: str, opened: retinue.Retinue, name: str) -> Act:
    work = opened.task(name)

    async def listed() -> None:
        assert len(await work.subagents(limit=10)) == 10  # the same answer, however many there are

    async def shown() -> None:
        await opened.call("subagent.show", task=name, subagent="subagent-5")

    async def awaited() -> None:
        await work.wait_any(5, peek=True)  # all but the last have been delivered

    return {"list": listed, "show": shown, "wait_any": awaited}[verb]


@asynccontextmanager
async def _grown(count: int) -> AsyncIterator[tuple[retinue.Retinue, str]]:
    """A task with so many closed subagents, each like the one real one among them."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / ".retinue"
        async with stewarded(root) as opened:
            made = await task(opened, "inherited", 4)
            await made.run([retinue.Brief(argv=ECHO, retries=0, id="subagent-1")])
        with closing(sqlite3.connect(root / DATABASE)) as database:
            _tell_again(database, count)
            database.commit()
        _export(root)
        async with stewarded(root) as opened:
            yield opened, made.id


def _tell_again(database: sqlite3.Connection, count: int) -> None:
    one = "SELECT count(*) FROM events WHERE sub_agent_id = 'subagent-1'"
    ((each,),) = database.execute(one)
    told = {"count": count, "events": each}
    for table, changed in TOLD_AGAIN.items():
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        values = ", ".join(changed.get(name, f"t.{name}") for name in columns)
        database.execute(
            f"INSERT INTO {table} {NUMBERS} SELECT {values} FROM c, "
            f"(SELECT * FROM {table} WHERE sub_agent_id = 'subagent-1') t",
            told,
        )
    database.execute("UPDATE tasks SET last_seq = (SELECT max(seq) FROM events)")
    database.execute("UPDATE runs SET next_step = :count", {"count": count})
    database.execute(
        "INSERT OR REPLACE INTO deliveries SELECT task_id, 'default', settled_seq, sub_agent_id, 1 "
        "FROM sub_agents ORDER BY settled_seq LIMIT (SELECT count(*) - 1 FROM sub_agents)"
    )


def _export(root: Path) -> None:
    """The log has every event, before a steward is given its time to start."""
    database = Database(root / DATABASE)
    records = Records(database)
    EventLogWriter(root / "tasks", records, print).write_all_missing_events(
        records.list_last_seqs()
    )
    database.close()
