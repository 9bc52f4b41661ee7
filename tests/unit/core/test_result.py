"""How the end of an attempt becomes the result a parent receives."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.ids import MemberId, SubagentId
from retinue.core.result import (
    Declared,
    Ending,
    EndKind,
    Evidence,
    FinalDeclaration,
    Result,
    Salvage,
    Status,
    Testimony,
    TokenUsage,
    count_results,
    decide_result,
    select_best_attempt,
)
from retinue.core.safe_text import clean_text
from retinue.core.voting import Phase
from support.values import RESULT

A, B = MemberId("a"), MemberId("b")
USAGE = TokenUsage(input_tokens=50000, output_tokens=3000, estimated_cost=0.05)
FINISHED = Testimony(
    phase=Phase.PRESENTATION, winner=B, members=(A, B), usage=USAGE, completion_percentage=100
)
VOTING = Testimony(
    phase=Phase.ENFORCEMENT,
    members=(A, B),
    votes={B: 1},
    usage=USAGE,
    completion_percentage=75,
)
ANSWERS: Mapping[MemberId, str] = {A: "one", B: "two"}

CLEAN = Ending(kind=EndKind.EXITED, exit_code=0, duration_ms=1500)
DEADLINE = Ending(kind=EndKind.DEADLINE, signal=9, duration_ms=300_000)
CRASHED = Ending(kind=EndKind.EXITED, exit_code=3)
KILLED = Ending(kind=EndKind.EXITED, signal=signal.SIGSEGV)
LOST = Ending(kind=EndKind.LOST)
NEVER_RAN = Ending(kind=EndKind.NEVER_RAN)
LAUNCH_FAILED = Ending(kind=EndKind.LAUNCH_FAILED, error="No such file: './x' (ENOENT)")
STOPPED = Ending(kind=EndKind.STOPPED, signals_sent=("SIGINT",))


def judged(evidence: Evidence) -> Result:
    return decide_result(evidence, subagent_id=SubagentId("bio"), workspace="/w", log_path="/l")


def of(status: Status, answer: str | None = None) -> Result:
    return replace(RESULT, status=status, answer=answer)


@pytest.mark.requirement("R3", "R4", "R5", "R17", "R20", "R55", "R61", "R222", "R223", "R226")
def test_a_finished_team_at_its_deadline_is_completed_but_timeout() -> None:
    result = judged(Evidence(ending=DEADLINE, testimony=FINISHED, answers=ANSWERS))
    assert (result.status, result.answer) == (Status.COMPLETED_BUT_TIMEOUT, "two")
    assert result.success
    assert (result.token_usage, result.completion_percentage) == (USAGE, 100)
    assert (result.workspace, result.execution_time_seconds) == ("/w", 300.0)
    assert result.error == ""


@pytest.mark.requirement("R6", "R8", "R210", "R224")
def test_a_voting_team_at_its_deadline_is_partial() -> None:
    result = judged(Evidence(ending=DEADLINE, testimony=VOTING, answers=ANSWERS))
    assert (result.status, result.answer, result.success) == (Status.PARTIAL, "two", False)
    assert result.completion_percentage == 75
    assert "time limit" in result.error


@pytest.mark.requirement("R11", "R12", "R13", "R14", "R19", "R21", "R211", "R225", "R230")
@pytest.mark.parametrize("testimony", [None, VOTING, Testimony(problem="status.json: torn")])
def test_nothing_recovered_at_the_deadline_is_a_timeout(testimony: Testimony | None) -> None:
    result = judged(Evidence(ending=DEADLINE, testimony=testimony, stdout="half a line"))
    assert (result.status, result.answer, result.success) == (Status.TIMEOUT, None, False)
    assert result.workspace == "/w"
    expected = testimony or Testimony()
    assert result.completion_percentage == expected.completion_percentage
    assert result.token_usage == expected.usage
    assert result.warning == expected.problem


def test_a_final_answer_written_before_the_deadline_is_never_lost() -> None:
    result = judged(Evidence(ending=DEADLINE, final_answer="done\n"))
    assert (result.status, result.answer) == (Status.COMPLETED_BUT_TIMEOUT, "done")
    declared = FinalDeclaration(status=Declared.SUCCESS, summary="wrote x.md")
    result = judged(Evidence(ending=DEADLINE, declaration=declared))
    assert (result.status, result.answer) == (Status.COMPLETED_BUT_TIMEOUT, "wrote x.md")


@pytest.mark.requirement("R1", "R15")
@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (CRASHED, "exited with code 3"),
        (KILLED, "killed by SIGSEGV"),
        (LOST, "disappeared"),
        (NEVER_RAN, "lost its supervisor"),
        (LAUNCH_FAILED, "ENOENT"),
        (STOPPED, "SIGINT"),
    ],
)
def test_an_unclean_end_recovers_an_answer_and_names_the_cause(ending: Ending, words: str) -> None:
    ladder = [
        (FINISHED, ANSWERS, Status.COMPLETED_BUT_TIMEOUT, "two"),
        (VOTING, ANSWERS, Status.PARTIAL, "two"),
        (VOTING, {}, Status.ERROR, None),
        (None, {}, Status.ERROR, None),
    ]
    for testimony, answers, status, answer in ladder:
        result = judged(Evidence(ending=ending, testimony=testimony, answers=answers))
        assert (result.status, result.answer) == (status, answer)
        assert words in result.error
        assert result.workspace == "/w"


@pytest.mark.requirement("R1", "R14", "R15", "R17", "R20")
@pytest.mark.parametrize("ending", [STOPPED, DEADLINE, NEVER_RAN, CLEAN])
def test_a_cancelled_subagent_keeps_its_answer_usage_and_percentage(ending: Ending) -> None:
    by = "cancelled by the user: not needed"
    result = judged(Evidence(ending=ending, cancelled=by, testimony=FINISHED, answers=ANSWERS))
    assert (result.status, result.answer, result.success) == (Status.CANCELLED, "two", False)
    assert (result.error, result.token_usage, result.completion_percentage) == (by, USAGE, 100)


@pytest.mark.requirement("R75", "R208")
@pytest.mark.parametrize(
    ("final_answer", "stdout", "summary", "expected"),
    [
        ("file", "out", "sum", "file"),
        ("  \n", "out\n", "sum", "out"),
        (None, " \n", "sum", "sum"),
        (None, "{\n}\n\n", "", "{\n}"),
        (None, None, "", "two"),
    ],
)
def test_a_clean_exit_takes_the_first_available_answer(
    final_answer: str | None, stdout: str | None, summary: str, expected: str
) -> None:
    result = judged(
        Evidence(
            ending=CLEAN,
            testimony=FINISHED,
            answers=ANSWERS,
            final_answer=final_answer,
            stdout=stdout,
            declaration=FinalDeclaration(status=Declared.SUCCESS, summary=summary),
        )
    )
    assert (result.status, result.answer, result.error) == (Status.COMPLETED, expected, "")
    assert result.success


def test_a_clean_end_with_an_undecided_team_is_partial() -> None:
    result = judged(Evidence(ending=CLEAN, testimony=VOTING, answers=ANSWERS))
    assert (result.status, result.answer) == (Status.PARTIAL, "two")
    assert result.error


@pytest.mark.requirement("R212")
@pytest.mark.parametrize("testimony", [None, VOTING])
def test_a_clean_end_without_any_output_is_an_error(testimony: Testimony | None) -> None:
    result = judged(Evidence(ending=CLEAN, testimony=testimony, stdout=" \n"))
    assert (result.status, result.error, result.answer) == (Status.ERROR, "no output", None)


@pytest.mark.parametrize(
    ("declared", "questions"),
    [
        (FinalDeclaration(status=Declared.BLOCKED, questions=("Which?", "When?")), 2),
        (FinalDeclaration(status=Declared.BLOCKED, summary="Which?"), 1),
        (FinalDeclaration(status=Declared.BLOCKED), 0),
    ],
)
def test_a_declared_block_has_its_questions(declared: FinalDeclaration, questions: int) -> None:
    result = judged(Evidence(ending=CLEAN, stdout="chatter", declaration=declared))
    assert (result.status, result.success, result.answer) == (Status.BLOCKED, False, None)
    assert len(result.questions) == questions


def test_a_declared_failure_is_an_error_in_its_own_words() -> None:
    declared = FinalDeclaration(status=Declared.FAILED, summary="no network")
    result = judged(Evidence(ending=CLEAN, stdout="chatter", declaration=declared))
    assert (result.status, result.error) == (Status.ERROR, "no network")


@pytest.mark.parametrize("status", [Declared.FAILED, Declared.BLOCKED])
@pytest.mark.parametrize("ending", [CRASHED, DEADLINE])
def test_a_declared_failure_is_never_recovered_as_a_success(
    status: Declared, ending: Ending
) -> None:
    declared = FinalDeclaration(status=status, summary="no network")
    result = judged(Evidence(ending=ending, final_answer="draft", declaration=declared))
    assert (result.status, result.answer) == (Status.PARTIAL, "draft")


def test_invalid_values_are_named_in_the_warning() -> None:
    result = judged(
        Evidence(
            ending=Ending(kind=EndKind.EXITED, exit_code=0, stdout_cut=True),
            testimony=Testimony(problem="status.json: torn"),
            declaration=FinalDeclaration(problem="final: torn"),
            warnings=("'answer' is a hard link",),
            stdout="out",
        )
    )
    for words in ("hard link", "status.json: torn", "final: torn", "cut"):
        assert words in result.warning


@pytest.mark.requirement("R68")
@pytest.mark.parametrize(
    ("salvage", "status"),
    [
        (Salvage(answer="x", complete=True), Status.COMPLETED_BUT_TIMEOUT),
        (Salvage(answer="x"), Status.PARTIAL),
        (Salvage(), Status.TIMEOUT),
    ],
)
def test_the_timeout_constructor_keeps_recovered_answer_and_costs(
    salvage: Salvage, status: Status
) -> None:
    result = Result.create_timeout_with_recovery(
        subagent_id=SubagentId("bio"),
        workspace="/w",
        salvage=salvage,
        token_usage=USAGE,
        execution_time_seconds=2.0,
        log_path="/l",
        completion_percentage=40,
    )
    assert (result.status, result.answer) == (status, salvage.answer)
    assert (result.token_usage, result.completion_percentage) == (USAGE, 40)


@pytest.mark.requirement("R66", "R208", "R209", "R210", "R211", "R212", "R213")
def test_only_the_two_completed_statuses_are_successes() -> None:
    successes = {status for status in Status if of(status).success}
    assert successes == {Status.COMPLETED, Status.COMPLETED_BUT_TIMEOUT}


@given(
    st.sampled_from([CLEAN, DEADLINE, CRASHED, KILLED, LOST, NEVER_RAN, LAUNCH_FAILED, STOPPED]),
    st.sampled_from([None, FINISHED, VOTING, Testimony(problem="torn")]),
    st.sampled_from([{}, {A: "one"}, ANSWERS]),
    st.none() | st.sampled_from(["", "final"]),
    st.none() | st.sampled_from(["", "out"]),
    st.none() | st.builds(FinalDeclaration, status=st.none() | st.sampled_from(Declared)),
    st.sampled_from(["", "cancelled by the parent"]),
)
def test_every_end_gives_a_consistent_result(
    ending: Ending,
    testimony: Testimony | None,
    answers: Mapping[MemberId, str],
    final_answer: str | None,
    stdout: str | None,
    declaration: FinalDeclaration | None,
    cancelled: str,
) -> None:
    evidence = Evidence(
        ending=ending,
        testimony=testimony,
        answers=answers,
        final_answer=final_answer,
        stdout=stdout,
        declaration=declaration,
        cancelled=cancelled,
    )
    result = judged(evidence)
    assert result == judged(evidence)
    assert result.workspace == "/w"
    assert not result.success or result.answer
    assert result.status is not Status.TIMEOUT or not final_answer
    assert result.status is not Status.ERROR or result.error
    assert (result.status is Status.CANCELLED) == bool(cancelled)


@pytest.mark.parametrize(
    ("statuses", "best"),
    [
        ("error completed_but_timeout error", 1),
        ("completed error", 0),
        ("partial completed", 1),
        ("completed_but_timeout completed partial", 1),
        ("partial timeout", 0),
        ("partial partial", 1),
        ("error timeout", 1),
        ("blocked error", 1),  # the block was answered; what came of it counts
        ("partial blocked", 1),
        ("completed cancelled", 1),
    ],
)
def test_the_best_attempt_is_the_result(statuses: str, best: int) -> None:
    results = [of(Status(status), answer=str(i)) for i, status in enumerate(statuses.split())]
    assert select_best_attempt(results) is results[best]


def test_a_cancelled_attempt_inherits_an_earlier_answer() -> None:
    result = select_best_attempt([of(Status.PARTIAL, "one"), of(Status.CANCELLED)])
    assert (result.status, result.answer) == (Status.CANCELLED, "one")


@pytest.mark.requirement("R70", "R206")
def test_summary_counts_are_disjoint_and_tell_hard_from_recovered_timeouts() -> None:
    summary = count_results([of(status) for status in Status])
    assert summary.total == 7
    assert (summary.completed, summary.recovered_timeouts) == (2, 1)
    assert (summary.failed, summary.timeout) == (2, 1)
    assert (summary.partial, summary.blocked) == (1, 1)
    counted = (
        summary.completed + summary.failed + summary.timeout + summary.partial + summary.blocked
    )
    assert counted == summary.total
    assert not summary.success
    assert count_results([of(Status.COMPLETED), of(Status.COMPLETED_BUT_TIMEOUT)]).success


@given(st.text(alphabet=st.characters()))
def test_clean_text_can_always_be_encoded(text: str) -> None:
    clean_text(text + "\ud800" + text).encode()
    assert clean_text("ä\U0001f600") == "ä\U0001f600"
