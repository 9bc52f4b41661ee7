"""Result of a subagent, and the rules that derive it from the evidence of an attempt.

end of the attempt   evidence                          status
cancelled            any                               cancelled, with any recovered answer
over budget          an answer / none                  partial / error, "budget exceeded"
clean exit           an answer                         completed
                     declared blocked / failed         blocked / error
                     only undecided answers of a team  partial
                     none                              error, "no output"
deadline             a final answer                    completed_but_timeout
                     undecided answers / none          partial / timeout
any other            a final answer                    completed_but_timeout, with an error
                     undecided answers / none          partial / error
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from retinue.core.attempt_end import Ending, EndKind
from retinue.core.errors import NO_OUTPUT
from retinue.core.ids import MemberId, SubagentId
from retinue.core.recovery import (
    AgentNotice,
    Declared,
    FinalDeclaration,
    Refusal,
    Salvage,
    Testimony,
    TokenUsage,
    answer_text,
    recover,
)

OVER_BUDGET = "budget exceeded"
_SURROGATES = re.compile("[\ud800-\udfff]")


class Status(StrEnum):
    """Status of a result, as parents see it."""

    COMPLETED = "completed"
    COMPLETED_BUT_TIMEOUT = "completed_but_timeout"
    PARTIAL = "partial"
    TIMEOUT = "timeout"
    ERROR = "error"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"


SUCCESSES = (Status.COMPLETED, Status.COMPLETED_BUT_TIMEOUT)
# How attempts compare when one of several is chosen; a status that is not listed ranks lowest.
_RANK = {Status.COMPLETED: 3, Status.COMPLETED_BUT_TIMEOUT: 2, Status.PARTIAL: 1}
# The latest attempt decides if it has one of these, whatever the earlier ones achieved.
_STANDING = {Status.CANCELLED, Status.BLOCKED}


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result that a parent receives from a subagent."""

    subagent_id: SubagentId
    status: Status
    answer: str | None
    workspace: str
    execution_time_seconds: float
    token_usage: TokenUsage
    log_path: str
    error: str = ""
    completion_percentage: int | float | None = None
    warning: str = ""
    questions: tuple[str, ...] = ()
    workspace_files: tuple[str, ...] = ()  # files it left, if it did not finish
    integration: Mapping[str, object] | None = None
    workspace_removed: bool = False  # determined when the result is shown, never recorded
    error_output: str = ""  # the end of a failed command's output
    # The coding agent that gave the answer: name, version, session, resumed.
    agent: Mapping[str, str] | None = None
    structured_answer: object = None  # the answer as a value, if the brief has a schema for it

    @property
    def success(self) -> bool:
        return self.status in SUCCESSES

    @property
    def workspace_path(self) -> str:
        """Alias of `workspace`; the JSON document has both keys."""
        return self.workspace

    @classmethod
    def create_timeout_with_recovery(
        cls,
        *,
        subagent_id: SubagentId,
        workspace: str,
        salvage: Salvage,
        token_usage: TokenUsage,
        execution_time_seconds: float,
        log_path: str,
        completion_percentage: int | float | None = None,
        warning: str = "",
        error: str = "",
        workspace_files: tuple[str, ...] = (),
    ) -> Result:
        """Return the result of a stopped subagent, with the answer that was recovered."""
        if salvage.answer is None:
            status = Status.TIMEOUT
        else:
            status = Status.COMPLETED_BUT_TIMEOUT if salvage.complete else Status.PARTIAL
        return cls(
            subagent_id=subagent_id,
            status=status,
            answer=salvage.answer,
            workspace=workspace,
            execution_time_seconds=execution_time_seconds,
            token_usage=token_usage,
            log_path=log_path,
            error=error,
            completion_percentage=completion_percentage,
            warning=warning,
            workspace_files=workspace_files,
        )


