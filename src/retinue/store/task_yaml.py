"""task.yaml: people edit the part above a marker line, the steward writes the part below.

The part above is kept byte for byte. The part below (`updatedAt`, `state`, `gates`, `roster`) is
rewritten completely. A file without the marker, from an older version or from a YAML tool that
drops comments, is converted at the next write.

Text files that people edit as well are read and replaced as a whole.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from retinue.core.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.core.safe_text import shorten
from retinue.core.subagent import Gate, Task
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.files import create
from retinue.formats.config_document import build_task_section, parse_task_config
from retinue.formats.yaml_document import Place, YamlLimits, dump_yaml, load_yaml, quote_text

Fingerprint = tuple[int, int, int]  # modification time in nanoseconds, size, inode
TRIES = 5


def take_fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint of a file's content, without reading it.

    Raises:
        IntegrityBroken: the file is gone.
        StorageFailed: its status cannot be read.
    """
    try:
        return _make_fingerprint(path.stat())
    except OSError as error:
        raise _to_error(path, error) from None


def read_text(path: Path, limit_bytes: int) -> tuple[str, Fingerprint]:
    """Return a consistent snapshot of a file's text, line ends untouched.

    Raises:
        BadInput: too large, or not UTF-8.
        IntegrityBroken: the file is gone, or not a regular file.
        StorageFailed: it cannot be read, or another program rewrites it all the time.
    """
    for _ in range(TRIES):
        raw, before = _read(path, limit_bytes)
        # A different fingerprint means that the file changed while it was read: try again.
        if take_fingerprint(path) == before and len(raw) == before[1]:
            return _decode(raw, path), before
    raise StorageFailed(f"another program keeps rewriting {path}")


def replace_text(
    path: Path, text: str, expected: Fingerprint | None
) -> tuple[Fingerprint, bool] | None:
    """Replace a file's text atomically; readable by its owner only.

    Return None, and change nothing, if the file is no longer the expected one. Else return its
    fingerprint, and whether every later edit will have another.

    Raises:
        IntegrityBroken: the expected file is gone.
        StorageFailed: the disk refused; the old text stands.
    """
    # Always the same name: a crash leaves at most one such file, which the next write replaces.
    temporary = path.with_name(f".{path.name}.new")
    try:
        made = _write(temporary, text.encode("utf-8"))
        # As late as possible, after the slow write: a person may save the file at any time.
        if expected is not None and take_fingerprint(path) != expected:
            return None
        temporary.replace(path)
    except OSError as error:
        raise _to_error(path, error) from None
    finally:
        with suppress(OSError):  # it was renamed, or the folder is read-only
            temporary.unlink()
    return made


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss.

    Raises:
        StorageFailed: the disk refused.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise _to_error(folder, error) from None


def _read(path: Path, limit_bytes: int) -> tuple[bytes, Fingerprint]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise IntegrityBroken(
                    f"{path} is not a regular file",
                    code="not_a_file",
                    hint="move it away, and restore the file from a copy",
                )
            if status.st_size > limit_bytes:
                raise BadInput(
                    f"{path}: line 1: larger than {limit_bytes // 1024} KiB", code="bad_yaml"
                )
            with open(handle, "rb", closefd=False) as file:
                return file.read(limit_bytes + 1), _make_fingerprint(status)
        finally:
            os.close(handle)
    except OSError as error:
        raise _to_error(path, error) from None


