"""Error classes that callers of Retinue may catch.

RetinueError
├── BadInput              the request is invalid; nothing was done
├── NotFound              no such task, subagent, event or log
├── WaitTimedOut          nothing settled in time; the subagents keep running
│   └── NothingToWaitFor  no subagent is running and all results were delivered
├── LimitExceeded         concurrency limit reached; nothing was started
├── IntegrityBroken       database, log and folders disagree
├── IsolationUnavailable  the requested boundary cannot be enforced
├── Refused               the request is valid, but not in the current state
│   └── IllegalTransition not a legal transition, or another writer came first
├── LaunchFailed          a child could not be started
├── StorageFailed         the disk or the database reported an error
└── StewardUnavailable    no steward can be reached, started or replaced

Each error has a stable code, one sentence and a hint that names the next step.
Most readers are agents that decide what to do next. An error without a hint of
its own uses the hint of its class. Where the next step depends on the reader (a
shell, an agent's tools, Python), there is one hint for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

# Readers that need a different hint from the one for a shell.
AGENT, PYTHON = "agent", "python"


class RetinueError(Exception):
    """Base class of all errors in this module."""

    default_code: ClassVar[str] = "error"
    default_hint: ClassVar[str] = "run 'retinue doctor' to check this installation"
    default_hints: ClassVar[Mapping[str, str]] = {}  # by reader, where the shell hint does not fit
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str = "",
        hints: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        hint: the next step for a shell, and for readers that `hints` does not name.
        hints: the next step by reader: AGENT, PYTHON.
        """
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint or self.default_hint
        # A specific hint also replaces the class's hints for other readers: they are less specific.
        self.hints = dict(hints or ({} if hint else self.default_hints))
        # Python prints notes below the traceback of an uncaught error.
        self.add_note(f"[{self.code}] {self.hint}")

    def read_by(self, reader: str) -> RetinueError:
        """Return the same error with the hint for this reader: AGENT or PYTHON."""
        if reader not in self.hints:
            return self
        return type(self)(self.message, code=self.code, hint=self.hints[reader])

    def with_more(self, more: str) -> RetinueError:
        """Return the same error with `more` appended to each hint."""
        hints = {reader: f"{hint}; {more}" for reader, hint in self.hints.items()}
        return type(self)(self.message, code=self.code, hint=f"{self.hint}; {more}", hints=hints)

    def about(self, subject: str) -> RetinueError:
        """Return the same error with `subject` in front of its message."""
        said = f"{subject}: {self.message}"
        return type(self)(said, code=self.code, hint=self.hint, hints=self.hints)


class BadInput(RetinueError):
    """The request is invalid; nothing was done."""

    default_code = "bad_input"
    default_hint = "nothing was done: correct the request and send it again"
    exit_code = 2


class NotFound(RetinueError):
    """There is no such root, task, subagent or result."""

    default_code = "not_found"
    default_hint = "'retinue task list' and 'retinue task show TASK' list what exists"
    default_hints: ClassVar[Mapping[str, str]] = {
        AGENT: "list_subagents lists what exists",
        PYTHON: "Retinue.tasks() and Task.subagents() list what exists",
    }
    exit_code = 3


class WaitTimedOut(RetinueError):
    """Nothing settled in time; the subagents keep running."""

    default_code = "wait_timed_out"
    default_hint = "the subagents keep running: wait again, or see 'retinue task show TASK'"
    default_hints: ClassVar[Mapping[str, str]] = {
        AGENT: "the subagents keep running: wait again, or call list_subagents",
        PYTHON: "the subagents keep running: wait again, or call Task.subagents()",
    }
    exit_code = 4


class NothingToWaitFor(WaitTimedOut):
    """No subagent is running and all results were delivered."""

    default_code = "nothing_to_wait_for"
    default_hint = "spawn a subagent first; 'retinue task join TASK' shows all results"
    default_hints: ClassVar[Mapping[str, str]] = {
        AGENT: "spawn a subagent first; list_subagents shows the earlier ones",
        PYTHON: "spawn a subagent first; Task.result() gives an earlier result again",
    }


