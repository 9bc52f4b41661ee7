"""Replay of one task's events into a new database.

Events contain the contracts and results that they record, so the log is enough. What no event
contains is taken from the old database and is lost without it: deliveries (a result may be
delivered again), keys of spawn calls (a repeated call starts its subagents again) and the ledger
(usage of models). Of results and contracts too large for an event, the rest is taken from
result.json, contract.json or the old database, by hash.

Logs of version 0.1.0 lack contracts, results, title and description; then task.yaml, contract.json
and result.json are read instead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from retinue.core import events
from retinue.core.contract import Contract, Execution, Parent, Step
from retinue.core.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.core.events import Event, Recorded
from retinue.core.ids import SubagentId, TaskId
from retinue.core.lifecycle import Standing, State
from retinue.core.result import EndKind, Result, Status, TokenUsage
from retinue.core.subagent import Attempt, Subagent, Task
from retinue.files import read_plain
from retinue.formats.contract_json import contract_from_text, contract_to_text, hash_contract
from retinue.formats.exit_record import parse_ending
from retinue.formats.result_json import result_from_payload, result_from_text, result_to_text
from retinue.ports import EventFacts
from retinue.store.database import Database, load_queries
from retinue.store.event_writer import EventWriter
from retinue.store.reads import Records, to_recorded
from retinue.store.task_yaml import TaskFile
from retinue.store.verify import Problem, make_problem


class OldDatabase:
    """Read-only access to a possibly damaged database; damage ends a result early."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self._connection = connection
        self._queries = load_queries()

    def read_events(self, task: TaskId) -> list[Recorded]:
        found: list[Recorded] = []
        with suppress(ValueError, TypeError, KeyError):
            for row in self.iter_rows("events_after", task_id=task, after=0, limit=-1):
                found.append(to_recorded(row))
        return found

    def read_text(self, query: str, column: str, **values: Any) -> str:
        """Return one value of the first row; empty without one."""
        for row in self.iter_rows(query, **values):
            return str(row[column])
        return ""

    def iter_rows(self, query: str, **values: Any) -> Iterator[sqlite3.Row]:
        if self._connection is None:
            return
        with suppress(sqlite3.Error, IndexError):
            yield from self._connection.execute(self._queries[query], values)


@contextmanager
def open_old_database(path: Path) -> Iterator[OldDatabase]:
    """Open what is left of a database that no process writes."""
    if not path.is_file() or not path.stat().st_size:
        yield OldDatabase(None)
        return
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    except sqlite3.Error:
        yield OldDatabase(None)
        return
    connection.row_factory = sqlite3.Row
    try:
        yield OldDatabase(connection)
    finally:
        connection.close()


JOINS = (events.MERGED, events.COPIED, events.MERGE_FAILED, events.OUTPUT_ACCEPTED)
SETTLING = (events.SUBAGENT_WAITING, events.SUBAGENT_FAILED, events.BLOCKED)
LARGEST_FILE = 64 * 1024 * 1024
LOST = "reconstructed from the log; its own record is lost"