def _decode(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + raw.count(b"\n", 0, error.start)
        raise BadInput(f"{path}: line {line}: not UTF-8", code="bad_yaml") from None


def _write(path: Path, raw: bytes) -> tuple[Fingerprint, bool]:
    handle = create(path)
    with os.fdopen(handle, "wb") as file:
        file.write(raw)
        file.flush()
        # A precise time: an edit in the same tick of the kernel's clock gets the time of the tick,
        # and so another fingerprint.
        ours = time.time_ns()
        os.utime(handle, ns=(ours, ours))
        os.fsync(handle)  # it contains what people wrote: a power loss must not empty it
        made = _make_fingerprint(os.fstat(handle))
        return made, made[0] == ours  # some file systems store coarser times


def _make_fingerprint(status: os.stat_result) -> Fingerprint:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _to_error(path: Path, error: OSError) -> IntegrityBroken | StorageFailed:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return IntegrityBroken(
            f"{path} is missing",
            code="file_missing",
            hint="restore it from a copy; `retinue verify` names what else is missing",
        )
    return StorageFailed(f"{path}: {error.strerror} (errno {error.errno})")


MARKER = "# Retinue rewrites everything below this line; edit above it."
OURS = ("updatedAt", "state", "gates", "roster")  # the keys below the marker
KEYS = ("id", "title", "description", "createdAt", "config", *OURS)
IN_CONFIG = ("maxConcurrentAgents", "timeoutSeconds", "agents", "orchestrator", "ui")
SIZE_LIMIT = 64 * 1024 * 1024
# Ended subagents in the roster: the file is rewritten at each change and kept in memory.
MOST_ENDED = 1000
ENDED_STATES = frozenset({"completed", "failed"})
CUT_NOTE = f"# the newest {MOST_ENDED} that ended; `retinue subagent list` has the others"
EDITABLE_LIMITS = YamlLimits(size_bytes=4 * 1024 * 1024, values=40_000)
WHOLE_LIMITS = YamlLimits(size_bytes=SIZE_LIMIT, values=10_000_000)

# Two edits within this time may have the same time stamp; more where it has whole seconds only.
_SETTLING_NS, _SETTLING_COARSE_NS = 20_000_000, 2_100_000_000

_MARKER_LINE = re.compile(rf"^{re.escape(MARKER)}\r?\n", re.MULTILINE)
_ROSTER_START = re.compile(r"^roster:", re.MULTILINE)
_ENTRY = re.compile(
    r'^  - instance: "(?P<instance>[^"\\]+)"\n(?:    [^\n]*\n)*', re.MULTILINE
)  # as `_entry_text` writes it
_ENDED = re.compile(rf'^    state: "(?:{"|".join(sorted(ENDED_STATES))})"$', re.MULTILINE)
_FOREIGN_KEY = re.compile(rf"^(?!(?:{'|'.join(OURS)}):)[^\s#]", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class RosterEntry:
    """A subagent as shown in task.yaml."""

    instance: str
    agent: str
    state: str
    skills: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _FileState:
    """Content of the file when it was last read or written."""

    fingerprint: Fingerprint
    certain: bool  # False while an edit could leave the same fingerprint
    editable: str  # above the marker
    below: str  # below the marker
    document: dict[str, object]  # all keys but the roster
    lines: dict[Place, int]  # line numbers of the editable part's keys
    roster: dict[str, str]  # text of each entry by instance, in order
    is_ours: bool  # whether it has the marker and a roster as the steward writes it


class TaskFile:
    """One task.yaml, for use by one thread; people may edit the file at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: _FileState | None = None
        self._config: TaskConfig | None = None

    def create(self, task: Task, config: NewConfig) -> None:
        """Write the first version, readable by its owner only.

        Raises:
            BadInput: the configuration is invalid; nothing was written.
            IntegrityBroken: the file exists already.
            StorageFailed: the disk refused.
        """
        section = build_task_section(
            dict(config.document),
            max_concurrent=config.max_concurrent,
            timeout_seconds=config.timeout_seconds,
        )
        if self.path.exists():
            raise IntegrityBroken(f"{self.path} exists already; it was not overwritten")
        editable: dict[str, object] = {
            "id": task.id,
            "title": task.title,
            "description": task.description,
            "createdAt": task.created_at,
            "config": section,
        }
        below = _render_below(task.created_at, task.state, (), {})
        replace_text(self.path, f"{dump_yaml(editable)}{MARKER}\n{below}", None)
        sync_folder(self.path.parent)

    def read_config(self) -> TaskConfig:
        """Return the task's current configuration, with the latest edits.

        Raises:
            BadInput: the file was edited into something unusable; names file and line.
            IntegrityBroken: the file is gone.
        """
        known = self._load_current()
        if self._config is None:
            where = str(self.path)
            _refuse_misspelled_keys(known.document, where, known.lines)
            self._config = parse_task_config(
                known.document.get("config"), where=where, lines=known.lines
            )
        return self._config

    def read_document(self) -> dict[str, object]:
        """Return the content of the file without its roster.

        Raises:
            BadInput: the file was edited into something unusable; names file and line.
            IntegrityBroken: the file is gone.
        """
        return copy.deepcopy(self._load_current().document)

    def update_roster(
        self,
        entries: Sequence[RosterEntry],
        state: str,
        updated_at: str,
        gates: Sequence[Gate] = (),
    ) -> bool:
        """Write these roster entries, the task's state and its open gates.

        Pass the changed entries, or all of them; of those that ended, only the newest are kept.
        If nothing changes, nothing is written and `updatedAt` stays. Return True if the old roster
        could not be read and was replaced by the given entries: then call again with all of them.

        Raises:
            BadInput: the file cannot be understood; it was not touched.
            IntegrityBroken: the file is gone; it is not recreated, for its configuration is lost.
            StorageFailed: the disk refused, or another program rewrites the file all the time.
        """
        # Optimistic locking: if a person saved the file since it was read, read it and try again.
        for _ in range(TRIES):
            known = self._load_current()
            changed = {each.instance: _format_entry(each) for each in entries}
            roster = _drop_oldest_ended(known.roster | changed)
            shown = _render_below(str(known.document.get("updatedAt")), state, gates, roster)
            if shown == known.below:
                return False
            below = _render_below(updated_at, state, gates, roster)
            written = replace_text(
                self.path, f"{known.editable}{MARKER}\n{below}", known.fingerprint
            )
            if written is not None:
                mark, certain = written
                values = {"updatedAt": updated_at, "state": state, "gates": _make_gate_rows(gates)}
                self._known = replace(
                    known,
                    fingerprint=mark,
                    certain=certain,
                    below=below,
                    document=known.document | values,
                    roster=roster,
                    is_ours=True,
                )
                return not known.is_ours
        raise StorageFailed(f"another program keeps rewriting {self.path}")

    def _load_current(self) -> _FileState:
        known = self._known
        # The fast path: an unchanged file is not read again.
        if known is not None and known.certain and known.fingerprint == take_fingerprint(self.path):
            return known
        text, mark = read_text(self.path, SIZE_LIMIT)
        settling = _SETTLING_NS if mark[0] % 1_000_000_000 else _SETTLING_COARSE_NS
        certain = time.time_ns() - mark[0] > settling
        if known is None or text != f"{known.editable}{MARKER}\n{known.below}":
            self._known = self._config = None
            known = self._parse(text, mark)
        self._known = replace(known, fingerprint=mark, certain=certain)
        return self._known

    def _parse(self, text: str, mark: Fingerprint) -> _FileState:
        found = _MARKER_LINE.search(text)
        if found is None:
            return self._parse_unmarked(text, mark)
        editable = text[: found.start()]
        below = text[found.end() :]
        first_line = text.count("\n", 0, found.end()) + 1
        stray = _FOREIGN_KEY.search(below.replace("\r\n", "\n"))
        if stray is not None:
            line = first_line + below.count("\n", 0, stray.start())
            raise _make_error(
                f"{self.path}: line {line}: your keys belong above the line that begins with "
                f"{MARKER[:17]!r}; what is below it is overwritten"
            )
        document, lines = self._load(editable, EDITABLE_LIMITS)
        ours = [key for key in OURS if key in document]
        if ours:
            line = lines[(ours[0],)]
            raise _make_error(f"{self.path}: line {line}: key {ours[0]!r} appears twice")
        # The roster can be large: match it by a regular expression instead of parsing YAML.
        start = _ROSTER_START.search(below)
        above_roster = below[: start.start()] if start else below
        try:
            rest, _ = self._load(above_roster, EDITABLE_LIMITS, first_line)
        except BadInput:
            rest = {}  # the part below the marker is rewritten anyway
        roster = {each["instance"]: each[0] for each in _ENTRY.finditer(below)}
        is_ours = below == _render_below(
            str(rest.get("updatedAt")), str(rest.get("state")), (), roster, rest.get("gates")
        )
        return _FileState(
            fingerprint=mark,
            certain=False,
            editable=editable,
            below=below,
            document=document | rest,
            lines=lines,
            roster=roster if is_ours else {},
            is_ours=is_ours,
        )

    def _parse_unmarked(self, text: str, mark: Fingerprint) -> _FileState:
        """Parse a file without the marker; the next write moves the steward's keys below one."""
        document, lines = self._load(text, WHOLE_LIMITS)
        entries = document.pop("roster", None)
        roster = dict(_adopt_entries(entries))
        editable = _drop_own_keys(text, lines)
        # Removing lines is only safe in block style: compare the result with the original.
        if self._load(editable, WHOLE_LIMITS)[0] != {
            key: value for key, value in document.items() if key not in OURS
        }:
            raise _make_error(
                f"{self.path}: line 1: expected one key a line, in block style, at the top level"
            )
        return _FileState(
            fingerprint=mark,
            certain=False,
            editable=editable,
            below="",
            document=document,
            lines=lines,
            roster=roster,
            # If an entry cannot be adopted, all entries are written again from the database.
            is_ours=len(roster) == (len(entries) if isinstance(entries, list) else 0),
        )

    def _load(
        self, text: str, limits: YamlLimits, first_line: int = 1
    ) -> tuple[dict[str, object], dict[Place, int]]:
        where = str(self.path)
        lines: dict[Place, int] = {}
        document = load_yaml(text, where=where, limits=limits, first_line=first_line, lines=lines)
        if not isinstance(document, dict | None):
            raise _make_error(f"{where}: line {lines[()]}: expected keys and values")
        if first_line == 1 and not isinstance((document or {}).get("id"), str):
            raise _make_error(
                f"{where}: line 1: id is missing; the file is cut short or not a task's"
            )
        return document or {}, lines


def _render_below(
    updated_at: str,
    state: str,
    gates: Sequence[Gate],
    roster: Mapping[str, str],
    gate_rows: object = None,
) -> str:
    rows = gate_rows if isinstance(gate_rows, list) else _make_gate_rows(gates)
    top = dump_yaml({"updatedAt": updated_at, "state": state, "gates": rows})
    entries = "".join(roster.values())
    note = f"  {CUT_NOTE}" if len(roster) >= MOST_ENDED else ""
    return top + (f"roster:{note}\n{entries}" if entries else "roster: []\n")


def _drop_oldest_ended(roster: dict[str, str]) -> dict[str, str]:
    """Return the roster with all that have not ended and the newest `MOST_ENDED` of the others."""
    if len(roster) <= MOST_ENDED:
        return roster
    ended = [name for name, text in roster.items() if _ENDED.search(text)]
    dropped = set(ended[: max(0, len(ended) - MOST_ENDED)])
    return {name: text for name, text in roster.items() if name not in dropped}


def _make_gate_rows(gates: Sequence[Gate]) -> list[dict[str, object]]:
    return [
        {
            "id": gate.id,
            "instance": gate.subagent,
            "questions": [shorten(each) for each in gate.questions],
        }
        for gate in gates
    ]


def _format_entry(entry: RosterEntry) -> str:
    skills = ", ".join(map(quote_text, entry.skills))
    return (
        f"  - instance: {quote_text(entry.instance)}\n"
        f"    agent: {quote_text(entry.agent)}\n"
        f"    state: {quote_text(entry.state)}\n"
        f"    skills: [{skills}]\n"
    )


def _adopt_entries(entries: object) -> Iterator[tuple[str, str]]:
    """Yield the entries of a hand-written roster in the steward's format."""
    for each in entries if isinstance(entries, list) else ():
        if isinstance(each, dict) and isinstance(each.get("instance"), str):
            skills = each.get("skills")
            entry = RosterEntry(
                instance=each["instance"],
                agent=str(each.get("agent", "")),
                state=str(each.get("state", "")),
                skills=tuple(map(str, skills)) if isinstance(skills, list) else (),
            )
            yield entry.instance, _format_entry(entry)


def _drop_own_keys(text: str, lines: Mapping[Place, int]) -> str:
    """Return the text without the steward's keys; comments above the next key stay."""
    rows = text.splitlines(keepends=True)
    starts = sorted(line for place, line in lines.items() if len(place) == 1)
    ours = {lines[(key,)] for key in OURS if (key,) in lines}
    kept = rows[: starts[0] - 1] if starts else rows
    for start, stop in zip(starts, [*starts[1:], len(rows) + 1], strict=True):
        block = rows[start - 1 : stop - 1]
        if start in ours:
            # Comments after the last indented line belong to the next key.
            inside = [i for i, row in enumerate(block) if row[0] in " -" and row.strip()]
            block = block[max(inside, default=0) + 1 :]
        kept += block
    editable = "".join(kept)
    return editable if editable.endswith("\n") or not editable else f"{editable}\n"


def _refuse_misspelled_keys(
    document: Mapping[str, object], where: str, lines: Mapping[Place, int]
) -> None:
    """Refuse a key that resembles a known one; other keys are allowed."""
    for key in document:
        near = difflib.get_close_matches(key, (*KEYS, *IN_CONFIG), n=1, cutoff=0.85)
        if key in KEYS or not near:
            continue
        meant = f"config.{near[0]}" if near[0] in IN_CONFIG else near[0]
        raise BadInput(
            f"{where}: line {lines[(key,)]}: unknown key {key!a}; did you mean {meant}?",
            code="unknown_key",
        )


def _make_error(message: str) -> BadInput:
    return BadInput(message, code="bad_yaml")
