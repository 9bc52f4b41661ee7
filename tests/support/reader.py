"""An independent reader of a root: it shares no code with the product and trusts none of it.

`Reader.check` asserts what must hold of events, rows, logs and results after any crash:

I1  every created subagent has at most one `closed` event, and one once all is finished;
I2  the delegation-level events spell `created started attempt* (waiting … | failed) closed`;
I3  the log only ever grows, and its numbers have no gap and no repetition;
I4  the rows are what the events make of them;
I5  a result that was there stays there, to the byte.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]

SPELLED = {
    "agent.subagent_created": "c",
    "agent.subagent_started": "s",
    "agent.subagent_attempt": "a",
    "agent.subagent_waiting_for_merge": "w",
    "agent.output_accepted": "i",
    "agent.worktree_merged": "i",
    "agent.output_copied": "i",
    "agent.worktree_merge_failed": "i",
    "agent.subagent_failed": "f",
    "agent.subagent_closed": "z",
}
JOINS = (
    "agent.output_accepted",
    "agent.worktree_merged",
    "agent.output_copied",
    "agent.worktree_merge_failed",
)
CLOSE_REASONS = {
    "merged", "no_changes", "copied", "accepted", "execution_failed", "timeout",
    "budget_exceeded", "policy_violation", "merge_conflict", "merge_refused", "check_failed",
    "cancelled_by_user", "cancelled_by_parent", "blocked_unresolved", "supervisor_lost",
    "node_lost", "review_rejected",
}  # fmt: skip
WHOLE = re.compile("csa*(wi*|f)z")
BEGINNING = re.compile("c(s(a*((wi*|f)z?)?)?)?")


class Reader:
    """Looks at one root again and again, and remembers what it saw."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._logs: dict[str, bytes] = {}
        self._results: dict[tuple[str, str], str] = {}

    def check(self, *, finished: bool, only: Collection[str] | None = None) -> None:
        """I1 to I5 hold, of every task or of those named.

        Unfinished, a steward may be at work or have been killed: then the log may lag behind the
        database, by whole lines or by the end of one.
        """
        chosen = self._tasks(finished) if only is None else list(only)
        logs = {task: self._log(task) for task in chosen}  # first: the database is never behind
        with _database(self._root) as database:
            for task in chosen:
                told = _events(database, task)
                self._check_log(task, logs[task], told, finished)
                self._check_rows(database, task, told, finished)

    def results(self, task: str) -> dict[str, str]:
        """The texts of the task's results, as the database holds them."""
        with _database(self._root) as database:
            rows = _rows(database, "SELECT * FROM results WHERE task_id = ?", task)
        return {row["sub_agent_id"]: row["result_json"] for row in rows}

    def subagents(self, task: str) -> dict[str, Row]:
        with _database(self._root) as database:
            rows = _rows(database, "SELECT * FROM sub_agents WHERE task_id = ?", task)
        return {row["sub_agent_id"]: row for row in rows}

    def attempts(self, task: str, subagent: str) -> list[Row]:
        asked = "SELECT * FROM attempts WHERE task_id = ? AND sub_agent_id = ? ORDER BY number"
        with _database(self._root) as database:
            return _rows(database, asked, task, subagent)

    def _tasks(self, finished: bool) -> list[str]:
        with _database(self._root) as database:
            known = [row["task_id"] for row in _rows(database, "SELECT task_id FROM tasks")]
        folders = {path.name for path in (self._root / "tasks").iterdir()}
        astray = folders ^ set(known) if finished else set(known) - folders
        assert not astray, f"folders without rows, or the reverse: {astray}"
        return known

    def _log(self, task: str) -> bytes:
        path = self._root / "tasks" / task / "events.jsonl"
        return path.read_bytes() if path.exists() else b""

    def _check_log(self, task: str, log: bytes, told: list[Row], finished: bool) -> None:
        whole = log[: log.rfind(b"\n") + 1]
        lines = whole.splitlines()
        assert [event["seq"] for event in told] == [*range(1, len(told) + 1)], f"{task}: I3, gaps"
        assert [json.loads(line) for line in lines] == told[: len(lines)], f"{task}: I3, log"
        before = self._logs.get(task, b"")
        assert whole.startswith(before), f"{task}: I3, the log did not only grow"
        self._logs[task] = whole
        if finished:
            assert whole == log, f"{task}: I3, a torn line was left"
            assert len(lines) == len(told), f"{task}: I3, the log is behind the database"

    def _check_rows(
        self, database: sqlite3.Connection, task: str, told: list[Row], finished: bool
    ) -> None:
        rows = {
            row["sub_agent_id"]: row
            for row in _rows(database, "SELECT * FROM sub_agents WHERE task_id = ?", task)
        }
        results = {
            row["sub_agent_id"]: row["result_json"]
            for row in _rows(database, "SELECT * FROM results WHERE task_id = ?", task)
        }
        stories: dict[str, list[Row]] = {}
        for event in told:
            if event["agentInstance"] is not None:
                stories.setdefault(event["agentInstance"], []).append(event)
        assert set(stories) == set(rows), f"{task}: I4, rows without events, or the reverse"
        for name, story in stories.items():
            _check_story(f"{task}/{name}", story, finished)
            _check_row(f"{task}/{name}", story, rows[name])
            self._check_result(task, name, rows[name], results.get(name))

    def _check_result(self, task: str, name: str, row: Row, text: str | None) -> None:
        known = self._results.get((task, name))
        if known is not None:
            assert text == known, f"{task}/{name}: I5, its result changed"
        if row["state"] != "closed":
            return
        assert text is not None, f"{task}/{name}: closed without a result"
        folder = self._root / "tasks" / task / "agents" / name
        assert (folder / "result.json").read_text() == text, f"{task}/{name}: I5, result.json"
        result = json.loads(text)
        is_there = Path(result["workspace_path"]).is_dir()
        unmade = "could not be made" in (result.get("error") or "")
        assert is_there or unmade, f"{task}/{name}: its workspace is gone"
        good = result["status"] in ("completed", "completed_but_timeout")
        assert result["success"] is good, f"{task}/{name}: I12"
        assert (row["final_status"] == "completed") is good, f"{task}/{name}: I4, final status"
        contract = (folder / "contract.json").read_bytes()
        assert hashlib.sha256(contract).hexdigest() == row["contract_sha256"], f"{task}/{name}"
        self._results[task, name] = text


