"""What the parent receives of a subagent, and how it is judged.

cancelled      somebody asked for the end           cancelled, with what was recovered
over budget    an answer / nothing                  partial / error, "budget exceeded"
clean exit     an answer                            completed
               declared blocked / failed            blocked / error
               only a team's undecided answers      partial
               nothing                              error, "no output"
time was up    a final answer                       completed_but_timeout
               undecided answers / nothing          partial / timeout
other ends     a final answer                       completed_but_timeout, error says why
               undecided answers / nothing          partial / error, error says why
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from retinue.domain.advice import NO_OUTPUT
from retinue.domain.ending import Ending, EndKind
from retinue.domain.ids import MemberId, SubagentId
from retinue.domain.recovery import (
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
    """What a result is worth; each is also its own text."""

    COMPLETED = "completed"
    COMPLETED_BUT_TIMEOUT = "completed_but_timeout"
    PARTIAL = "partial"
    TIMEOUT = "timeout"
    ERROR = "error"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"


SUCCESSES = (Status.COMPLETED, Status.COMPLETED_BUT_TIMEOUT)
_RANK = {Status.COMPLETED: 3, Status.COMPLETED_BUT_TIMEOUT: 2, Status.PARTIAL: 1}
_STANDING = {Status.CANCELLED, Status.BLOCKED}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the parent receives of a subagent."""

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
    workspace_files: tuple[str, ...] = ()  # of one that did not end well: what it left
    integration: Mapping[str, object] | None = None

    @property
    def success(self) -> bool:
        """Whether the answer is the one that was asked for."""
        return self.status in SUCCESSES

    @property
    def workspace_path(self) -> str:
        """The same by its other name, as every document of a result has both."""
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
        """The result of a subagent that was ended, with all that it had earned until then."""
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


Ends = Sequence[tuple[int, Result]]  # of attempts, with their numbers


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of an attempt once no process of it is left."""

    ending: Ending
    cancelled: str = ""  # by whom and why; empty when nobody asked for the end
    testimony: Testimony | None = None
    answers: Mapping[MemberId, str] = field(default_factory=dict)
    final_answer: str | None = None
    stdout: str | None = None
    declaration: FinalDeclaration | None = None
    last_words: str = ""  # the last line of its standard error
    warnings: tuple[str, ...] = ()
    counted: TokenUsage | None = None  # what passed the gateway; goes before any claim
    refusals: tuple[Refusal, ...] = ()  # of tools, as a team told them
    files: tuple[str, ...] = ()  # in its workspace, where it had not finished; some of many
    over_budget: str = ""  # which limit of its budget it reached; empty when it kept it

    @property
    def asks(self) -> bool:
        return self.declaration is not None and self.declaration.status is Declared.BLOCKED

    @property
    def finished(self) -> bool:
        """Whether it ended by itself with a final answer, and says nothing to the contrary."""
        declared = self.declaration or FinalDeclaration()
        if not self.ending.clean or declared.status in (Declared.FAILED, Declared.BLOCKED):
            return False
        words = (self.final_answer, self.stdout, declared.summary)
        return any(map(answer_text, words)) or _salvage(self, declared).complete


def judge(evidence: Evidence, *, subagent_id: SubagentId, workspace: str, log_path: str) -> Result:
    """The one result that follows from the evidence; the same evidence gives the same result."""
    testimony = evidence.testimony or Testimony()
    declaration = evidence.declaration or FinalDeclaration()
    notes = (*evidence.warnings, testimony.problem, declaration.problem)
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
    if evidence.cancelled:
        answer = _salvage(evidence, declaration).answer
        return replace(bare, status=Status.CANCELLED, answer=answer, error=evidence.cancelled)
    if evidence.over_budget:
        answer = answer_text(evidence.stdout) if evidence.ending.clean else None
        return _judge_overspent(bare, _salvage(evidence, declaration).answer or answer, evidence)
    if evidence.ending.clean:
        return _judge_clean(bare, evidence, declaration)
    return _judge_stopped(bare, evidence, declaration)


def _judge_overspent(bare: Result, answer: str | None, evidence: Evidence) -> Result:
    """However it ended after that: it was cut short, so its answer is not the whole one."""
    status = Status.ERROR if answer is None else Status.PARTIAL
    error = f"{OVER_BUDGET}: {evidence.over_budget}"
    return replace(bare, status=status, answer=answer, error=error)


def _judge_clean(bare: Result, evidence: Evidence, declaration: FinalDeclaration) -> Result:
    final = answer_text(evidence.final_answer)
    if declaration.status is Declared.BLOCKED:
        questions = declaration.questions or tuple(filter(None, [declaration.summary]))
        return replace(bare, status=Status.BLOCKED, answer=final, questions=questions)
    if declaration.status is Declared.FAILED:
        return replace(bare, answer=final, error=declaration.summary or "declared itself failed")
    stdout = answer_text(evidence.stdout)
    answer = final or stdout or answer_text(declaration.summary)
    if answer is not None:
        cut = final is None and stdout is not None and evidence.ending.stdout_cut
        notes = (bare.warning, "the answer is cut: its output went over the limit" if cut else "")
        warning = "; ".join(note for note in notes if note)
        return replace(bare, status=Status.COMPLETED, answer=answer, warning=warning)
    salvage = _salvage(evidence, declaration)
    if salvage.answer is None:
        lost = evidence.ending.stdout_cut
        return replace(bare, error="its output could not be kept" if lost else NO_OUTPUT)
    if salvage.complete:
        return replace(bare, status=Status.COMPLETED, answer=salvage.answer)
    error = "ended before its team had decided"
    return replace(bare, status=Status.PARTIAL, answer=salvage.answer, error=error)


def _judge_stopped(bare: Result, evidence: Evidence, declaration: FinalDeclaration) -> Result:
    salvage = _salvage(evidence, declaration)
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
        # The status itself says that a finished one ran out of time; any other end needs words.
        error="" if salvage.complete and not in_time else error,
    )


def _salvage(evidence: Evidence, declaration: FinalDeclaration) -> Salvage:
    """Recovery, minded of what the child declared: its own word decides what was final."""
    salvage = recover(evidence.testimony, evidence.answers, evidence.final_answer)
    if declaration.status in (Declared.FAILED, Declared.BLOCKED):
        return replace(salvage, complete=False)
    summary = answer_text(declaration.summary)
    if declaration.status is Declared.SUCCESS and summary and not salvage.complete:
        return Salvage(answer=summary, complete=True)
    return salvage


def best_attempt(results: Sequence[Result]) -> Result:
    """The result of several attempts, in their order: the best status, of equals the latest.

    A latest one that was cancelled or is blocked stands, because that is what the
    subagent now is; it inherits an earlier answer when it has none.

    Raises:
        ValueError: there was no attempt.
    """
    best = max(reversed(results), key=lambda result: _RANK.get(result.status, 0))
    latest = results[-1]
    if latest.status in _STANDING:
        return latest if latest.answer is not None else replace(latest, answer=best.answer)
    return best


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts of a batch. All but recovered_timeouts are disjoint and add up to the total."""

    total: int
    completed: int
    failed: int
    timeout: int
    partial: int
    blocked: int
    recovered_timeouts: int  # among the completed
    success: bool


def summarise(results: Sequence[Result]) -> Summary:
    """What became of a batch; a success only when every part of it is one."""
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
    """The text with every lone surrogate replaced, so that it can be encoded as UTF-8."""
    return _SURROGATES.sub("\ufffd", text)