Ends = Sequence[tuple[int, Result]]  # number and result of each attempt


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything known about an attempt after its last process has ended."""

    ending: Ending
    cancelled: str = ""  # who cancelled it and why; empty: it was not cancelled
    testimony: Testimony | None = None
    answers: Mapping[MemberId, str] = field(default_factory=dict)
    final_answer: str | None = None
    stdout: str | None = None
    declaration: FinalDeclaration | None = None
    last_words: str = ""  # last line of its standard error
    output: str = ""  # the end of an unfinished command's output
    warnings: tuple[str, ...] = ()
    counted: TokenUsage | None = None  # counted by the gateway; overrides the child's claim
    refusals: tuple[Refusal, ...] = ()  # denied tools, as the team reported them
    notices: tuple[AgentNotice, ...] = ()  # on coding agents, as the team reported them
    files: tuple[str, ...] = ()  # in the workspace of an unfinished attempt; may be a selection
    over_budget: str = ""  # the budget limit it reached; empty: none

    @property
    def asks(self) -> bool:
        return self.declaration is not None and self.declaration.status is Declared.BLOCKED

    @property
    def finished(self) -> bool:
        """Whether it exited cleanly with a final answer and did not declare failure."""
        declared = self.declaration or FinalDeclaration()
        if not self.ending.clean or declared.status in (Declared.FAILED, Declared.BLOCKED):
            return False
        words = (self.final_answer, self.stdout, declared.summary)
        return any(map(answer_text, words)) or _recover_answer(self, declared).complete


def decide_result(
    evidence: Evidence, *, subagent_id: SubagentId, workspace: str, log_path: str
) -> Result:
    """Return the result that follows from the evidence; a pure function of its arguments."""
    result = _decide_by_end(evidence, subagent_id, workspace, log_path)
    return replace(result, error_output=evidence.output) if result.error else result


def _decide_by_end(
    evidence: Evidence, subagent_id: SubagentId, workspace: str, log_path: str
) -> Result:
    testimony = evidence.testimony or Testimony()
    declaration = evidence.declaration or FinalDeclaration()
    problems = (testimony.problem, declaration.problem, evidence.ending.refusal_note)
    notes = (*evidence.warnings, *problems)
    bare = Result(
        subagent_id=subagent_id,
        status=Status.ERROR,
        answer=None,
        workspace=workspace,
        execution_time_seconds=max(0, evidence.ending.duration_ms) / 1000,
        token_usage=evidence.counted or testimony.usage,
        log_path=log_path,
        completion_percentage=testimony.completion_percentage,
        warning="; ".join(note for note in notes if note),
        workspace_files=evidence.files,
    )
    # The order matters: a cancelled attempt may also be over budget, and one that is over budget
    # may still exit cleanly.
    if evidence.cancelled:
        answer = _recover_answer(evidence, declaration).answer
        return replace(bare, status=Status.CANCELLED, answer=answer, error=evidence.cancelled)
    if evidence.over_budget:
        answer = answer_text(evidence.stdout) if evidence.ending.clean else None
        return _decide_overspent(
            bare, _recover_answer(evidence, declaration).answer or answer, evidence
        )
    if evidence.ending.clean:
        return _decide_clean_exit(bare, evidence, declaration)
    return _decide_stopped(bare, evidence, declaration)


def _decide_overspent(bare: Result, answer: str | None, evidence: Evidence) -> Result:
    """Return PARTIAL at best: the budget cut the work short, whatever the exit code."""
    status = Status.ERROR if answer is None else Status.PARTIAL
    error = f"{OVER_BUDGET}: {evidence.over_budget}"
    return replace(bare, status=status, answer=answer, error=error)


def _decide_clean_exit(bare: Result, evidence: Evidence, declaration: FinalDeclaration) -> Result:
    final = answer_text(evidence.final_answer)
    if declaration.status is Declared.BLOCKED:
        questions = declaration.questions or tuple(filter(None, [declaration.summary]))
        return replace(bare, status=Status.BLOCKED, answer=final, questions=questions)
    if declaration.status is Declared.FAILED:
        # What a team had so far is kept, as after any other failure.
        answer = final
        if answer is None and evidence.testimony is not None:
            answer = _recover_answer(evidence, declaration).answer
        return replace(bare, answer=answer, error=declaration.summary or "declared itself failed")
    # The answer file goes before standard output, and that before the declared summary.
    stdout = answer_text(evidence.stdout)
    answer = final or stdout or answer_text(declaration.summary)
    if answer is not None:
        cut = final is None and stdout is not None and evidence.ending.stdout_cut
        notes = (bare.warning, "the answer is cut: the output exceeded its limit" if cut else "")
        warning = "; ".join(note for note in notes if note)
        return replace(bare, status=Status.COMPLETED, answer=answer, warning=warning)
    salvage = _recover_answer(evidence, declaration)
    if salvage.answer is None:
        lost = evidence.ending.stdout_cut
        return replace(bare, error="its output could not be kept" if lost else NO_OUTPUT)
    if salvage.complete:
        return replace(bare, status=Status.COMPLETED, answer=salvage.answer)
    error = "ended before the team decided"
    return replace(bare, status=Status.PARTIAL, answer=salvage.answer, error=error)


def _decide_stopped(bare: Result, evidence: Evidence, declaration: FinalDeclaration) -> Result:
    salvage = _recover_answer(evidence, declaration)
    in_time = evidence.ending.kind is not EndKind.DEADLINE
    error = evidence.ending.describe()
    if declaration.status is Declared.FAILED and declaration.summary:
        error = f"{error}: {declaration.summary}"
    elif evidence.ending.kind is EndKind.EXITED and evidence.last_words:
        error = f"{error}: {evidence.last_words}"
    if salvage.answer is None and in_time:
        return replace(bare, error=error)
    return Result.create_timeout_with_recovery(
        subagent_id=bare.subagent_id,
        workspace=bare.workspace,
        salvage=salvage,
        token_usage=bare.token_usage,
        execution_time_seconds=bare.execution_time_seconds,
        log_path=bare.log_path,
        completion_percentage=bare.completion_percentage,
        warning=bare.warning,
        workspace_files=bare.workspace_files,
        # completed_but_timeout already says that time ran out. Any other end needs an error text.
        error="" if salvage.complete and not in_time else error,
    )


def _recover_answer(evidence: Evidence, declaration: FinalDeclaration) -> Salvage:
    """Return the recovered answer; the child's own declaration decides whether it is final."""
    salvage = recover(evidence.testimony, evidence.answers, evidence.final_answer)
    if declaration.status in (Declared.FAILED, Declared.BLOCKED):
        return replace(salvage, complete=False)
    summary = answer_text(declaration.summary)
    if declaration.status is Declared.SUCCESS and summary and not salvage.complete:
        return Salvage(answer=summary, complete=True)
    return salvage


