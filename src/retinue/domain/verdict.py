"""What follows from an attempt's end: another attempt, a wait for an answer, or the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from retinue.domain.budget import Number
from retinue.domain.contract import Execution
from retinue.domain.ending import Ending, EndKind
from retinue.domain.lifecycle import Standing
from retinue.domain.recovery import TokenUsage
from retinue.domain.result import OVER_BUDGET, Result, Status, best_attempt


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


def what_next(result: Result, ending: Ending, standing: Standing, terms: Execution) -> Next:
    """Execution errors use up the retries; time-outs only if the contract says so.

    A cancelled one is never tried again, nor one that was lost with its
    supervisor: nobody knows how far it had come; nor a program that is not
    there. One that never ran anything has used up nothing.
    """
    if standing.cancel_by or result.success:
        return Next.FINISH
    if result.status is Status.BLOCKED:
        return Next.BLOCK
    if ending.kind is EndKind.NEVER_RAN:
        return Next.RETRY
    if ending.hopeless:
        return Next.FINISH
    retriable = ending.kind in (EndKind.EXITED, EndKind.LAUNCH_FAILED) or (
        ending.kind is EndKind.DEADLINE and terms.retry_on_timeout
    )
    return Next.RETRY if retriable and standing.tries < terms.max_retries else Next.FINISH


def overall(results: Sequence[Result]) -> Result:
    """What the parent receives of several attempts: the best one, and what all of them spent."""
    if len(results) == 1:
        return results[0]
    best = best_attempt(results)
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


def failure_kind(result: Result, ending: Ending | None) -> FailureKind:
    if result.status is Status.CANCELLED:
        return FailureKind.CANCELLED
    if ending is not None and ending.kind is EndKind.DEADLINE:
        return FailureKind.TIMEOUT
    return FailureKind.EXECUTION


def close_reason(result: Result, ending: Ending | None, standing: Standing) -> str:
    """Why a subagent is closed: one of a small set of words, for readers that branch on it."""
    if result.success:
        return "accepted"
    if result.status is Status.CANCELLED:
        return "cancelled_by_user" if standing.cancel_by == "user" else "cancelled_by_parent"
    if standing.blocked:
        return "blocked_unresolved"
    if result.error.startswith(OVER_BUDGET):
        return "budget_exceeded"
    if ending is not None and ending.kind is EndKind.LOST:
        return "supervisor_lost" if ending.orphaned else "execution_failed"
    if failure_kind(result, ending) is FailureKind.TIMEOUT:
        return "timeout"
    return "execution_failed"


def _sum(numbers: Iterable[Number | None]) -> Number | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
