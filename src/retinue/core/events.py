"""Events: facts that are appended and never changed.

There are two levels. Subagent events follow a subagent: created, started, attempt*,
then waiting_for_merge with its integration or failed, and finally closed. Attempt
events follow each process that was launched for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retinue.core.budget import Spending
from retinue.core.ids import RunId, SubagentId, TaskId

# Task, run and gate.
TASK_CREATED = "task.created"
TASK_CLOSED = "task.closed"
RUN_STARTED = "run.started"
RUN_ENDED = "run.ended"
INTEGRATION_ORDER = "run.integration_order"
STOP_REQUESTED = "run.stop_requested"
PLAN_ENDED = "run.plan_ended"
GATE_BLOCKED = "gate.blocked"
GATE_ANSWERED = "gate.answered"

# Subagent level: these cause the transitions in `lifecycle`.
SUBAGENT_CREATED = "agent.subagent_created"
SUBAGENT_STARTED = "agent.subagent_started"
SUBAGENT_ATTEMPT = "agent.subagent_attempt"
SUBAGENT_WAITING = "agent.subagent_waiting_for_merge"
SUBAGENT_FAILED = "agent.subagent_failed"
SUBAGENT_CLOSED = "agent.subagent_closed"
OUTPUT_CHECKED = "agent.output_checked"  # it could be joined now, and is yet to be judged
OUTPUT_ACCEPTED = "agent.output_accepted"
MERGED = "agent.worktree_merged"
COPIED = "agent.output_copied"
MERGE_FAILED = "agent.worktree_merge_failed"

# Attempt level.
STARTED = "agent.started"
COMPLETED = "agent.completed"
FAILED = "agent.failed"
BLOCKED = "agent.blocked"
DELEGATION_GRANTED = "agent.delegation_granted"
DELEGATION_DENIED = "agent.delegation_denied"
TOOL_DENIED = "agent.tool_denied"
REQUEST_DENIED = "agent.request_denied"
MESSAGE_SENT = "agent.message_sent"
NETWORK_GRANTED = "agent.network_granted"
BUDGET_EXCEEDED = "agent.budget_exceeded"
GATEWAY_LOST = "agent.gateway_lost"
PROVIDER_COOLDOWN = "provider.cooldown"
# Coding agents.
AGENT_SESSION = "agent.session"
AGENT_STEERED = "agent.steered"
AGENT_PERMISSION = "agent.permission"
AGENT_WARNING = "agent.warning"
PLACED = "agent.placed"
# Nodes, in the log of each task that has subagents on nodes.
NODE = "node."
NODE_JOINED = "node.joined"
NODE_SUSPECTED = "node.suspected"
NODE_LOST = "node.lost"
NODE_LEFT = "node.left"
CANCEL_REQUESTED = "agent.cancel_requested"
CANCELLED = "agent.cancelled"


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event before it is recorded; the store adds number and time."""

    type: str
    summary: str
    by: str = "steward"
    subagent: SubagentId | None = None
    attempt: int = 0
    payload: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """An event as the log holds it."""

    seq: int
    ts: str
    task: TaskId
    run: RunId
    step_idx: int | None
    contract_sha256: str | None
    event: Event


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Filter for events; an empty field matches every event."""

    kinds: tuple[str, ...] = ()  # patterns of event types
    subagent: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class EventMatches:
    """Matching events, newest first; `before` continues the search, 0 at the end."""

    events: list[Recorded]
    before: int


@dataclass(frozen=True, kw_only=True)
class BilledRequest:
    """A model request as the ledger holds it."""

    entry: int  # numbered when the request began
    task: TaskId
    subagent: SubagentId
    ts: str  # when it ended
    attempt: int
    provider: str
    model: str
    status: str
    spending: Spending
    priced: bool  # whether the cost is known
    seconds: float | None = None  # until the answer had ended; None if it was not measured