def select_best_attempt(results: Sequence[Result]) -> Result:
    """Return the attempt with the best status; among equals the latest.

    If the latest attempt was cancelled or is blocked, it is returned, because that is the
    state of the subagent. It inherits an earlier answer if it has none.

    Raises:
        ValueError: `results` is empty.
    """
    best = max(reversed(results), key=lambda result: _RANK.get(result.status, 0))
    latest = results[-1]
    if latest.status in _STANDING:
        return latest if latest.answer is not None else replace(latest, answer=best.answer)
    return best


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts of a batch; all except recovered_timeouts are disjoint and add up to the total."""

    total: int
    completed: int
    failed: int
    timeout: int
    partial: int
    blocked: int
    recovered_timeouts: int  # among the completed
    success: bool


def count_results(results: Sequence[Result]) -> Summary:
    """Count the results by status; the batch succeeds only if every result does."""
    statuses = [result.status for result in results]
    return Summary(
        total=len(statuses),
        completed=sum(result.success for result in results),
        failed=statuses.count(Status.ERROR) + statuses.count(Status.CANCELLED),
        timeout=statuses.count(Status.TIMEOUT),
        partial=statuses.count(Status.PARTIAL),
        blocked=statuses.count(Status.BLOCKED),
        recovered_timeouts=statuses.count(Status.COMPLETED_BUT_TIMEOUT),
        success=all(result.success for result in results),
    )


def clean_text(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded as UTF-8."""
    return _SURROGATES.sub("\ufffd", text)
