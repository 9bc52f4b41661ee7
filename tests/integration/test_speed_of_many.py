"""Speed with many children or a long history that only a broken design loses.

Margins are several times what the benchmarks ask for, against an interpreter's start in turns.
"""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from integration.test_speed import interpreter
from support.roots import Root, command, held

MANY = 24
CANCEL_MOST = 3.0  # interpreter's starts for each; one grace that is waited for takes forty
RESTART_MOST = 3 * 55.0  # half a second where that start takes 9 ms


def sleeping(root: Root) -> str:
    """A task with many children that do nothing."""
    task = root.create_task(limit=MANY)
    root.spawn(task, *[command("sleep", "60")] * MANY)
    return task


def test_many_are_cancelled_side_by_side(tmp_path: Path) -> None:
    with held(tmp_path / ".retinue") as root:
        task = sleeping(root)
        floor = min(interpreter() for _ in range(5))
        began = time.perf_counter()
        ended = root.call("task.cancel", task=task)
        taken = (time.perf_counter() - began) / MANY
    assert len(ended["cancelled"]) == MANY
    assert taken < CANCEL_MOST * floor


def test_a_new_steward_has_soon_adopted_many(tmp_path: Path) -> None:
    with held(tmp_path / ".retinue") as root:
        sleeping(root)
        root.kill()
        floor = min(interpreter() for _ in range(5))
        began = time.perf_counter()
        alive = root.call("steward.status")["subagents"]["alive"]
        taken = time.perf_counter() - began
    assert alive == MANY
    assert taken < RESTART_MOST * floor


def test_delivered_results_are_not_read_again() -> None:
    """Counted in steps of the database, which no busy machine changes."""
    assert steps_to_the_next(5_000) <= 2 * steps_to_the_next(50)


def steps_to_the_next(told: int) -> int:
    """How much a database does to find who settled after so many that the consumer was told of."""
    store = files("retinue.store")
    queries = re.split(r"^-- name: (\w+)\n", store.joinpath("queries.sql").read_text(), flags=re.M)
    query = queries[queries.index("next_settled") + 1]
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(store.joinpath("schema.sql").read_text())
        database.execute("INSERT INTO tasks VALUES ('t', '', '', 'open', '', '', 0)")
        database.execute("INSERT INTO runs VALUES ('r', 't', 'running', 0, '', '')")
        database.executemany(
            "INSERT INTO sub_agents VALUES ('t', 's' || :n, 'r', :n, '', '', 'closed', 1, 0, 0, "
            "0, '', '', 0, 1 + :n, 'completed', 'accepted', '', '', '', 0)",
            [{"n": number} for number in range(told + 1)],
        )
        database.executemany(
            "INSERT INTO deliveries VALUES ('t', 'c', 1 + :n, 's' || :n, 1)",
            [{"n": number} for number in range(told)],
        )
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        database.set_progress_handler(step, 1)
        found = database.execute(query, {"task_id": "t", "consumer": "c", "held": "[]"}).fetchall()
        assert found == [(f"s{told}",)]
        return steps
