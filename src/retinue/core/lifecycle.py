"""States of a subagent, the transitions that events cause, and the step after an attempt.

A state is never set directly. A recorded event causes a transition or is refused.

    created ──> running ──> waiting_for_merge ──> completed ──┐
                   │                 │                        ├──> closed
                   └─────────────────┴──────────> failed ─────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from retinue.core import events
from retinue.core.budget import Number
from retinue.core.contract import Execution
from retinue.core.data_structures import replace_fields
from retinue.core.errors import IllegalTransition
from retinue.core.events import Event
from retinue.core.result import (
    OVER_BUDGET,
    Ending,
    EndKind,
    Result,
    Status,
    TokenUsage,
    select_best_attempt,
)


class State(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    WAITING_FOR_MERGE = "waiting_for_merge"
    COMPLETED = "completed"
    FAILED = "failed"
    CLOSED = "closed"


MOVES: Mapping[State, frozenset[State]] = {
    State.CREATED: frozenset({State.RUNNING}),
    State.RUNNING: frozenset({State.WAITING_FOR_MERGE, State.FAILED}),
    State.WAITING_FOR_MERGE: frozenset({State.COMPLETED, State.FAILED}),
    State.COMPLETED: frozenset({State.CLOSED}),
    State.FAILED: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}

LEADS_TO: Mapping[str, State] = {
    events.SUBAGENT_STARTED: State.RUNNING,
    events.SUBAGENT_WAITING: State.WAITING_FOR_MERGE,
    events.SUBAGENT_FAILED: State.FAILED,
    events.OUTPUT_ACCEPTED: State.COMPLETED,
    events.MERGED: State.COMPLETED,
    events.COPIED: State.COMPLETED,
    events.MERGE_FAILED: State.FAILED,
    events.SUBAGENT_CLOSED: State.CLOSED,
}

SETTLES = "settles"  # key in an event's payload: waiters are notified a second time
JOIN = "join"  # value of `awaits`: the run joins the output itself, and the subagent settles then

# Events about a launched process. They are refused in any state but `running`.
WHILE_RUNNING = frozenset(
    {
        events.SUBAGENT_ATTEMPT,
        events.STARTED,
        events.COMPLETED,
        events.FAILED,
        events.BLOCKED,
        events.CANCELLED,
    }
)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """State and counters of a subagent, computed from its events alone."""

    state: State = State.CREATED
    attempt: int = 0  # number of the newest attempt
    in_attempt: bool = False  # that attempt has started and its end is not recorded
    tries: int = 0  # ended attempts that ran something, since it was last blocked
    blocked: bool = False
    cancel_by: str = ""  # who requested cancellation; set before the attempt ends
    cancel_reason: str = ""
    cancelled: bool = False
    settled_seq: int = 0  # sequence number of the event that last settled it
    final_status: str = ""
    close_reason: str = ""
    node_losses: int = 0  # attempts that ended because their node was lost

    @property
    def holds_slot(self) -> bool:
        return self.state in _BEFORE_ITS_END and not self.blocked

    @property
    def ended(self) -> bool:
        """Whether the work has ended; only joining and closing can follow."""
        return self.state not in _BEFORE_ITS_END

    @property
    def settled(self) -> bool:
        return self.settled_seq > 0 and (self.blocked or self.state not in _BEFORE_ITS_END)

    @property
    def in_review(self) -> bool:
        """Whether its output waits for a person to approve it."""
        return self.blocked and self.state is State.WAITING_FOR_MERGE

    @property
    def status(self) -> str:
        """The status shown to people and agents."""
        if self.state is State.CREATED:
            return "pending"
        if self.state is State.RUNNING:
            return "blocked" if self.blocked else "running"
        if self.state is State.WAITING_FOR_MERGE:
            # Whether it completed is not known before its output is joined.
            return "blocked" if self.blocked else "waiting_for_merge"
        if self.cancelled:
            return "cancelled"
        if self.state is State.FAILED or self.final_status == "failed":
            return "failed"
        return "completed"


_BEFORE_ITS_END = (State.CREATED, State.RUNNING)

# Status -> state in the roster of task.yaml.
ROSTER_STATES: Mapping[str, str] = {
    "pending": "pending",
    "running": "active",
    "blocked": "awaiting",
    "waiting_for_merge": "active",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "failed",
}


def require_move(current: State, to: State) -> None:
    """Check a transition against MOVES.

    Raises:
        IllegalTransition: it is not listed.
    """
    if to not in MOVES[current]:
        raise IllegalTransition(f"a subagent that is {current} cannot become {to}")


def fold(standing: Standing, event: Event, seq: int) -> Standing:
    """Return the standing after this event.

    Raises:
        IllegalTransition: the event is not allowed in the current state.
    """
    kind = event.type
    if kind in WHILE_RUNNING and standing.state is not State.RUNNING:
        raise IllegalTransition(f"{kind} cannot follow while {standing.state}")
    if kind in LEADS_TO:
        require_move(standing.state, LEADS_TO[kind])
        standing = replace_fields(standing, state=LEADS_TO[kind])
    return _read_details(standing, event, seq)


def _read_details(standing: Standing, event: Event, seq: int) -> Standing:
    match event.type:
        case events.STARTED:
            return replace_fields(standing, attempt=event.attempt, in_attempt=True, blocked=False)
        case events.COMPLETED | events.FAILED:
            return replace_fields(standing, attempt=event.attempt, in_attempt=False)
        case events.SUBAGENT_ATTEMPT:
            return replace_fields(
                standing,
                tries=standing.tries + (event.payload.get("ran") is True),
                node_losses=standing.node_losses + (event.payload.get("node_lost") is True),
            )
        case events.CANCELLED:
            return replace_fields(standing, in_attempt=False, blocked=False, cancelled=True)
        case events.BLOCKED:
            # The SUBAGENT_ATTEMPT event of the blocked attempt follows and raises this to 0, so
            # the attempts after an answer start with all their retries.
            return replace_fields(
                standing, in_attempt=False, blocked=True, tries=-1, settled_seq=seq
            )
        case events.GATE_BLOCKED if standing.state is State.WAITING_FOR_MERGE:
            # A review. The questions of a child come with its BLOCKED event.
            return replace_fields(standing, blocked=True)
        case events.GATE_ANSWERED:
            # From here on the subagent occupies a slot again.
            return replace_fields(standing, blocked=False)
        case events.CANCEL_REQUESTED:
            reason = str(event.payload.get("reason", ""))
            return replace_fields(standing, cancel_by=event.by, cancel_reason=reason)
        case events.SUBAGENT_WAITING if event.payload.get("awaits") == JOIN:
            # The run joins this output itself. Waiters see one end, after the join.
            return replace_fields(standing, blocked=False, settled_seq=0)
        case events.SUBAGENT_WAITING | events.SUBAGENT_FAILED:
            return replace_fields(standing, blocked=False, settled_seq=seq)
        case events.OUTPUT_ACCEPTED | events.MERGED | events.COPIED | events.MERGE_FAILED:
            # A subagent that settled while it waited for its parent settles again only if the
            # event says so. One that waited for its run settles here for the first time.
            settles = event.payload.get(SETTLES) is True or not standing.settled_seq
            settled_seq = seq if settles else standing.settled_seq
            return replace_fields(standing, blocked=False, settled_seq=settled_seq)
        case events.SUBAGENT_CLOSED:
            return replace_fields(
                standing,
                final_status=str(event.payload["final_status"]),
                close_reason=str(event.payload["close_reason"]),
            )
    return standing


class Next(StrEnum):
    RETRY = "retry"
    BLOCK = "block"
    FINISH = "finish"


class FailureKind(StrEnum):
    EXECUTION = "execution"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    POLICY = "policy"
    INTEGRATION = "integration"


def decide_next_step(result: Result, ending: Ending, standing: Standing, terms: Execution) -> Next:
    """Decide between retry, block and finish.

    Errors use up the retries; timeouts do so only if the contract allows retries on timeout.
    """
    # A cancelled subagent is never retried, even if its attempt failed.
    if standing.cancel_by or result.success:
        return Next.FINISH
    if result.status is Status.BLOCKED:
        return Next.BLOCK
    # Nothing ran, so this attempt does not count.
    if ending.kind is EndKind.NEVER_RAN:
        return Next.RETRY
    # The child ran on a machine that is gone: it counts apart from the retries for errors.
    if ending.kind is EndKind.NODE_LOST:
        again = standing.node_losses < terms.retries_on_node_loss
        return Next.RETRY if again else Next.FINISH
    # For example a program that does not exist.
    if ending.hopeless:
        return Next.FINISH
    # LOST is not listed: how far the attempt had come is unknown, and it may have had effects.
    retriable = ending.kind in (EndKind.EXITED, EndKind.LAUNCH_FAILED) or (
        ending.kind is EndKind.DEADLINE and terms.retry_on_timeout
    )
    return Next.RETRY if retriable and standing.tries < terms.max_retries else Next.FINISH


def combine_attempts(results: Sequence[Result]) -> Result:
    """Return the best attempt with the spending and the time of all attempts."""
    if len(results) == 1:
        return results[0]
    best = select_best_attempt(results)
    usages = [result.token_usage for result in results]
    total = TokenUsage(
        input_tokens=_sum(usage.input_tokens for usage in usages),
        output_tokens=_sum(usage.output_tokens for usage in usages),
        estimated_cost=_sum(usage.estimated_cost for usage in usages),
        cached_tokens=_sum(usage.cached_tokens for usage in usages),
        reasoning_tokens=_sum(usage.reasoning_tokens for usage in usages),
        estimated=any(usage.estimated for usage in usages),
        unpriced=any(usage.unpriced for usage in usages),
    )
    seconds = sum(result.execution_time_seconds for result in results)
    return replace(best, token_usage=total, execution_time_seconds=round(seconds, 3))


def name_failure(result: Result, ending: Ending | None) -> FailureKind:
    if result.status is Status.CANCELLED:
        return FailureKind.CANCELLED
    if ending is not None and ending.kind is EndKind.DEADLINE:
        return FailureKind.TIMEOUT
    return FailureKind.EXECUTION


def close_reason(result: Result, ending: Ending | None, standing: Standing) -> str:
    """Return why a subagent is closed, as one of a fixed set of words."""
    if result.success:
        return "accepted"
    if result.status is Status.CANCELLED:
        return "cancelled_by_user" if standing.cancel_by == "user" else "cancelled_by_parent"
    if standing.blocked:
        return "blocked_unresolved"
    if result.error.startswith(OVER_BUDGET):
        return "budget_exceeded"
    if ending is not None and ending.kind is EndKind.NODE_LOST:
        return "node_lost"
    if ending is not None and ending.kind is EndKind.LOST:
        return "supervisor_lost" if ending.orphaned else "execution_failed"
    if name_failure(result, ending) is FailureKind.TIMEOUT:
        return "timeout"
    return "execution_failed"


def _sum(numbers: Iterable[Number | None]) -> Number | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
