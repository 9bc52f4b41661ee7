"""What follows the end of an attempt: retry, gate or end."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.contract import Execution
from retinue.core.lifecycle import (
    FailureKind,
    Next,
    Standing,
    State,
    close_reason,
    combine_attempts,
    decide_next_step,
    name_failure,
)
from retinue.core.result import OVER_BUDGET, Ending, EndKind, Result, Status, TokenUsage
from support.values import RESULT

RUNNING = Standing(state=State.RUNNING, attempt=1)
TERMS = Execution(attempt_timeout_ms=1000, max_retries=1)
EXITED = Ending(kind=EndKind.EXITED, exit_code=1)
DEADLINE = Ending(kind=EndKind.DEADLINE)
LOST = Ending(kind=EndKind.LOST)
CLOSE_REASONS = {
    "accepted", "execution_failed", "timeout", "cancelled_by_user", "cancelled_by_parent",
    "supervisor_lost", "node_lost", "budget_exceeded",
}  # fmt: skip
ERRORS = ("", "it broke", f"{OVER_BUDGET}: 10 tokens")


def result(status: Status, answer: str | None = None, **usage: float) -> Result:
    used = TokenUsage(**usage)  # type: ignore[arg-type]
    return replace(
        RESULT, status=status, answer=answer, execution_time_seconds=1.25, token_usage=used
    )


ERROR = result(Status.ERROR)


class TestNext:
    @pytest.mark.parametrize("kind", [EndKind.EXITED, EndKind.LAUNCH_FAILED])
    @pytest.mark.parametrize(("tries", "then"), [(0, Next.RETRY), (1, Next.FINISH)])
    @pytest.mark.requirement("R96")
    def test_execution_errors_use_up_the_retries(
        self, kind: EndKind, tries: int, then: Next
    ) -> None:
        ending, standing = Ending(kind=kind, exit_code=1), replace(RUNNING, tries=tries)
        assert decide_next_step(ERROR, ending, standing, TERMS) is then

    def test_a_hopeless_attempt_is_not_retried(self) -> None:
        ending = Ending(kind=EndKind.LAUNCH_FAILED, error="ENOENT", hopeless=True)
        assert (
            decide_next_step(ERROR, ending, RUNNING, replace(TERMS, max_retries=10)) is Next.FINISH
        )

    @pytest.mark.parametrize("again", [True, False])
    def test_timeouts_are_retried_only_if_the_contract_says_so(self, again: bool) -> None:
        terms = replace(TERMS, retry_on_timeout=again)
        timeout = result(Status.TIMEOUT)
        expected = Next.RETRY if again else Next.FINISH
        assert decide_next_step(timeout, DEADLINE, RUNNING, terms) is expected

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.COMPLETED_BUT_TIMEOUT])
    def test_a_success_is_never_retried(self, status: Status) -> None:
        terms = replace(TERMS, retry_on_timeout=True, max_retries=10)
        for ending in (EXITED, DEADLINE, LOST):
            assert decide_next_step(result(status, "x"), ending, RUNNING, terms) is Next.FINISH

    def test_a_cancelled_subagent_is_never_retried(self) -> None:
        standing = replace(RUNNING, cancel_by="user")
        for status, kind in product(Status, EndKind):
            then = decide_next_step(result(status), Ending(kind=kind), standing, TERMS)
            assert then is Next.FINISH

    @pytest.mark.parametrize("kind", [EndKind.LOST, EndKind.STOPPED])
    def test_a_lost_attempt_is_not_retried(self, kind: EndKind) -> None:
        assert decide_next_step(ERROR, Ending(kind=kind), RUNNING, TERMS) is Next.FINISH

    def test_an_attempt_that_never_ran_uses_no_retry(self) -> None:
        ending, standing = Ending(kind=EndKind.NEVER_RAN), replace(RUNNING, tries=99)
        assert decide_next_step(ERROR, ending, standing, TERMS) is Next.RETRY

    def test_a_question_blocks_the_subagent(self) -> None:
        assert decide_next_step(result(Status.BLOCKED), EXITED, RUNNING, TERMS) is Next.BLOCK


class TestOverall:
    def test_the_parent_receives_the_best_attempt(self) -> None:
        attempts = [result(Status.PARTIAL, "half"), result(Status.ERROR)]
        assert combine_attempts(attempts).answer == "half"
        assert combine_attempts([*attempts, result(Status.COMPLETED, "all")]).answer == "all"

    def test_the_spending_of_all_attempts_is_added_up(self) -> None:
        whole = combine_attempts(
            [
                result(Status.ERROR, input_tokens=5, estimated_cost=0.5),
                result(Status.ERROR),
                result(Status.COMPLETED, "x", input_tokens=7, output_tokens=1),
            ]
        )
        assert whole.token_usage == TokenUsage(input_tokens=12, output_tokens=1, estimated_cost=0.5)
        assert whole.execution_time_seconds == 3.75

    def test_unreported_usage_stays_unknown(self) -> None:
        assert combine_attempts([ERROR, ERROR]).token_usage == TokenUsage()

    @given(st.lists(st.sampled_from(list(Status)), min_size=1, max_size=6))
    def test_a_later_attempt_never_replaces_a_success(self, statuses: list[Status]) -> None:
        attempts = [result(status, f"answer {n}") for n, status in enumerate(statuses)]
        whole = combine_attempts(attempts)
        if statuses[-1] not in (Status.CANCELLED, Status.BLOCKED):
            assert whole.success == any(each.success for each in attempts)


class TestReasons:
    @pytest.mark.requirement("R136")
    @pytest.mark.parametrize(
        ("status", "ending", "standing", "reason"),
        [
            (Status.COMPLETED, EXITED, RUNNING, "accepted"),
            (Status.COMPLETED_BUT_TIMEOUT, DEADLINE, RUNNING, "accepted"),
            (Status.ERROR, EXITED, RUNNING, "execution_failed"),
            (Status.TIMEOUT, DEADLINE, RUNNING, "timeout"),
            (Status.PARTIAL, DEADLINE, RUNNING, "timeout"),
            (Status.PARTIAL, EXITED, RUNNING, "execution_failed"),
            (Status.ERROR, LOST, RUNNING, "execution_failed"),
            (Status.ERROR, replace(LOST, orphaned=True), RUNNING, "supervisor_lost"),
            (Status.CANCELLED, EXITED, replace(RUNNING, cancel_by="user"), "cancelled_by_user"),
            (Status.CANCELLED, None, replace(RUNNING, cancel_by="parent"), "cancelled_by_parent"),
        ],
    )
    def test_each_end_has_its_close_reason(
        self, status: Status, ending: Ending | None, standing: Standing, reason: str
    ) -> None:
        assert close_reason(result(status), ending, standing) == reason

    @pytest.mark.requirement("R136")
    def test_only_known_close_reasons_occur(self) -> None:
        ends = product(Status, ERRORS, EndKind, (True, False), ("", "user", "parent"))
        found = {
            close_reason(
                replace(result(status), error=error),
                Ending(kind=kind, orphaned=orphaned),
                replace(RUNNING, cancel_by=by),
            )
            for status, error, kind, orphaned, by in ends
        }
        assert found == CLOSE_REASONS

    @pytest.mark.requirement("R110")
    @pytest.mark.parametrize(
        ("status", "ending", "kind"),
        [
            (Status.ERROR, EXITED, FailureKind.EXECUTION),
            (Status.TIMEOUT, DEADLINE, FailureKind.TIMEOUT),
            (Status.PARTIAL, DEADLINE, FailureKind.TIMEOUT),
            (Status.CANCELLED, DEADLINE, FailureKind.CANCELLED),
            (Status.ERROR, None, FailureKind.EXECUTION),
        ],
    )
    def test_a_failure_names_its_cause(
        self, status: Status, ending: Ending | None, kind: FailureKind
    ) -> None:
        assert name_failure(result(status), ending) is kind
