"""Tasks and subagents as the store holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retinue.domain.contract import Contract
from retinue.domain.errors import Refused
from retinue.domain.ids import RunId, SubagentId, TaskId
from retinue.domain.lifecycle import Standing
from retinue.domain.result import Result

LEFT = "left to go on"  # said to a wait that is ended, but not what it waits for


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
    contract_text: str  # of which the hash is
    contract_sha256: str
    standing: Standing
    created_at: str
    started_at: str = ""
    ended_at: str = ""

    @property
    def gate(self) -> str:
        """The id of the gate that holds what it asked in its newest attempt."""
        return f"{self.id}-{self.standing.attempt}"


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A subagent about to be admitted: checked in every way that needs no transaction."""

    id: SubagentId | None
    contract: Contract
    step_idx: int | None = None  # its planned place; without one the next that is free
    refusal: Refused | None = None  # why it cannot begin now; one that exists already is found


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One launch of a subagent, and its process as long as that may live."""

    number: int
    boot_id: str
    pid: int
    start_ticks: int
    started_at: str
    started_monotonic_ms: int
    ended_at: str = ""
    result: Result | None = None  # what this attempt alone would have given the parent

    def logged_in(self, folder: str) -> Attempt:
        """The same, whose result names this folder as that of its logs."""
        if self.result is None:
            return self
        return replace(self, result=replace(self.result, log_path=folder))


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Questions that hold a blocked subagent until someone answers."""

    id: str
    subagent: SubagentId
    state: str  # open, approved, rejected
    questions: tuple[str, ...]
    answer: str = ""


def answered(gates: Sequence[Gate], subagent: SubagentId) -> list[Gate]:
    """What this subagent asked and was answered, in that order."""
    its = [gate for gate in gates if gate.subagent == subagent and gate.answer]
    return sorted(its, key=lambda gate: int(gate.id.rpartition("-")[2]))


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many of a task's subagents have which status; each counts once."""

    total: int = 0
    pending: int = 0
    running: int = 0
    blocked: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    unclosed: int = 0  # of all these, whatever their status


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a task's subagents spent, and apart from them the team its run was started with."""

    subagents: int
    input_tokens: int
    output_tokens: int
    estimated_cost: float
    root_input_tokens: int = 0
    root_output_tokens: int = 0
    root_cost: float = 0.0
