"""What follows the end of an attempt: a retry, a gate, or the end of the subagent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from retinue.core.attempt_end import Ending, EndKind
from retinue.core.budget import Number
from retinue.core.contract import Execution
from retinue.core.lifecycle import Standing
from retinue.core.recovery import TokenUsage
from retinue.core.result import OVER_BUDGET, Result, Status, select_best_attempt


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