def _check_story(where: str, story: list[Row], finished: bool) -> None:
    spelled = "".join(SPELLED.get(event["type"], "") for event in story)
    pattern = WHOLE if finished else BEGINNING
    assert pattern.fullmatch(spelled), f"{where}: I1, I2: its events spell {spelled}"
    if "z" in spelled:
        assert story[-1]["type"] == "agent.subagent_closed", f"{where}: I2, something after closed"
    attempts = [e["attempt"] for e in story if e["type"] == "agent.started"]
    assert attempts == sorted(set(attempts)), f"{where}: attempts {attempts}"


def _check_row(where: str, story: list[Row], row: Row) -> None:
    """I4, by a fold of its own."""
    made = {
        "state": "created",
        "attempt": 0,
        "in_attempt": 0,
        "blocked": 0,
        "cancelled": 0,
        "settled_seq": 0,
        "final_status": "",
        "close_reason": "",
        "contract_sha256": row["contract_sha256"],
    }
    for event in story:
        made |= _moved(event)
        if event["type"] in JOINS:
            made["settled_seq"] = made["settled_seq"] or event["seq"]
        made["contract_sha256"] = event["contract_sha256"]
    found = {key: row[key] for key in made}
    assert found == made, f"{where}: I4: the row says {found}, its events {made}"


def _moved(event: Row) -> Row:
    kind, seq, payload = event["type"], event["seq"], event["payload"]
    match kind:
        case "agent.subagent_started":
            return {"state": "running"}
        case "agent.started":
            return {"attempt": event["attempt"], "in_attempt": 1, "blocked": 0}
        case "agent.completed" | "agent.failed":
            return {"attempt": event["attempt"], "in_attempt": 0}
        case "agent.cancelled":
            return {"in_attempt": 0, "blocked": 0, "cancelled": 1}
        case "agent.blocked":
            return {"in_attempt": 0, "blocked": 1, "settled_seq": seq}
        case "gate.blocked":
            return {"blocked": 1}
        case "gate.answered":
            return {"blocked": 0}
        case "agent.subagent_waiting_for_merge":
            settled = 0 if payload.get("awaits") == "join" else seq
            return {"state": "waiting_for_merge", "blocked": 0, "settled_seq": settled}
        case "agent.subagent_failed":
            return {"state": "failed", "blocked": 0, "settled_seq": seq}
        case "agent.output_accepted" | "agent.worktree_merged" | "agent.output_copied":
            again = {"settled_seq": seq} if payload.get("settles") else {}
            return {"state": "completed", "blocked": 0} | again
        case "agent.worktree_merge_failed":
            again = {"settled_seq": seq} if payload.get("settles") else {}
            return {"state": "failed", "blocked": 0} | again
        case "agent.subagent_closed":
            ends = {key: payload[key] for key in ("final_status", "close_reason")}
            return {"state": "closed"} | ends
    return {}


@contextmanager
def _database(root: Path) -> Iterator[sqlite3.Connection]:
    """One view of the database, whoever writes it meanwhile."""
    connection = sqlite3.connect(f"file:{root / 'retinue.db'}?mode=ro", uri=True, timeout=10)
    with closing(connection):
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        yield connection


def _rows(database: sqlite3.Connection, query: str, *values: str) -> list[Row]:
    return [dict(row) for row in database.execute(query, values)]


def _events(database: sqlite3.Connection, task: str) -> list[Row]:
    """The task's events as lines of its log should have them."""
    rows = _rows(database, "SELECT * FROM events WHERE task_id = ? ORDER BY seq", task)
    (last,) = _rows(database, "SELECT last_seq FROM tasks WHERE task_id = ?", task)
    assert last["last_seq"] == len(rows), f"{task}: I3, the last number"
    return [_event(row) for row in rows]


def _event(row: Row) -> Row:
    name = row["sub_agent_id"]
    whose = {"agentInstance": name, "sub_agent_id": name, "step_idx": row["step_idx"]}
    return {
        "seq": row["seq"],
        "id": f"{row['task_id']}:{row['seq']}",
        "ts": row["ts"],
        "type": row["type"],
        "taskId": row["task_id"],
        "run_id": row["run_id"],
        "agentInstance": name,
        "attempt": row["attempt"] or None,
        "by": row["by"],
        "contract_sha256": row["contract_sha256"],
        "payload": (whose if name else {})
        | {"summary": row["summary"]}
        | json.loads(row["payload"]),
    }
