"""Result of a subagent: how an attempt ended, which answer is recovered, and what follows.

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

The child's claims were validated when they were read.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from retinue.core.errors import NO_OUTPUT
from retinue.core.ids import MemberId, SubagentId
from retinue.core.voting import Member, Phase, choose_answer


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """Token usage, counted by the gateway or else claimed by the child."""

    input_tokens: int | None = None
    """Tokens of requests; None: unknown."""
    output_tokens: int | None = None
    """Tokens of answers; None: unknown."""
    estimated_cost: int | float | None = None
    """Cost in US dollars; None: unknown."""
    cached_tokens: int | None = None
    """Part of the input that was read from the provider's cache."""
    reasoning_tokens: int | None = None
    """Part of the output that was spent on reasoning."""
    estimated: bool = False
    """Whether some counts are estimates, because a provider did not report them."""
    unpriced: bool = False
    """Whether the cost leaves out models without a known price."""


@dataclass(frozen=True, kw_only=True)
class Testimony:
    """What a child last wrote about its team, without invalid values."""

    phase: Phase | None = None
    winner: MemberId | None = None
    members: tuple[MemberId, ...] = ()  # in registration order
    votes: Mapping[MemberId, int] = field(default_factory=dict)
    usage: TokenUsage = field(default_factory=TokenUsage)
    completion_percentage: int | float | None = None
    sessions: Mapping[MemberId, AgentSession] = field(default_factory=dict)  # of coding agents
    problem: str = ""  # which values were invalid


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A tool that was denied to a member, as the team reported it."""

    member: str
    tool: str
    reason: str
    delegation: bool = False  # the tool would have delegated


@dataclass(frozen=True, kw_only=True)
class AgentNotice:
    """Something that happened to a coding agent, as the team reported it."""

    kind: str  # session, steered, permission, warning
    member: str
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class AgentSession:
    """The session of a coding agent, as the team reported it."""

    session: str
    resumed: str  # fresh, native or transcript
    doing: str = ""  # the tool that it uses now; empty between turns


class Declared(StrEnum):
    SUCCESS = "success"
    BLOCKED = "blocked"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class FinalDeclaration:
    """A command's own declaration of its end."""

    status: Declared | None = None
    summary: str = ""
    questions: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Salvage:
    """A recovered answer; `complete` if its author meant it as final."""

    answer: str | None = None
    complete: bool = False


def answer_text(text: str | None) -> str | None:
    """Return the text without trailing line ends; None if it is blank."""
    return text.rstrip("\r\n") if text and text.strip() else None


def recover(
    testimony: Testimony | None, answers: Mapping[MemberId, str], final_answer: str | None
) -> Salvage:
    """Return the best available answer: the final one, the winner's, the most voted, the first.

    Only the first two are complete: a team that was still voting has decided nothing, even if
    its testimony names a winner. Answers of unregistered members are ignored.
    """
    final = answer_text(final_answer)
    if final is not None:
        return Salvage(answer=final, complete=True)
    if testimony is None:
        return Salvage()
    members = [Member(id=id, answer=answer_text(answers.get(id))) for id in testimony.members]
    if testimony.phase is Phase.PRESENTATION:
        for member in members:
            if member.id == testimony.winner and member.answer is not None:
                return Salvage(answer=member.answer, complete=True)
    chosen = choose_answer(members, testimony.votes)
    return Salvage(answer=chosen.answer if chosen else None)


class EndKind(StrEnum):
    EXITED = "exited"  # by itself, with an exit code or by a signal that Retinue did not send
    DEADLINE = "deadline"  # its time was up, and it was stopped by signals
    STOPPED = "stopped"  # stopped by signals on request
    NEVER_RAN = "never_ran"  # its supervisor ended before the command was released
    LAUNCH_FAILED = "launch_failed"  # the command could not be executed
    LOST = "lost"  # the process ended and left no record
    NODE_LOST = "node_lost"  # the machine that ran it was lost; nothing of it runs there any more


@dataclass(frozen=True, kw_only=True)
class Ending:
    kind: EndKind
    exit_code: int | None = None
    signal: int | None = None
    signals_sent: tuple[str, ...] = ()
    duration_ms: int = 0
    stdout_cut: bool = False
    stderr_cut: bool = False
    error: str = ""
    limit: str = ""  # the resource limit it reached, if known
    refused_calls: tuple[tuple[str, int], ...] = ()  # system calls and how often each was refused
    hopeless: bool = False  # a retry would fail too, for example because there is no such program
    orphaned: bool = False  # it ended while it had no supervisor
    notes: tuple[str, ...] = ()  # what its result should warn of

    @property
    def clean(self) -> bool:
        """Whether it exited by itself with code 0."""
        return self.kind is EndKind.EXITED and self.exit_code == 0

    @property
    def refusal_note(self) -> str:
        """Warning that names the refused system calls; empty if there were none."""
        if not self.refused_calls:
            return ""
        calls = ", ".join(f"{name} ({count})" for name, count in self.refused_calls)
        return f"its boundary refused system calls: {calls}"

    def describe(self) -> str:
        """Return one clause that says what ended it."""
        return (
            f"{self._describe_signal()} ({self.limit})" if self.limit else self._describe_signal()
        )

    def _describe_signal(self) -> str:
        match self.kind:
            case EndKind.EXITED if self.signal is not None:
                return f"killed by {signal_name(self.signal)}"
            case EndKind.EXITED:
                return f"exited with code {self.exit_code}"
            case EndKind.DEADLINE:
                return "reached its time limit"
            case EndKind.STOPPED:
                return f"stopped by {', '.join(self.signals_sent) or 'request'}"
            case EndKind.NEVER_RAN:
                return "lost its supervisor before it could run"
            case EndKind.LAUNCH_FAILED:
                return self.error or "could not be launched"
            case EndKind.NODE_LOST:
                return self.error or "its node was lost"
            case EndKind.LOST:
                return self.error or "disappeared without a record"


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


OVER_BUDGET = "budget exceeded"


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
    """Id of the subagent."""
    status: Status
    """How it ended."""
    answer: str | None
    """The answer, also one that was recovered; None: there is none."""
    workspace: str
    """Path of the workspace."""
    execution_time_seconds: float
    """Time of all attempts."""
    token_usage: TokenUsage
    """Tokens and cost of all attempts."""
    log_path: str
    """Folder with its output."""
    error: str = ""
    """Why it did not complete."""
    completion_percentage: int | float | None = None
    """Progress as the subagent reported it."""
    warning: str = ""
    """What to know before using the result."""
    questions: tuple[str, ...] = ()
    """Questions of a blocked subagent."""
    workspace_files: tuple[str, ...] = ()
    """Files that it left in its workspace, if it did not end well."""
    integration: Mapping[str, object] | None = None
    """How its output was joined, or why not."""
    workspace_removed: bool = False
    """Whether the workspace was removed since; determined when the result is shown."""
    error_output: str = ""
    """The end of a failed command's standard output and standard error."""
    agent: Mapping[str, str] | None = None
    """The coding agent that answered: name, version, session, resumed."""
    structured_answer: object = None
    """The answer as a value, if the brief has a schema for it."""

    @property
    def success(self) -> bool:
        """Whether the answer can be used as it is."""
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
    notes = (*evidence.warnings, *problems, *evidence.ending.notes)
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
