"""Facts that are appended and never changed.

Two levels, and nothing is said twice. Delegation: what became of a subagent,
in the order created, started, attempt*, then waiting_for_merge with its
integration, or failed, and at last closed. Attempt: what became of each
process that was launched for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retinue.domain.ids import RunId, SubagentId, TaskId

TASK_CREATED = "task.created"
TASK_CLOSED = "task.closed"
RUN_STARTED = "run.started"
RUN_ENDED = "run.ended"
INTEGRATION_ORDER = "run.integration_order"
STOP_REQUESTED = "run.stop_requested"
PLAN_ENDED = "run.plan_ended"
GATE_BLOCKED = "gate.blocked"
GATE_ANSWERED = "gate.answered"

SUBAGENT_CREATED = "agent.subagent_created"
SUBAGENT_STARTED = "agent.subagent_started"
SUBAGENT_ATTEMPT = "agent.subagent_attempt"
SUBAGENT_WAITING = "agent.subagent_waiting_for_merge"
SUBAGENT_FAILED = "agent.subagent_failed"
SUBAGENT_CLOSED = "agent.subagent_closed"
OUTPUT_ACCEPTED = "agent.output_accepted"
MERGED = "agent.worktree_merged"
COPIED = "agent.output_copied"
MERGE_FAILED = "agent.worktree_merge_failed"

STARTED = "agent.started"
COMPLETED = "agent.completed"
FAILED = "agent.failed"
BLOCKED = "agent.blocked"
DELEGATION_GRANTED = "agent.delegation_granted"
DELEGATION_DENIED = "agent.delegation_denied"
TOOL_DENIED = "agent.tool_denied"
MESSAGE_SENT = "agent.message_sent"
NETWORK_GRANTED = "agent.network_granted"
BUDGET_EXCEEDED = "agent.budget_exceeded"
GATEWAY_LOST = "agent.gateway_lost"
PROVIDER_COOLDOWN = "provider.cooldown"
CANCEL_REQUESTED = "agent.cancel_requested"
CANCELLED = "agent.cancelled"

SUMMARY_LIMIT = 120


@dataclass(frozen=True, kw_only=True)
class Event:
    """A fact about to be recorded; the store numbers and dates it."""

    type: str
    summary: str
    by: str = "steward"
    subagent: SubagentId | None = None
    attempt: int = 0
    payload: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A fact as it stands in the log for ever."""

    seq: int
    ts: str
    task: TaskId
    run: RunId
    step_idx: int | None
    contract_sha256: str | None
    event: Event


def shorten(text: str, limit: int = SUMMARY_LIMIT) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
