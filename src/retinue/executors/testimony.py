"""What a team tells of itself: status.json, answers with their snapshots, and its conversation."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from retinue.domain.conversation import Turn, Used
from retinue.domain.coordination import Table
from retinue.domain.ids import MemberId
from retinue.executors.snapshots import snapshot
from retinue.executors.trees import Lacking
from retinue.files import storage_failures, write_all, write_atomic
from retinue.wire.conversation import turn_to_json

Clock = Callable[[], datetime]
NOW: Clock = partial(datetime.now, UTC)
APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Witness:
    """The only writer of the team's logs. Every reader finds the newest whole statement."""

    def __init__(self, logs: Path, members: list[MemberId], now: Clock = NOW) -> None:
        self._logs = logs
        self._now = now
        self._began = time.time()
        self._since = time.monotonic()
        self._used = dict.fromkeys(members, Used())
        self._history: list[dict[str, Any]] = []
        self.owes = False  # something was spent that it has not told
        self._said = os.open(logs / "conversation.jsonl", APPENDING, 0o644)
        self._notices = logs / "notices.jsonl"
        self._stamped: dict[MemberId, datetime] = {}  # when each last answered
        self._lacks: dict[str, str] = {}  # as it was last told, by what lacks something

    def spent(self, member: MemberId, used: Used) -> None:
        self._used[member] += used
        self.owes = True

    def said(self, member: MemberId, turn: Turn) -> None:
        line = turn_to_json(member, turn, self._now().isoformat(timespec="milliseconds"))
        write_all(self._said, json.dumps(line, ensure_ascii=True).encode() + b"\n")

    def refused(self, member: MemberId, tool: str, why: str) -> None:
        """The steward reads it at the end of the attempt, and records it."""
        self._notice(kind="tool_denied", member=member, tool=tool[:80], reason=why[:400])

    def not_delegated(self, member: MemberId, tool: str, why: str) -> None:
        """Likewise, of a tool by which it would have delegated."""
        self._notice(kind="delegation_denied", member=member, tool=tool[:80], reason=why[:400])

    def lacks(self, what: str, lacking: Lacking) -> None:
        """The result will say what is not whole, as it was last told."""
        told = f"{what} {lacking}"[:400] if lacking else ""
        if told != self._lacks.get(what, ""):
            self._lacks[what] = told
            self._notice(kind="left_out", what=what, note=told)

    def keep_answer(self, member: MemberId, label: str, text: str, home: Path) -> Path:
        """The answer lies in its folder, with a copy of what its author's files were then.

        It comes first: no file that cannot be copied costs it.
        """
        stamp = self._stamp(member)
        folder = self._logs / member / stamp
        copy = folder / "workspace"
        with storage_failures(folder):
            folder.mkdir(parents=True)
        write_atomic(folder / "answer.txt", text.encode("utf-8", "replace"), 0o644)
        self.lacks(f"the files kept with {member}'s answer {label} lack", snapshot(home, copy))
        self._history.append(
            {
                "agentId": member,
                "answerLabel": label,
                "timestamp": stamp,
                "workspacePath": str(copy),
            }
        )
        return copy

    def testify(self, table: Table) -> None:
        """status.json says how the team stands now."""
        total = sum(self._used.values(), Used())
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
                    "answer_count": len(seat.answers),
                    "vote": seat.vote,
                    "token_usage": _usage(self._used[seat.id]),
                    **({"error": seat.gone} if seat.gone else {}),
                }
                for seat in table.seats
            },
            "results": {"winner": table.winner, "votes": table.labelled_votes},
            "historical_workspaces": self._history,
        }
        text = json.dumps(document, ensure_ascii=True)
        write_atomic(self._logs / "status.json", text.encode(), 0o644)
        self.owes = False

    def close(self) -> None:
        os.close(self._said)

    def _stamp(self, member: MemberId) -> str:
        """A name for the next answer's folder that sorts behind its earlier ones and is not taken,
        whatever the clock says.
        """
        at, step = self._now(), timedelta(microseconds=1)
        if member in self._stamped:
            at = max(at, self._stamped[member] + step)
        while (self._logs / member / _name(at)).exists():
            at += step
        self._stamped[member] = at
        return _name(at)

    def _notice(self, **notice: str) -> None:
        # Whoever filled the disk, or broke our logs, loses the notice, and not its work.
        with suppress(OSError), open(self._notices, "a", encoding="utf-8") as file:
            file.write(json.dumps(notice, ensure_ascii=True) + "\n")


def _usage(used: Used) -> dict[str, int | float]:
    return {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "estimated_cost": used.cost,
    }


def _name(at: datetime) -> str:
    return f"{at:%Y%m%d_%H%M%S}_{at.microsecond:06d}"
