"""Writer of a team's logs: status.json, answers with snapshots, conversation and notices."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from retinue.core.conversation import ReplyUsage, Turn
from retinue.core.ids import MemberId
from retinue.core.voting import Table
from retinue.files import storage_failures, write_all, write_atomic
from retinue.formats.testimony_json import turn_to_json
from retinue.team.tree_copy import MissingFiles, copy, walk

MOST_SNAPSHOT_FILES = 2000
MOST_SNAPSHOT_BYTES = 64 * 1024 * 1024
CUT = "SNAPSHOT_CUT"
LAST_WORDS = "last_words.txt"  # of a coding agent, beside the folders of its answers
NOT_COPIED = {".git", ".retinue"}


def copy_snapshot(source: Path, target: Path) -> MissingFiles:
    """Copy a folder as the snapshot of an answer, up to the limits; return what is missing.

    A snapshot that is not complete says so in the file SNAPSHOT_CUT.
    """
    lacking = MissingFiles(source)
    with lacking.collect_errors(source):
        target.mkdir(parents=True, exist_ok=True)
    files, size, cut = 0, 0, ""
    for path, at in walk(source, lacking, but=NOT_COPIED):
        if not (stat.S_ISREG(at.st_mode) or stat.S_ISLNK(at.st_mode)):
            # Pipes and sockets have no content.
            continue
        files = files + 1
        size = size + at.st_size
        if files > MOST_SNAPSHOT_FILES or size > MOST_SNAPSHOT_BYTES:
            cut = "more than a snapshot may hold\n"
            break
        with lacking.collect_errors(path):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            copy(path, place)
    if lacking:
        cut += f"left out: {lacking}\n"
    if cut:
        # A failure here must not cost the answer.
        with suppress(OSError):
            (target / CUT).write_bytes(cut.encode("utf-8", "replace"))
    return lacking


Clock = Callable[[], datetime]
NOW: Clock = partial(datetime.now, UTC)
APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class TestimonyWriter:
    """Only writer of the team's logs. status.json is replaced atomically."""

    def __init__(
        self,
        logs: Path,
        members: list[MemberId],
        now: Clock = NOW,
        configured: Mapping[MemberId, str] | None = None,
    ) -> None:
        """`configured` maps each member to its id in the configuration, which may differ."""
        self._logs = logs
        self._configured = configured or {}
        self._now = now
        self._began = time.time()
        self._since = time.monotonic()
        self._used = dict.fromkeys(members, ReplyUsage())
        self._history: list[dict[str, Any]] = []
        self.has_unwritten_spending = (
            False  # whether there is spending that status.json does not show
        )
        self._said = os.open(logs / "conversation.jsonl", APPENDING, 0o644)
        self._notices = logs / "notices.jsonl"
        self._stamped: dict[MemberId, datetime] = {}  # time stamp of each member's last answer
        self._lacks: dict[str, str] = {}  # last note on missing files, by subject
        self._agents: dict[MemberId, dict[str, Any]] = {}  # what coding agents do

    def record_spending(self, member: MemberId, used: ReplyUsage) -> None:
        self._used[member] += used
        self.has_unwritten_spending = True

    def record_turn(self, member: MemberId, turn: Turn) -> None:
        line = turn_to_json(member, turn, self._now().isoformat(timespec="milliseconds"))
        write_all(self._said, json.dumps(line, ensure_ascii=True).encode() + b"\n")

    def record_refusal(self, member: MemberId, tool: str, why: str) -> None:
        """Write a notice that the steward records as an event at the end of the attempt."""
        self._write_notice(kind="tool_denied", member=member, tool=tool[:80], reason=why[:400])

    def record_delegation_refusal(self, member: MemberId, tool: str, why: str) -> None:
        """Write such a notice for a delegation tool."""
        self._write_notice(
            kind="delegation_denied", member=member, tool=tool[:80], reason=why[:400]
        )

    def record_notice(self, kind: str, member: MemberId, **facts: str) -> None:
        """Write a notice on a coding agent that becomes an event at the end of the attempt."""
        shown = {name: text[:400] for name, text in facts.items()}
        self._write_notice(kind=kind, member=member, **shown)

    def show_agent(self, member: MemberId, **facts: object) -> None:
        """Show facts about a coding agent in status.json, from its next writing on."""
        self._agents.setdefault(member, {}).update(facts)
        self.has_unwritten_spending = True

    def keep_words(self, member: MemberId, text: str, *, whole: bool) -> None:
        """Keep the last words of a coding agent, for an attempt that ends without an answer.

        An empty text removes those kept before.
        """
        folder = self._logs / member
        if not text:
            with suppress(OSError):
                (folder / LAST_WORDS).unlink(missing_ok=True)
            return
        marked = text if whole else f"{text}\n[cut off]"
        # A full disk costs these words, but not the work.
        with suppress(OSError):
            folder.mkdir(exist_ok=True)
            write_atomic(folder / LAST_WORDS, marked.encode("utf-8", "replace"), 0o644)

    def record_missing(self, what: str, lacking: MissingFiles) -> None:
        """Note missing files for the result; the newest note on a subject counts."""
        told = f"{what} {lacking}"[:400] if lacking else ""
        if told != self._lacks.get(what, ""):
            self._lacks[what] = told
            self._write_notice(kind="left_out", what=what, note=told)

    def record_departure(self, member: MemberId, why: str) -> None:
        """Note for the result why the team continued without a member."""
        note = f"{member} took no further part: {why}"[:400]
        self._write_notice(kind="left_out", what=member, note=note)

    def keep_answer(self, member: MemberId, label: str, text: str, home: Path) -> Path:
        """Write an answer and a snapshot of its author's files; return the snapshot's path."""
        stamp = self._make_stamp(member)
        folder = self._logs / member / stamp
        copy = folder / "workspace"
        with storage_failures(folder):
            folder.mkdir(parents=True)
        # Before the snapshot: a file that cannot be copied must not cost the answer.
        write_atomic(folder / "answer.txt", text.encode("utf-8", "replace"), 0o644)
        self.record_missing(
            f"the files kept with {member}'s answer {label} lack", copy_snapshot(home, copy)
        )
        self._history.append(
            {
                "agentId": member,
                "answerLabel": label,
                "timestamp": stamp,
                "workspacePath": str(copy),
            }
        )
        return copy

    def write_status(self, table: Table) -> None:
        total = sum(self._used.values(), ReplyUsage())
        document = {
            "meta": {
                "elapsed_seconds": round(time.monotonic() - self._since, 3),
                "start_time": self._began,
            },
            "costs": {
                "total_input_tokens": total.input_tokens,
                "total_output_tokens": total.output_tokens,
                "total_estimated_cost": total.cost,
            },
            "coordination": {
                "phase": table.phase.value,
                "completion_percentage": table.percentage,
            },
            "agents": {
                seat.id: {
                    "status": seat.status,
                    "configured_id": self._configured.get(seat.id, seat.id),
                    "answer_count": len(seat.answers),
                    "vote": seat.vote,
                    "token_usage": _format_usage(self._used[seat.id]),
                    **({"error": seat.gone} if seat.gone else {}),
                    **self._agents.get(seat.id, {}),
                }
                for seat in table.seats
            },
            "results": {"winner": table.winner, "votes": table.labelled_votes},
            "historical_workspaces": self._history,
        }
        text = json.dumps(document, ensure_ascii=True)
        write_atomic(self._logs / "status.json", text.encode(), 0o644)
        self.has_unwritten_spending = False

    def close(self) -> None:
        os.close(self._said)

    def _make_stamp(self, member: MemberId) -> str:
        """Return an unused folder name that sorts after the member's earlier ones.

        The clock may step back, so it alone does not guarantee this.
        """
        at = self._now()
        step = timedelta(microseconds=1)
        if member in self._stamped:
            at = max(at, self._stamped[member] + step)
        while (self._logs / member / _format_stamp(at)).exists():
            at += step
        self._stamped[member] = at
        return _format_stamp(at)

    def _write_notice(self, **notice: str) -> None:
        # A full disk or a broken log folder costs the notice, but not the work.
        with suppress(OSError), open(self._notices, "a", encoding="utf-8") as file:
            file.write(json.dumps(notice, ensure_ascii=True) + "\n")


def _format_usage(used: ReplyUsage) -> dict[str, int | float]:
    return {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "estimated_cost": used.cost,
    }


def _format_stamp(at: datetime) -> str:
    return f"{at:%Y%m%d_%H%M%S}_{at.microsecond:06d}"
