"""Checking that events, rows, log and folders tell the same story."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

from retinue.domain import event as events
from retinue.domain.errors import BadInput, IllegalTransition, IntegrityBroken, StorageFailed
from retinue.domain.event import Recorded
from retinue.domain.lifecycle import Standing, fold
from retinue.domain.subagent import Task
from retinue.files import NotPlain, read_plain
from retinue.store.records import SqliteRecords
from retinue.store.taskfile import TaskFile
from retinue.wire.contract import contract_sha256
from retinue.wire.event import event_to_line
from retinue.wire.result import result_from_text

Problem = dict[str, str]

PAGE = 1000
RESTORING = "'retinue steward stop', then 'retinue verify --rebuild' restores the log"
FOLLOWING = "it follows by itself; where it does not, make room or give access"
# One letter for each delegation-level event: the order they must spell.
LETTERS = {
    events.SUBAGENT_CREATED: "c",
    events.SUBAGENT_STARTED: "s",
    events.SUBAGENT_ATTEMPT: "a",
    events.SUBAGENT_WAITING: "w",
    events.OUTPUT_ACCEPTED: "i",
    events.MERGED: "i",
    events.COPIED: "i",
    events.MERGE_FAILED: "i",
    events.SUBAGENT_FAILED: "f",
    events.SUBAGENT_CLOSED: "z",
}
WHOLE = re.compile(r"csa*(wi*|f)z")
PREFIX = re.compile(r"c(s(a*(wi*|f)?)?)?")


class Verifier:
    """Reads everything, changes nothing."""

    def __init__(self, root: Path, records: SqliteRecords) -> None:
        self._tasks = root / "tasks"
        self._records = records

    def task(self, task: Task) -> list[Problem]:
        """Every disagreement about one task."""
        parts = self._numbering(task), self._stories(task), self._log(task), self._file(task)
        return [problem for part in (*parts, self._copies(task)) for problem in part]

    def _events(self, task: Task) -> Iterator[Recorded]:
        after = 0
        while page := self._records.events(task.id, after=after, limit=PAGE):
            yield from page
            after = page[-1].seq

    def _numbering(self, task: Task) -> Iterator[Problem]:
        expected = 0
        for expected, recorded in enumerate(self._events(task), start=1):
            if recorded.seq != expected:
                yield problem("event_gap", task.id, f"event {expected} is missing")
                return
        if expected != task.last_seq:
            yield problem("event_gap", task.id, f"ends with {expected}, not {task.last_seq}")

    def _stories(self, task: Task) -> Iterator[Problem]:
        """Each subagent's row is what its events make of it."""
        stories: dict[str, tuple[Standing, str]] = {}
        for recorded in self._events(task):
            name = recorded.event.subagent
            if name is None:
                continue
            standing, spelled = stories.get(name, (Standing(), ""))
            try:
                standing = fold(standing, recorded.event, recorded.seq)
            except IllegalTransition as error:
                yield problem("illegal_move", f"{task.id}/{name}", error.message)
            stories[name] = standing, spelled + LETTERS.get(recorded.event.type, "")
        for subagent in self._records.newest(task.id, task.next_step):
            where = f"{task.id}/{subagent.id}"
            standing, spelled = stories.pop(subagent.id, (Standing(), ""))
            if standing != subagent.standing:
                yield problem("row_differs", where, "its row is not what its events say")
            whole = WHOLE if subagent.standing.state == "closed" else PREFIX
            if not whole.fullmatch(spelled):
                yield problem("event_order", where, f"its events spell {spelled!r}")
            if contract_sha256(subagent.contract_text) != subagent.contract_sha256:
                yield problem("contract_changed", where, "its text has another hash")
        for left in stories:
            yield problem("row_missing", f"{task.id}/{left}", "has events and no row")

    def _log(self, task: Task) -> Iterator[Problem]:
        """Every line of events.jsonl is the event of its number, to the byte."""
        path = self._tasks / task.id / "events.jsonl"
        try:
            lines = read_plain(path).splitlines(keepends=True)
        except OSError as error:
            kind = "log_replaced" if isinstance(error, NotPlain) else "log_missing"
            yield problem(kind, str(path), str(error.strerror))
            return
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # torn where the disk refused it: that is not there
        pairs = zip_longest(lines, (event_to_line(each) for each in self._events(task)))
        for number, (line, expected) in enumerate(pairs, start=1):
            if line != expected:
                kind, message = _difference(number, line, expected)
                hint = FOLLOWING if line is None else RESTORING
                yield problem(kind, f"{path}:{number}", f"{message} ({hint})")
                return

    def _file(self, task: Task) -> Iterator[Problem]:
        """task.yaml can be read, and means something: people's words are in no other place."""
        path = self._tasks / task.id / "task.yaml"
        try:
            TaskFile(path).config()
        except (BadInput, IntegrityBroken, StorageFailed) as error:
            yield problem(error.code, str(path), error.message)

    def _copies(self, task: Task) -> Iterator[Problem]:
        """What a lost database would be made from is as the database has it."""
        for subagent in self._records.newest(task.id, task.next_step):
            folder = self._tasks / task.id / "agents" / subagent.id
            found: list[tuple[Path, Callable[[str], object], object]] = []
            if subagent.standing.attempt:
                found.append((folder / "contract.json", str, subagent.contract_text))
            if subagent.standing.state == "closed" and (end := self._records.result(subagent)):
                found.append((folder / "result.json", result_from_text, end))
            hint = f"'retinue --json subagent show {task.id} {subagent.id}' has what it was"
            for path, read, expected in found:
                if differs := _differs(path, read, expected):
                    kind, message = differs
                    yield problem(kind, str(path), f"{message} ({hint})")


def _differs(path: Path, read: Callable[[str], object], expected: object) -> tuple[str, str] | None:
    """Args: read: what a text says, which may be worded in another way than a later version's."""
    try:
        same = read(read_plain(path).decode()) == expected
    except OSError as error:
        return "file_missing", str(error.strerror)
    except (BadInput, UnicodeDecodeError):
        same = False
    return None if same else ("file_changed", "it differs from what the database has")


def _difference(number: int, line: bytes | None, expected: bytes | None) -> tuple[str, str]:
    if line is None:
        return "log_short", "the log ends before the database does"
    if expected is None:
        return "log_ahead", "the log goes on where the database ends"
    if b"\0" in line:
        return "log_damaged", "line holds NUL bytes"
    try:
        seq = json.loads(line)["seq"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "log_damaged", "line is not an event"
    if seq != number:
        return "log_order", f"line holds event {seq!a} instead of {number}"
    return "log_changed", "line differs from the event in the database"


def problem(kind: str, where: str, message: str) -> Problem:
    return {"kind": kind, "where": where, "message": message}