class TaskReplay:
    """Replay of one task, for a single use inside a transaction; `problems` lists what is lost."""

    def __init__(self, database: Database, old: OldDatabase, folder: Path) -> None:
        self.problems: list[Problem] = []
        self._db = database
        self._records = Records(database)
        self._writer = EventWriter(database, self._records)
        self._old = old
        self._folder = folder
        self._last_settling: dict[str, int] = {}
        # Results of attempts whose subagent may end with them, and whether each is whole.
        self._ended: dict[str, tuple[Result, bool]] = {}
        self._attempts: dict[str, int] = {}

    def replay_events(self, history: Sequence[Recorded]) -> list[Recorded]:
        """Create the rows from these events; return the events that had to be added."""
        for recorded in history:
            name = recorded.event.subagent or ""
            self._attempts[name] = max(recorded.event.attempt, self._attempts.get(name, 0))
            if recorded.event.type in SETTLING or _is_join(recorded.event):
                self._last_settling[name] = recorded.seq
        task = self._make_task(history[0])
        self._writer.open_task(task)
        for recorded in history:
            if recorded.event.type == events.SUBAGENT_CREATED:
                self._insert_subagent(recorded)
            known = self._records.get_task(task.id)
            self._writer.append(known, [recorded.event], self._collect_facts(recorded), recorded.ts)
        # Deliveries only up to the last event: later ones refer to events that are lost.
        self._carry_over(task, history[-1].seq)
        return self._add_starts(task)

    def _make_task(self, first: Recorded) -> Task:
        document = first.event.payload
        if "title" not in document:
            document = self._read_task_file()
        summary = first.event.summary.removeprefix("task created: ")
        title = document.get("title")
        description = document.get("description")
        return Task(
            id=first.task,
            run=first.run,
            title=title if isinstance(title, str) else summary,
            description=description if isinstance(description, str) else "",
            state="open",
            outcome="running",
            created_at=first.ts,
            updated_at=first.ts,
        )

    def _read_task_file(self) -> dict[str, object]:
        path = self._folder / "task.yaml"
        try:
            return TaskFile(path).read_document()
        except (BadInput, IntegrityBroken, StorageFailed) as error:
            self.problems.append(make_problem("task_file", str(path), error.message))
        return {}

    def _insert_subagent(self, created: Recorded) -> None:
        assert created.event.subagent is not None, "the history has been checked"
        assert created.step_idx is not None, "the history has been checked"
        contract, text = self._find_contract(created)
        subagent = Subagent(
            id=created.event.subagent,
            task=created.task,
            run=created.run,
            step_idx=created.step_idx,
            contract=contract,
            contract_text=text,
            contract_sha256=str(created.contract_sha256),
            standing=Standing(),
            created_at=created.ts,
        )
        self._writer.insert_subagent(subagent)

    def _find_contract(self, created: Recorded) -> tuple[Contract, str]:
        name = str(created.event.subagent)
        path = self._folder / "agents" / name / "contract.json"
        known = {"task_id": created.task, "sub_agent_id": name}
        logged = created.event.payload.get("context_json")
        kept = self._old.read_text("subagent", "context_json", **known)
        # The hash in the event decides which copy is the contract: files may have been edited.
        for text in (logged, _read_text(path), kept):
            if isinstance(text, str) and text and hash_contract(text) == created.contract_sha256:
                return contract_from_text(text), text
        why = "is not the contract it was created with" if path.exists() else "is missing"
        message = f"{why}; unless it has ended, its next attempt fails: there is no command"
        self.problems.append(make_problem("contract_lost", str(path), message))
        empty = _make_empty_contract(created)
        return empty, contract_to_text(empty)

    def _collect_facts(self, recorded: Recorded) -> EventFacts:
        event = recorded.event
        match event.type:
            case events.STARTED:
                return EventFacts(attempt=_parse_attempt(event))
            case events.COMPLETED | events.FAILED | events.CANCELLED if event.payload.get("ended"):
                result = self._find_attempt_result(recorded)
                return EventFacts(ended_attempt=event.attempt, ended_result=result)
            case events.BLOCKED:
                ended = self._find_attempt_result(recorded)
                return EventFacts(
                    ended_attempt=event.attempt,
                    ended_result=ended,
                    result=self._find_result(recorded),
                )
            case events.SUBAGENT_WAITING | events.SUBAGENT_FAILED:
                return EventFacts(result=self._find_result(recorded))
            case _ if _is_join(event):
                return EventFacts(result=self._find_result(recorded))
            case events.GATE_BLOCKED:
                questions = _to_texts(event.payload.get("questions"))
                logged = self._read_logged(recorded)
                return EventFacts(questions=questions, result=logged[0] if logged else None)
            case events.GATE_ANSWERED:
                return EventFacts(answer=str(event.payload.get("answer", "")))
        return EventFacts()

    def _find_attempt_result(self, recorded: Recorded) -> Result:
        """Return the result of an attempt."""
        event = recorded.event
        if logged := self._read_logged(recorded):
            self._ended[str(event.subagent)] = logged
            return logged[0]
        # An old log: the result of a single attempt is the subagent's result.
        whose = {"task_id": recorded.task, "sub_agent_id": event.subagent}
        texts = [
            str(row["result_json"])
            for row in self._old.iter_rows("attempts", **whose)
            if row["number"] == event.attempt
        ]
        if self._attempts[str(event.subagent)] == 1:
            texts.append(_read_text(self._get_agent_folder(recorded) / "result.json"))
        return _find_matching(texts, recorded) or self._make_result(recorded)

    def _find_result(self, recorded: Recorded) -> Result:
        """Return the subagent's result; only the last of several results is stored."""
        name = str(recorded.event.subagent)
        path = self._get_agent_folder(recorded) / "result.json"
        is_last = self._last_settling[name] == recorded.seq
        # An end without a result of its own: it is the result of the attempt before it. A join
        # always has its own.
        ended = None if _is_join(recorded.event) else self._ended.pop(name, None)
        carried = None if recorded.event.type == events.BLOCKED else self._read_logged(recorded)
        if known := carried or ended:
            result, is_whole = known
            if is_last and not is_whole:
                message = "long texts are cut: the log contains only their beginning"
                self.problems.append(make_problem("result_lost", str(path), message))
            return result
        whose = {"task_id": recorded.task, "sub_agent_id": recorded.event.subagent}
        texts = [_read_text(path), self._old.read_text("result", "result_json", **whose)]
        found = _find_matching(texts, recorded)
        if found is None and is_last:
            self.problems.append(
                make_problem("result_lost", str(path), "it is reconstructed from the log")
            )
        return found or self._make_result(recorded)

    def _read_logged(self, recorded: Recorded) -> tuple[Result, bool] | None:
        """Return the result in the event, and whether it is whole; None if it has none."""
        with suppress(BadInput):
            return result_from_payload(recorded.event.payload, self._iter_copies(recorded))
        return None

    def _iter_copies(self, recorded: Recorded) -> Iterator[str]:
        """Yield texts that may be the whole of a result."""
        yield _read_text(self._get_agent_folder(recorded) / "result.json")
        whose = {"task_id": recorded.task, "sub_agent_id": recorded.event.subagent}
        for query in ("result", "attempts"):
            for row in self._old.iter_rows(query, **whose):
                yield str(row["result_json"])

    def _make_result(self, recorded: Recorded) -> Result:
        payload = recorded.event.payload
        agent = self._get_agent_folder(recorded)
        duration = payload.get("duration_ms")
        status = payload.get("status")
        return Result(
            subagent_id=SubagentId(str(recorded.event.subagent)),
            status=Status(str(status)) if status in set(Status) else Status.ERROR,
            answer=None,
            workspace=str(agent / "workspace"),
            execution_time_seconds=duration / 1000 if isinstance(duration, int) else 0.0,
            token_usage=TokenUsage(),
            log_path=str(agent / "runtime"),
            error=str(payload.get("reason") or ""),
            warning=LOST,
        )

    def _get_agent_folder(self, recorded: Recorded) -> Path:
        return self._folder / "agents" / str(recorded.event.subagent)

    def _add_starts(self, task: Task) -> list[Recorded]:
        """Add lost start events: an attempt that has run must not run again."""
        added: list[Recorded] = []
        for subagent in self._records.list_unclosed(task.id):
            standing = subagent.standing
            number = standing.attempt + 1
            runtime = self._folder / "agents" / subagent.id / "runtime"
            if standing.holds_slot and not standing.in_attempt and _has_run(runtime, number):
                known = self._records.get_task(task.id)
                new = _make_start_events(subagent, number)
                facts = EventFacts(attempt=_parse_attempt(new[-1]))
                added += self._writer.append(known, new, facts, known.updated_at).recorded
        return added

    def _carry_over(self, task: Task, last_seq: int) -> None:
        """Copy rows that no event contains: deliveries, keys of calls, and the ledger."""
        for row in self._old.iter_rows("deliveries_of", task_id=task.id):
            if row["settled_seq"] <= last_seq:
                self._db.run("insert_delivery", **dict(row))
        for row in self._old.iter_rows("keys_of", task_id=task.id):
            self._db.run("insert_key", **dict(row))
        for row in self._old.iter_rows("bookings_of", task_id=task.id):
            if row["sub_agent_id"] in self._attempts:
                # Databases before schema 4 measured no time.
                self._db.run("put_booking", **{"seconds": None, **dict(row)})


