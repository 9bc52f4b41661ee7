"""task.yaml: configuration by people, roster by us, in one file that both may edit."""

from __future__ import annotations

import copy
import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retinue.domain.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.domain.policy import NewConfig, TaskConfig
from retinue.domain.subagent import Gate, Task
from retinue.store.gates import edit_gates, listed
from retinue.store.pieces import Pieces, bad_yaml, block_of_key, split
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
KEYS = ("id", "title", "description", "createdAt", "updatedAt", "state", "config", "gates")
IN_CONFIG = ("maxConcurrentAgents", "timeoutSeconds", "agents", "orchestrator", "ui")

# Edits closer together than this may carry the same time stamp; where it is a whole second, longer.
_SETTLING_NS, _SETTLING_COARSE_NS = 20_000_000, 2_100_000_000


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What the file said when it was last read, and what that means, but for its roster."""

    fingerprint: Fingerprint
    certain: bool  # false while an edit could hide behind the same fingerprint
    pieces: Pieces
    ours: bool = False  # its roster is as we write it
    document: dict[str, object]
    lines: dict[Place, int]

    def piece_of(self, line: int) -> tuple[str, int]:
        """Which piece a line outside the roster is in, and the number of that piece's first."""
        first = self.pieces.tail_line
        return ("tail", first) if line >= first else ("head", 1)

    def after(
        self, pieces: Pieces, mark: Fingerprint, certain: bool, values: Mapping[str, str]
    ) -> _Known:
        """The same with a roster of another length and these values: nothing to parse again."""
        first = self.pieces.tail_line
        shift = pieces.tail_line - first
        below = {place: at + shift for place, at in self.lines.items() if at >= first}
        return replace(
            self,
            fingerprint=mark,
            certain=certain,
            pieces=pieces,
            ours=False,
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
        self,
        entries: Sequence[RosterEntry],
        state: str,
        updated_at: str,
        gates: Sequence[Gate] = (),
    ) -> bool:
        """These entries, the task's state and its open gates are in the file.

        Every other byte is as it was. Give only entries that changed, or everything. True
        when the roster could not be read and now holds the given entries alone: give
        everything next time. When nothing changes, nothing is written and `updatedAt` stays.

        Raises:
            BadInput: the file cannot be understood; it was not touched.
            IntegrityBroken: the file is gone; it is not made anew, for its configuration is lost.
            StorageFailed: the disk refused, or the file is being rewritten without pause.
        """
        for _ in range(TRIES):
            known = self._current()
            pieces, mark = known.pieces, known.fingerprint
            roster = edit_roster(pieces.roster, entries, ours=known.ours)
            edited = replace(self._with_values(pieces, known, {"state": state}), roster=roster.text)
            gates_differ = _other_gates(known, gates)
            if edited == pieces and not gates_differ:
                return False
            edited = self._with_values(edited, known, {"updatedAt": updated_at})
            if gates_differ:
                edited = _with_gates(edited, known, gates)
            if not pieces.roster:  # one that starts below everything else must fit there
                load_yaml(edited.text, where=str(self.path), limits=LARGE)
            written = replace_text(self.path, edited.text, mark)
            if written is not None:
                values = {"state": state, "updatedAt": updated_at}
                after = replace(known.after(edited, *written, values), ours=roster.ours)
                self._known = None if gates_differ else after  # lines below gates have moved
                return roster.lost
        raise StorageFailed(f"{self.path} is being rewritten by another program without pause")

    def _current(self) -> _Known:
        known = self._known
        if known is not None and known.certain and known.fingerprint == fingerprint(self.path):
            return known
        text, mark = read_text(self.path, SIZE_LIMIT)
        return self._learn(split(text, self.path), mark)

    def _learn(self, pieces: Pieces, mark: Fingerprint) -> _Known:
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
                document=document,
                lines=lines,
            )
        self._known = known
        return known

    def _parse(self, pieces: Pieces) -> tuple[dict[str, object], dict[Place, int]]:
        where = str(self.path)
        whole: dict[str, object] = {}
        lines: dict[Place, int] = {}
        for text, first in ((pieces.head, 1), (pieces.tail, pieces.tail_line)):
            here: dict[Place, int] = {}
            part = load_yaml(text, where=where, limits=OUTSIDE_ROSTER, first_line=first, lines=here)
            if not isinstance(part, dict | None):
                raise bad_yaml(f"{where}: line {here[()]}: expected keys and values")
            for key in part or {}:
                if key in whole or key == "roster":
                    raise bad_yaml(f"{where}: line {here[(key,)]}: key {key!a} appears twice")
            whole |= part or {}
            lines |= here
        if not isinstance(whole.get("id"), str):
            raise bad_yaml(f"{where}: line 1: id is missing; the file is cut short or not a task's")
        return whole, lines

    def _with_values(self, pieces: Pieces, known: _Known, values: Mapping[str, str]) -> Pieces:
        """The pieces with other values of these keys; a key that people removed stays away."""
        for key, value in values.items():
            at = known.lines.get((key,))
            if at is None:
                continue
            name, first = known.piece_of(at)
            lines = str(getattr(pieces, name)).split("\n")
            changed = with_value(lines[at - first], value)
            if changed is None:
                raise bad_yaml(f"{self.path}: line {at}: {key} must be one word on the same line")
            lines[at - first] = changed
            pieces = replace(pieces, **{name: "\n".join(lines)})
        return pieces


def _other_gates(known: _Known, gates: Sequence[Gate]) -> bool:
    """Whether the file shows other gates; where people removed them, none are missed."""
    shown = "gates" in known.document
    return shown and listed(known.document["gates"]) != {gate.id for gate in gates}


def _with_gates(pieces: Pieces, known: _Known, gates: Sequence[Gate]) -> Pieces:
    at = known.lines[("gates",)]
    name, first = known.piece_of(at)
    text = str(getattr(pieces, name))
    start, end = block_of_key(text, at - first)
    edited = text[:start] + edit_gates(text[start:end], gates) + text[end:]
    return replace(pieces, **{name: edited})


def _refuse_slips(document: Mapping[str, object], where: str, lines: Mapping[Place, int]) -> None:
    """A key of a person's own is welcome; one that looks like ours would be ignored unseen."""
    for key in document:
        near = difflib.get_close_matches(key, (*KEYS, *IN_CONFIG), n=1, cutoff=0.85)
        if key in KEYS or not near:
            continue
        meant = f"config.{near[0]}" if near[0] in IN_CONFIG else near[0]
        raise BadInput(
            f"{where}: line {lines[(key,)]}: unknown key {key!a}; did you mean {meant}?",
            code="unknown_key",
        )
