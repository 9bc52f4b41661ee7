"""task.yaml: configuration by people, roster by us, in one file that both may edit."""

from __future__ import annotations

import copy
import difflib
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retinue.domain.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.domain.policy import NewConfig, TaskConfig
from retinue.domain.subagent import Task
from retinue.store.roster import LARGE, RosterEntry, edit_roster, with_value
from retinue.store.textfile import (
    TRIES,
    Fingerprint,
    fingerprint,
    read_text,
    replace_text,
    sync_folder,
)
from retinue.wire.config import parse_task_config, task_section
from retinue.wire.yaml import Limits, Place, dump_yaml, load_yaml

SIZE_LIMIT = 64 * 1024 * 1024
OUTSIDE_ROSTER = Limits(size_bytes=4 * 1024 * 1024, values=40_000)
KNOWN = ("id", "title", "description", "createdAt", "updatedAt", "state", "config", "gates")
IN_CONFIG = ("maxConcurrentAgents", "timeoutSeconds", "agents", "orchestrator", "ui")
ROSTER_KEYS = ("\nroster", '\n"roster"', "\n'roster'")

_AFTER_KEY = re.compile(r"[ ]*:(?=\s|$)")
_NEXT_KEY = re.compile(
    r"""\n(?=(?:"[^"\n]*"|'[^'\n]*'|[^\s\#\-\[\]{},"'][^\n]*?)[ ]*:(?:\s|$)|---|\.\.\.)"""
)
# Edits closer together than this may carry the same time stamp; where it is a whole second, longer.
_SETTLING_NS, _SETTLING_COARSE_NS = 20_000_000, 2_100_000_000