def _has_run(runtime: Path, attempt: int) -> bool:
    """Return whether the folder shows that an attempt without a start event was executed."""
    if (runtime / "attempts" / str(attempt)).is_dir():
        return True  # moved aside for the next attempt
    record = _read_text(runtime / "exit.json").encode()
    if record and parse_ending(record).kind is not EndKind.LOST:
        return parse_ending(record, attempt).kind not in (EndKind.LOST, EndKind.NEVER_RAN)
    # No exit record: the streams belong to this attempt if those of the previous one were moved.
    begun = attempt == 1 or (runtime / "attempts" / str(attempt - 1)).is_dir()
    return begun and (runtime / "stdout.log").is_file()


def _make_start_events(subagent: Subagent, attempt: int) -> list[Event]:
    """Return the start events of an attempt whose process is no longer known."""
    summary = f"{subagent.id} attempt {attempt} had started, according to its folder"
    up = Event(type=events.STARTED, subagent=subagent.id, attempt=attempt, summary=summary)
    if subagent.standing.state is not State.CREATED:
        return [up]
    begun = Event(
        type=events.SUBAGENT_STARTED,
        subagent=subagent.id,
        summary=f"{subagent.id} started",
        payload={"launched": True},
    )
    return [begun, up]


def _is_join(event: Event) -> bool:
    """Return whether the event gave its subagent a new result; plain acceptance does not."""
    return event.type in JOINS and "status" in event.payload