class LimitExceeded(RetinueError):
    """Concurrency limit reached; nothing was started."""

    default_code = "limit_exceeded"
    default_hint = "wait until a subagent ends, cancel one, or ask to be queued"
    exit_code = 5

    @classmethod
    def of(
        cls,
        *,
        active: int,
        limit: int,
        asked: int = 1,
        hint: str,
        hints: Mapping[str, str] | None = None,
    ) -> LimitExceeded:
        """Return the error for the concurrency limit; `asked` is shown if it is more than one."""
        more = f", asked={asked}" if asked > 1 else ""
        said = f"concurrency limit exceeded: active={active}, limit={limit}{more}"
        return cls(said, hint=hint, hints=hints)


class IntegrityBroken(RetinueError):
    """Database, logs and folders disagree."""

    default_code = "integrity"
    default_hint = "'retinue verify' names what disagrees"
    default_hints: ClassVar[Mapping[str, str]] = {
        AGENT: "spawn nothing more, and ask the user to run 'retinue verify'"
    }
    exit_code = 6


class IsolationUnavailable(RetinueError):
    """The requested boundary cannot be enforced."""

    default_code = "isolation_unavailable"
    default_hint = "'retinue doctor' shows which isolation works here"
    default_hints: ClassVar[Mapping[str, str]] = {
        AGENT: "do the work yourself, and tell the user: 'retinue doctor' shows what is missing"
    }
    exit_code = 7


class Refused(RetinueError):
    """The request is valid, but not in the current state; nothing was done."""

    default_code = "refused"
    default_hint = "'retinue task show TASK' shows the current state"
    default_hints: ClassVar[Mapping[str, str]] = {
        AGENT: "list_subagents shows the current state",
        PYTHON: "Task.subagents() shows the current state",
    }


class IllegalTransition(Refused):
    """Not a legal transition, or another writer came first."""

    default_code = "illegal_transition"


class LaunchFailed(RetinueError):
    """A child could not be started."""

    default_code = "launch_failed"
    default_hint = "'retinue doctor' shows what can be started here"
    default_hints: ClassVar[Mapping[str, str]] = {
        AGENT: "do the work yourself, and tell the user: 'retinue doctor' shows what is missing"
    }


class NodeUnavailable(LaunchFailed):
    """The chosen node did not accept an attempt, and nothing of it is recorded."""

    default_hint = "'retinue nodes' shows what the nodes do"


class StorageFailed(RetinueError):
    """The disk or the database reported an error."""

    default_code = "storage_failed"
    default_hint = "free disk space or grant access, then try again"


class StewardUnavailable(RetinueError):
    """No steward can be reached, started or replaced, or it ended during the request."""

    default_code = "steward_unavailable"
    default_hint = "see steward.log in the root for the cause, and run 'retinue doctor'"
    default_hints: ClassVar[Mapping[str, str]] = {
        AGENT: "call once more; if it fails again, tell the user: steward.log in the root says why"
    }


# An error crosses the socket by its class name. A client maps an unknown name to RetinueError.
KINDS: dict[str, type[RetinueError]] = {
    kind.__name__: kind
    for kind in (
        RetinueError,
        BadInput,
        NotFound,
        WaitTimedOut,
        NothingToWaitFor,
        LimitExceeded,
        IntegrityBroken,
        IsolationUnavailable,
        Refused,
        IllegalTransition,
        LaunchFailed,
        StorageFailed,
        StewardUnavailable,
    )
}

# Callers catch these classes as `retinue.NAME`; a traceback shows them by that name.
for _kind in KINDS.values():
    _kind.__module__ = "retinue"


NO_OUTPUT = "no output"
ADVICE = {NO_OUTPUT: "a command has to print its answer, or write it to $RETINUE_ANSWER"}


def add_hint_to_error(error: str) -> str:
    """Return a result's error, followed by advice if there is any for it."""
    return f"{error}: {ADVICE[error]}" if error in ADVICE else error
