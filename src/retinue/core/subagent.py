"""Records of the store: tasks, subagents, attempts, gates and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retinue.core import events
from retinue.core.contract import Contract
from retinue.core.data_structures import replace_fields
from retinue.core.errors import Refused
from retinue.core.events import Event
from retinue.core.ids import RunId, SubagentId, TaskId
from retinue.core.lifecycle import Standing, fold
from retinue.core.result import Result

SUCCESSOR_PREFIX = 56  # characters of the first subagent's id that its successors' ids keep
LEFT = "left to go on"  # reason for ending a wait while its subagents keep running


@dataclass(frozen=True, kw_only=True)
class Task:
    id: TaskId
    run: RunId
    title: str
    description: str
    state: str  # open or closed
    outcome: str  # of its run
    created_at: str
    updated_at: str
    last_seq: int = 0
    next_step: int = 0


@dataclass(frozen=True, kw_only=True)
class Subagent:
    """A delegate with one contract and one lifecycle."""

    id: SubagentId
    task: TaskId
    run: RunId
    step_idx: int
    contract: Contract
    contract_text: str  # the stored text; contract_sha256 is its hash
    contract_sha256: str
    standing: Standing
    created_at: str
    started_at: str = ""
    ended_at: str = ""

    @property
    def gate(self) -> str:
        """Id of the gate with the questions of the newest attempt."""
        return f"{self.id}-{self.standing.attempt}"

    @property
    def takes_slot(self) -> bool:
        """Whether it counts towards the task's limit; the team of a run does not."""
        return self.standing.holds_slot and not self.contract.is_root


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Paths that an unfinished subagent may change on the integration branch."""

    subagent: SubagentId
    owns: tuple[str, ...]  # empty: every path
    working: bool  # it has started; it may also be blocked


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A subagent before admission; all checks that need no transaction have passed."""

    id: SubagentId | None
    contract: Contract
    step_idx: int | None = None  # planned step; None: the next free one
    refusal: Refused | None = None  # why a new one cannot start; an existing one is still found


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One launch of a subagent, with the identity of its process."""

    number: int
    boot_id: str
    pid: int
    start_ticks: int
    started_at: str
    started_monotonic_ms: int
    ended_at: str = ""
    result: Result | None = None  # of this attempt alone
    place: str = ""  # NODE/KEY on another machine; empty: this one

    def with_log_path(self, folder: str) -> Attempt:
        """Return the attempt with another log folder in its result."""
        if self.result is None:
            return self
        return replace(self, result=replace(self.result, log_path=folder))


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Questions of a blocked subagent, and the answer."""

    id: str
    subagent: SubagentId
    state: str  # open, approved, rejected
    questions: tuple[str, ...]
    answer: str = ""


def task_closed(task: str) -> Refused:
    """Return the refusal of new work in a closed task."""
    return Refused(
        f"task {task} is closed",
        code="task_closed",
        hint="it takes no more work: spawn in another task",
    )


def list_answers(gates: Sequence[Gate], subagent: SubagentId) -> list[Gate]:
    """Return the answered gates of this subagent, oldest first."""
    its = [gate for gate in gates if gate.subagent == subagent and gate.answer]
    # A gate's id ends in the number of the attempt that asked.
    return sorted(its, key=lambda gate: int(gate.id.rpartition("-")[2]))


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Number of a task's subagents by status; each counts once."""

    total: int = 0
    pending: int = 0
    running: int = 0
    blocked: int = 0
    waiting_for_merge: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    unclosed: int = 0  # in any status


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Spending of a task's subagents and, separately, of its root team."""

    subagents: int
    input_tokens: int
    output_tokens: int
    estimated_cost: float
    root_input_tokens: int = 0
    root_output_tokens: int = 0
    root_cost: float = 0.0
    unpriced_models: tuple[str, ...] = ()  # used by subagents; not in the cost
    root_unpriced_models: tuple[str, ...] = ()

    @property
    def all_unpriced_models(self) -> tuple[str, ...]:
        return tuple(sorted({*self.unpriced_models, *self.root_unpriced_models}))


def apply_event(subagent: Subagent, event: Event, seq: int, at: str) -> Subagent:
    """Return the subagent after this event, with the time that the event sets."""
    standing = fold(subagent.standing, event, seq)
    if event.type == events.SUBAGENT_STARTED:
        return replace_fields(subagent, standing=standing, started_at=at)
    if event.type in (events.SUBAGENT_WAITING, events.SUBAGENT_FAILED, events.BLOCKED):
        return replace_fields(subagent, standing=standing, ended_at=at)
    if event.type == events.STARTED:
        return replace_fields(subagent, standing=standing, ended_at="")
    if standing is subagent.standing:
        return subagent
    return replace_fields(subagent, standing=standing)
