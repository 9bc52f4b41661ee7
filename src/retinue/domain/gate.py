"""What the children's ends make of the run's end."""

from __future__ import annotations

from enum import StrEnum


class RunOutcome(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


def outcome(*, unclosed: int, failed: int) -> RunOutcome:
    """Undecided until every child is closed; then failed if any of them failed."""
    if unclosed:
        return RunOutcome.RUNNING
    return RunOutcome.FAILED if failed else RunOutcome.SUCCEEDED
