"""What a team tells of itself: status.json, answers with their snapshots, and its conversation."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retinue.domain.conversation import Turn, Used
from retinue.domain.coordination import Table
from retinue.domain.ids import MemberId
from retinue.executors.snapshots import snapshot
from retinue.files import write_all, write_atomic
from retinue.wire.conversation import turn_to_json

APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Witness:
    """The only writer of the team's logs. Every reader finds the newest whole statement."""

    def __init__(self, logs: Path, members: list[MemberId]) -> None:
        self._logs = logs
        self._began = time.time()
        self._since = time.monotonic()
        self._used = dict.fromkeys(members, Used())
        self._history: list[dict[str, Any]] = []
        self.owes = False  # something was spent that it has not told
        self._said = os.open(logs / "conversation.jsonl", APPENDING, 0o644)
        self._notices = logs / "notices.jsonl"

    def spent(self, member: MemberId, used: Used) -> None:
        self._used[member] += used
        self.owes = True

    def said(self, member: MemberId, turn: Turn) -> None:
        line = turn_to_json(member, turn, _now().isoformat(timespec="milliseconds"))
        write_all(self._said, json.dumps(line, ensure_ascii=True).encode() + b"\n")

    def refused(self, member: MemberId, tool: str, why: str) -> None:
        """The steward reads it at the end of the attempt, and records it."""
        notice = {"kind": "tool_denied", "member": member, "tool": tool[:80], "reason": why[:400]}
        with open(self._notices, "a", encoding="utf-8") as file:
            file.write(json.dumps(notice, ensure_ascii=True) + "\n")

    def stamp(self, member: MemberId) -> str:
        """A name for the next answer's folder that sorts by time and is not taken."""
        at = _now()
        while True:
            name = f"{at:%Y%m%d_%H%M%S}_{at.microsecond:06d}"
            if not (self._logs / member / name).exists():
                return name
            at = _now()

    def keep_answer(self, member: MemberId, stamp: str, label: str, text: str, home: Path) -> Path:
        """The answer lies in its folder, with a copy of what its author's files were then."""
        folder = self._logs / member / stamp
        folder.mkdir(parents=True)
        copy = folder / "workspace"
        snapshot(home, copy)
        write_atomic(folder / "answer.txt", text.encode("utf-8", "replace"), 0o644)
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


def _usage(used: Used) -> dict[str, int | float]:
    return {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "estimated_cost": used.cost,
    }


def _now() -> datetime:
    return datetime.now(UTC)