def _parse_attempt(started: Event) -> Attempt:
    payload = started.payload

    def get_number(key: str) -> int:
        value = payload.get(key)
        return value if isinstance(value, int) else 0

    return Attempt(
        number=started.attempt,
        boot_id=str(payload.get("boot_id", "")),
        pid=get_number("pid"),
        start_ticks=get_number("start_ticks"),
        place=str(payload.get("place", "")),
        started_at="",
        started_monotonic_ms=get_number("started_monotonic_ms"),
    )


def _find_matching(texts: Sequence[str], recorded: Recorded) -> Result | None:
    """Return the first result of this subagent with the status that the event names."""
    for text in filter(None, texts):
        try:
            result = result_from_text(text)
        except BadInput:
            continue
        same = result.subagent_id == recorded.event.subagent and result_to_text(result) == text
        if same and result.status.value == recorded.event.payload.get("status"):
            return result
    return None


def _make_empty_contract(created: Recorded) -> Contract:
    """Return a stand-in for a lost contract, which can run nothing."""
    payload = created.event.payload
    timeout = payload.get("attempt_timeout_ms")
    return Contract(
        parent=Parent(
            run_id=created.run, step_idx=created.step_idx or 0, task_prompt="", goal_summary=""
        ),
        step=Step(title=str(payload.get("title", "")), description="its contract was lost"),
        execution=Execution(
            attempt_timeout_ms=timeout if isinstance(timeout, int) else 1000, max_retries=0
        ),
        agent=str(payload.get("agent", "command")),
    )


def _to_texts(value: object) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list) else ()


def _read_text(path: Path) -> str:
    """Return a file's text; empty if it is missing, too large or not a plain file."""
    try:
        sound = path.stat().st_size <= LARGEST_FILE
        return read_plain(path).decode() if sound else ""
    except (OSError, ValueError):
        return ""
