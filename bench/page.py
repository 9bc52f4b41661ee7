"""The page with a long history: how soon it is there, how soon an event is on it, what it takes."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import retinue
from core import ECHO, stewarded, task
from measure import Figure, resident_kb

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.browser import Page, browsing
from support.page import served

CLONED = ("sub_agents", "attempts", "results", "events")
THERE = "document.querySelector('.lane[href]') && document.querySelector('.event[id]')"
# Notes when each event was drawn, by its number.
WATCH = """
window.drawn = {};
new MutationObserver(() => {
  for (const row of document.querySelectorAll('.event[id]')) {
    window.drawn[row.id.slice(6)] ??= [Date.now(), row.querySelector('time').dateTime];
  }
}).observe(document.querySelector('.events-list'), { childList: true, subtree: true });
"""


async def page(subagents: int, rounds: int) -> list[Figure]:
    """First paint, event to screen and memory; each subagent has eight events."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / ".retinue"
        name = await _grown(root, subagents)
        async with stewarded(root) as opened:
            pid = (await opened.call("steward.status"))["pid"]
            with served(root) as ui, browsing() as browser:
                ui.enter()
                tab = browser.page()
                tab.admit(ui.base, ui.cookie, ui.word)
                paint = _first_paint(tab, f"{ui.base}/tasks/{name}", 5)
                before = resident_kb(pid)
                heap = _scrolled(tab)
                late = await _lateness(tab, opened, name, rounds)
                grown = (resident_kb(pid) - before) / 1024
                own = resident_kb(ui.process.pid) / 1024
    note = f"{subagents} subagents, {subagents * 8} events"
    return [
        Figure("page", paint, f"ms to first paint, {note}", 1000),
        Figure("page live", statistics.median(late), "ms from event to screen", 150),
        Figure("page memory", heap, "MB of script after scrolling", 64),
        Figure("page steward", grown, "MB more in the steward", 16, details={"ui_mb": own}),
    ]


def _first_paint(tab: Page, url: str, rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        tab.goto(url)
        tab.until(f"location.href === {url!r} && {THERE} && true")
        drawn = "new Promise(done => requestAnimationFrame(() => done(performance.now())))"
        taken.append(float(tab.js(drawn)))
    return statistics.median(taken)


def _scrolled(tab: Page) -> float:
    """Megabytes of the page's own after all pages were opened."""
    for box in (".lanes .virtual", ".events-list .virtual"):
        for place in range(0, 101, 4):
            tab.js(
                f"(box => {{ box.scrollTop = box.scrollHeight * {place / 100}; }})"
                f"(document.querySelector('{box}'))"
            )
            tab.until(f"!document.querySelector('{box} .event.waiting, {box} .lane.none')")
    tab.js("document.querySelector('.events-list .virtual').scrollTop = 0")
    tab.call("HeapProfiler.collectGarbage")
    metrics = tab.call("Runtime.getHeapUsage")
    return float(metrics["usedSize"]) / 1024 / 1024


async def _lateness(tab: Page, opened: retinue.Retinue, name: str, rounds: int) -> list[float]:
    """Milliseconds between the recording of each event and its row on the screen."""
    tab.until("document.querySelector('.link.live')")
    tab.js(WATCH)
    for _ in range(rounds):
        await opened.call(
            "subagent.spawn", task=name, tasks=[{"argv": ECHO, "context_paths": []}], wait=True
        )
        last = (await opened.call("look.task", task=name))["last_seq"]
        await asyncio.to_thread(tab.until, f"window.drawn[{last}]")
    drawn: dict[str, Any] = tab.js(
        "Object.fromEntries(Object.entries(window.drawn)"
        ".map(([seq, [at, ts]]) => [seq, at - Date.parse(ts)]))"
    )
    newest = sorted(map(int, drawn), reverse=True)[: rounds * 8]
    return [float(drawn[str(seq)]) for seq in newest]


async def _grown(root: Path, subagents: int) -> str:
    """A task whose history is one real subagent's, told again for each of the others."""
    async with stewarded(root) as opened:
        made = await task(opened, "inherited", 4)
        await made.run([retinue.Brief(argv=ECHO, retries=0, id="subagent-1")])
    with closing(sqlite3.connect(root / "retinue.db")) as database:
        _clone(database, made.id, subagents)
        database.commit()
    return made.id


def _clone(database: sqlite3.Connection, name: str, subagents: int) -> None:
    database.row_factory = sqlite3.Row
    first = {
        table: [
            dict(row)
            for row in database.execute(f"SELECT * FROM {table} WHERE sub_agent_id = 'subagent-1'")
        ]
        for table in CLONED
    }
    (last,) = database.execute("SELECT last_seq FROM tasks").fetchone()
    for step in range(1, subagents):
        for table, rows in first.items():
            for row in rows:
                changed = row | {"sub_agent_id": f"subagent-{step + 1}"}
                if "step_idx" in row:
                    changed["step_idx"] = step
                if table == "sub_agents":
                    changed["settled_seq"] = last + len(first["events"]) - 1
                if table == "events":
                    last += 1
                    changed["seq"] = last
                marks = ", ".join("?" * len(changed))
                database.execute(f"INSERT INTO {table} VALUES ({marks})", list(changed.values()))
    database.execute("UPDATE tasks SET last_seq = ? WHERE task_id = ?", (last, name))
    database.execute("UPDATE runs SET next_step = ? WHERE task_id = ?", (subagents, name))