@dataclass(frozen=True, kw_only=True)
class _Pieces:
    """The text in three: what is above the roster, the roster, what is below."""

    head: str
    roster: str
    tail: str

    @property
    def around(self) -> tuple[str, str]:
        return self.head, self.tail

    @property
    def tail_line(self) -> int:
        if not self.tail:
            return sys.maxsize
        return 1 + self.head.count("\n") + self.roster.count("\n")

    @property
    def text(self) -> str:
        open_end = self.roster and self.head and not self.head.endswith("\n")
        return self.head + ("\n" if open_end else "") + self.roster + self.tail


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What the file said when it was last read, and what that means, but for its roster."""

    fingerprint: Fingerprint
    certain: bool  # false while an edit could hide behind the same fingerprint
    pieces: _Pieces
    plain: bool = False  # its roster is as we write it
    tail_line: int
    document: dict[str, object]
    lines: dict[Place, int]

    def after(
        self, pieces: _Pieces, mark: Fingerprint, certain: bool, values: Mapping[str, str]
    ) -> _Known:
        """The same with a roster of another length and these values: nothing to parse again."""
        tail_line = pieces.tail_line
        shift = tail_line - self.tail_line
        below = {place: at + shift for place, at in self.lines.items() if at >= self.tail_line}
        return replace(
            self,
            fingerprint=mark,
            certain=certain,
            pieces=pieces,
            plain=False,
            tail_line=tail_line,
            document=self.document | {k: v for k, v in values.items() if k in self.document},
            lines=self.lines | below,
        )


class TaskFile:
    """One task.yaml. Not for use by several threads at once; people may edit it meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: _Known | None = None
        self._config: TaskConfig | None = None

    def create(self, task: Task, config: NewConfig) -> None:
        """The file exists, complete and readable by its owner alone.

        Raises:
            BadInput: the configuration is not sound; nothing was written.
            IntegrityBroken: there is such a file already.
            StorageFailed: the disk refused.
        """
        section = task_section(
            dict(config.document),
            max_concurrent=config.max_concurrent,
            timeout_seconds=config.timeout_seconds,
        )
        if self.path.exists():
            raise IntegrityBroken(f"{self.path} exists already; it was not overwritten")
        document: dict[str, object] = {
            "id": task.id,
            "title": task.title,
            "description": task.description,
            "createdAt": task.created_at,
            "updatedAt": task.created_at,
            "state": task.state,
            "config": section,
            "roster": [],
            "gates": [],
        }
        replace_text(self.path, dump_yaml(document), None)
        sync_folder(self.path.parent)

    def config(self) -> TaskConfig:
        """What the file decides now; hand edits count from the next call on.

        Raises:
            BadInput: the file was edited into something unusable; names file and line.
            IntegrityBroken: the file is gone.
        """
        known = self._current()
        if self._config is None:
            where = str(self.path)
            _refuse_slips(known.document, where, known.lines)
            self._config = parse_task_config(
                known.document.get("config"), where=where, lines=known.lines
            )
        return self._config

    def document(self) -> dict[str, object]:
        """Everything the file says, except for its roster.

        Raises:
            BadInput: the file was edited into something unusable; names file and line.
            IntegrityBroken: the file is gone.
        """
        return copy.deepcopy(self._current().document)

    def update_roster(
        self, entries: Sequence[RosterEntry], state: str | None, updated_at: str
    ) -> bool:
        """These entries and the task's state are in the file; every other byte is as it was.

        Give only what changed, or everything. True when the roster could not be read and
        now holds the given entries alone: give everything next time. When nothing
        changes, nothing is written and `updatedAt` stays.

        Raises:
            BadInput: the file cannot be understood; it was not touched.
            IntegrityBroken: the file is gone; it is not made anew, for its configuration is lost.
            StorageFailed: the disk refused, or the file is being rewritten without pause.
        """
        wanted = {} if state is None else {"state": state}
        for _ in range(TRIES):
            known = self._current()
            pieces, mark = known.pieces, known.fingerprint
            roster = edit_roster(pieces.roster, entries, plain=known.plain)
            edited = replace(self._with_values(pieces, known, wanted), roster=roster.text)
            if edited == pieces:
                return False
            edited = self._with_values(edited, known, {"updatedAt": updated_at})
            if not pieces.roster:  # one that starts below everything else must fit there
                load_yaml(edited.text, where=str(self.path), limits=LARGE)
            written = replace_text(self.path, edited.text, mark)
            if written is not None:
                values = wanted | {"updatedAt": updated_at}
                self._known = replace(known.after(edited, *written, values), plain=roster.plain)
                return roster.lost
        raise StorageFailed(f"{self.path} is being rewritten by another program without pause")

    def _current(self) -> _Known:
        known = self._known
        if known is not None and known.certain and known.fingerprint == fingerprint(self.path):
            return known
        text, mark = read_text(self.path, SIZE_LIMIT)
        return self._learn(self._split(text), mark)

    def _learn(self, pieces: _Pieces, mark: Fingerprint) -> _Known:
        """What these pieces say; parsed only when they are not those of the last time."""
        settling = _SETTLING_NS if mark[0] % 1_000_000_000 else _SETTLING_COARSE_NS
        certain = time.time_ns() - mark[0] > settling
        known = self._known
        if known is not None and known.pieces.around == pieces.around:
            known = known.after(pieces, mark, certain, {})
        else:
            self._known = self._config = None
            document, lines = self._parse(pieces)
            known = _Known(
                fingerprint=mark,
                certain=certain,
                pieces=pieces,
                tail_line=pieces.tail_line,
                document=document,
                lines=lines,
            )
        self._known = known
        return known

    def _parse(self, pieces: _Pieces) -> tuple[dict[str, object], dict[Place, int]]:
        where = str(self.path)
        whole: dict[str, object] = {}
        lines: dict[Place, int] = {}
        for text, first in ((pieces.head, 1), (pieces.tail, pieces.tail_line)):
            here: dict[Place, int] = {}
            part = load_yaml(text, where=where, limits=OUTSIDE_ROSTER, first_line=first, lines=here)
            if not isinstance(part, dict | None):
                raise _bad(f"{where}: line {here[()]}: expected keys and values")
            for key in part or {}:
                if key in whole or key == "roster":
                    raise _bad(f"{where}: line {here[(key,)]}: key {key!a} appears twice")
            whole |= part or {}
            lines |= here
        if not isinstance(whole.get("id"), str):
            raise _bad(f"{where}: line 1: id is missing; the file is cut short or not a task's")
        return whole, lines

    def _split(self, text: str) -> _Pieces:
        padded = "\n" + text
        starts = [
            found.start()
            for key in ROSTER_KEYS
            for found in re.finditer(re.escape(key), padded)
            if _AFTER_KEY.match(padded, found.end())
        ]
        if len(starts) > 1:
            line = 1 + text.count("\n", 0, max(starts))
            raise _bad(f"{self.path}: line {line}: key 'roster' appears twice")
        if not starts:
            return _Pieces(head=text, roster="", tail="")
        start = starts[0]
        found = _NEXT_KEY.search(text, start)
        end = found.end() if found else len(text)
        return _Pieces(head=text[:start], roster=text[start:end], tail=text[end:])

    def _with_values(self, pieces: _Pieces, known: _Known, values: Mapping[str, str]) -> _Pieces:
        """The pieces with other values of these keys; a key that people removed stays away."""
        for key, value in values.items():
            at = known.lines.get((key,))
            if at is None:
                continue
            name, first = ("tail", known.tail_line) if at >= known.tail_line else ("head", 1)
            lines = str(getattr(pieces, name)).split("\n")
            changed = with_value(lines[at - first], value)
            if changed is None:
                raise _bad(f"{self.path}: line {at}: {key} must be one word on the same line")
            lines[at - first] = changed
            pieces = replace(pieces, **{name: "\n".join(lines)})
        return pieces


def _bad(message: str) -> BadInput:
    return BadInput(message, code="bad_yaml")


def _refuse_slips(document: Mapping[str, object], where: str, lines: Mapping[Place, int]) -> None:
    """A key of a person's own is welcome; one that looks like ours would be ignored unseen."""
    for key in document:
        near = difflib.get_close_matches(key, (*KNOWN, *IN_CONFIG), n=1, cutoff=0.85)
        if key in KNOWN or not near:
            continue
        meant = f"config.{near[0]}" if near[0] in IN_CONFIG else near[0]
        raise BadInput(
            f"{where}: line {lines[(key,)]}: unknown key {key!a}; did you mean {meant}?",
            code="unknown_key",
        )
