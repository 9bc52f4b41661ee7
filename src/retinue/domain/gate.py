"""What the children's ends make of the run's end."""

from __future__ import annotations

from enum import StrEnum

from retinue.domain.subagent import Counts, Task


class RunOutcome(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


def outcome(*, unclosed: int, failed: int) -> RunOutcome:
    """Undecided until every child is closed; then failed if any of them failed."""
    if unclosed:
        return RunOutcome.RUNNING
    return RunOutcome.FAILED if failed else RunOutcome.SUCCEEDED


def outcome_of(counts: Counts) -> RunOutcome:
    """The same of all subagents of a run; who was cancelled has failed."""
    return outcome(unclosed=counts.unclosed, failed=counts.failed + counts.cancelled)


def outcome_by_now(task: Task, counts: Counts) -> RunOutcome:
    """The outcome of a closed task's run; of an open one, what it would be if it were closed now.

    That is no success before anybody was delegated to, nor before every planned step began.
    """
    if task.state == "closed":
        return RunOutcome(task.outcome)
    by_now = outcome_of(counts)
    early = counts.total < max(1, task.next_step)
    return RunOutcome.RUNNING if early and by_now is RunOutcome.SUCCEEDED else by_now
