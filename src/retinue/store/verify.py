"""Check that events, rows, log and folders of a task agree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

from retinue.core import events
from retinue.core.errors import BadInput, IllegalTransition, IntegrityBroken, StorageFailed
from retinue.core.lifecycle import Standing, fold
from retinue.core.subagent import Task
from retinue.files import NotPlainFile, read_plain
from retinue.formats.contract_json import hash_contract
from retinue.formats.event_json import event_to_line
from retinue.formats.result_json import result_from_text, result_to_text
from retinue.store.reads import Records
from retinue.store.task_yaml import TaskFile

Problem = dict[str, str]

RESTORING = "'retinue steward stop', then 'retinue verify --rebuild' restores the log"
FOLLOWING = "it is repaired automatically; if not, free space or restore write access"
# A letter for each lifecycle event; WHOLE and PREFIX say in which order they may occur.
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
    """Checker of a root. It changes only files that a power loss cut short, and only if it may."""

    def __init__(
        self,
        root: Path,
        records: Records,
        restore: Callable[[Path, bytes, int], None] | None = None,
    ) -> None:
        """Args: restore: writes a file with its content and mode; if None, nothing is written."""
        self._tasks = root / "tasks"
        self._records = records
        self._restore = restore
        self.restored: list[Problem] = []

    def check_task(self, task: Task) -> list[Problem]:
        """Return every inconsistency of one task."""
        parts = (
            self._check_numbering(task),
            self._check_subagents(task),
            self._check_log(task),
            self._check_file(task),
        )
        return [problem for part in (*parts, self._check_copies(task)) for problem in part]

    def _check_numbering(self, task: Task) -> Iterator[Problem]:
        expected = 0
        for expected, recorded in enumerate(self._records.iter_events(task.id), start=1):
            if recorded.seq != expected:
                yield make_problem("event_gap", task.id, f"event {expected} is missing")
                return
        if expected != task.last_seq:
            yield make_problem("event_gap", task.id, f"ends with {expected}, not {task.last_seq}")

    def _check_subagents(self, task: Task) -> Iterator[Problem]:
        """Check that each subagent's row is the result of its events."""
        folded: dict[str, tuple[Standing, str]] = {}
        for recorded in self._records.iter_events(task.id):
            name = recorded.event.subagent
            if name is None:
                continue
            standing, spelled = folded.get(name, (Standing(), ""))
            try:
                standing = fold(standing, recorded.event, recorded.seq)
            except IllegalTransition as error:
                yield make_problem("illegal_move", f"{task.id}/{name}", error.message)
            folded[name] = standing, spelled + LETTERS.get(recorded.event.type, "")
        for subagent in self._records.list_newest(task.id, task.next_step):
            where = f"{task.id}/{subagent.id}"
            standing, spelled = folded.pop(subagent.id, (Standing(), ""))
            if standing != subagent.standing:
                yield make_problem("row_differs", where, "its row does not match its events")
            # A closed subagent needs the complete sequence, an open one a beginning of it.
            whole = WHOLE if subagent.standing.state == "closed" else PREFIX
            if not whole.fullmatch(spelled):
                yield make_problem(
                    "event_order", where, f"its events are in the wrong order: {spelled!r}"
                )
            if hash_contract(subagent.contract_text) != subagent.contract_sha256:
                yield make_problem("contract_changed", where, "its text does not match its hash")
        for left in folded:
            yield make_problem("row_missing", f"{task.id}/{left}", "it has events but no row")

    def _check_log(self, task: Task) -> Iterator[Problem]:
        """Check that each line of events.jsonl equals its event, byte for byte."""
        path = self._tasks / task.id / "events.jsonl"
        try:
            lines = read_plain(path).splitlines(keepends=True)
        except OSError as error:
            kind = "log_replaced" if isinstance(error, NotPlainFile) else "log_missing"
            yield make_problem(kind, str(path), str(error.strerror))
            return
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # a torn line was never acknowledged, so it does not count
        pairs = zip_longest(
            lines, (event_to_line(each) for each in self._records.iter_events(task.id))
        )
        for number, (line, expected) in enumerate(pairs, start=1):
            if line != expected:
                kind, message = _describe_difference(number, line, expected)
                hint = FOLLOWING if line is None else RESTORING
                yield make_problem(kind, f"{path}:{number}", f"{message} ({hint})")
                return

    def _check_file(self, task: Task) -> Iterator[Problem]:
        """Check that task.yaml is readable and valid: it is the only copy of what people wrote."""
        path = self._tasks / task.id / "task.yaml"
        try:
            TaskFile(path).read_config()
        except (BadInput, IntegrityBroken, StorageFailed) as error:
            yield make_problem(error.code, str(path), error.message)

    def _check_copies(self, task: Task) -> Iterator[Problem]:
        """Check the files from which a lost database would be rebuilt."""
        for subagent in self._records.list_newest(task.id, task.next_step):
            folder = self._tasks / task.id / "agents" / subagent.id
            found: list[tuple[Path, Callable[[str], object], object, str, int]] = []
            if subagent.standing.attempt:
                text = subagent.contract_text
                found.append((folder / "contract.json", str, text, text, 0o444))
            if subagent.standing.state == "closed" and (end := self._records.get_result(subagent)):
                text = result_to_text(end)
                found.append((folder / "result.json", result_from_text, end, text, 0o600))
            hint = f"'retinue --json subagent show {task.id} {subagent.id}' has what it was"
            for path, read, expected, text, mode in found:
                differs = _find_difference(path, read, expected)
                if differs and not self._restore_cut(path, text.encode(), mode):
                    kind, message = differs
                    yield make_problem(kind, str(path), f"{message} ({hint})")

    def _restore_cut(self, path: Path, expected: bytes, mode: int) -> bool:
        """Restore a file that a power loss cut short; return whether it is whole again.

        Such a file holds a beginning of what was written, or zeros. A file with any other content
        was changed by a person or a program, and is left as it is.
        """
        if self._restore is None:
            return False
        try:
            if not expected.startswith(read_plain(path).rstrip(b"\0")):
                return False
            self._restore(path, expected, mode)
        except (OSError, StorageFailed):
            return False
        message = "it was cut short, and written again from the database"
        self.restored.append(make_problem("file_restored", str(path), message))
        return True


def _find_difference(
    path: Path, read: Callable[[str], object], expected: object
) -> tuple[str, str] | None:
    """Compare a file with the database; return kind and message of a difference.

    Args:
        read: the parser; texts of older versions may be formatted differently.
    """
    try:
        same = read(read_plain(path).decode()) == expected
    except OSError as error:
        return "file_missing", str(error.strerror)
    except (BadInput, UnicodeDecodeError):
        same = False
    return None if same else ("file_changed", "it differs from what the database has")


def _describe_difference(
    number: int, line: bytes | None, expected: bytes | None
) -> tuple[str, str]:
    if line is None:
        return "log_short", "the log has fewer events than the database"
    if expected is None:
        return "log_ahead", "the log has more events than the database"
    if b"\0" in line:
        return "log_damaged", "line holds NUL bytes"
    try:
        seq = json.loads(line)["seq"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "log_damaged", "line is not an event"
    if seq != number:
        return "log_order", f"line holds event {seq!a} instead of {number}"
    return "log_changed", "line differs from the event in the database"


def make_problem(kind: str, where: str, message: str) -> Problem:
    return {"kind": kind, "where": where, "message": message}
