"""Everything that can be refused or go wrong, as one tree.

RetinueError
├── BadInput              the words of a request are wrong; nothing was done
├── NotFound              no such task, subagent, event, log
├── WaitTimedOut          nothing settled in the time given; children untouched
│   └── NothingToWaitFor  nor could anything: nobody is at work
├── LimitExceeded         over the concurrency limit; nothing was done
├── IntegrityBroken       database, log and folders disagree
├── IsolationUnavailable  the boundary asked for cannot be put in force
├── Refused               legal words, wrong moment
│   └── IllegalTransition not a legal move, or another writer moved first
├── LaunchFailed          a child could not be started
├── StorageFailed         the disk or the database said no
└── StewardUnavailable    no steward can be reached, started or replaced

Most readers of an error are agents that decide what to do next: each has a
stable code, one sentence, and a hint that names the next step; that of its kind
where it has none of its own.
"""

from __future__ import annotations

from typing import ClassVar


class RetinueError(Exception):
    """Base of every error that a caller may want to catch."""

    default_code: ClassVar[str] = "error"
    default_hint: ClassVar[str] = "'retinue doctor' says what is in order here"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, code: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint or self.default_hint
        self.add_note(f"[{self.code}] {self.hint}")  # shown where nobody catches it


class BadInput(RetinueError):
    """The words of a request are wrong; nothing was done."""

    default_code = "bad_input"
    default_hint = "nothing was done: put that right and ask again"
    exit_code = 2


class NotFound(RetinueError):
    """There is no such root, task, subagent or result."""

    default_code = "not_found"
    default_hint = "'retinue task list' and 'retinue task show TASK' name what there is"
    exit_code = 3


class WaitTimedOut(RetinueError):
    """Nothing settled in the time given; the subagents go on."""

    default_code = "wait_timed_out"
    default_hint = "they go on: wait again, or look with 'retinue task show TASK'"
    exit_code = 4


class NothingToWaitFor(WaitTimedOut):
    """Nothing can settle: nobody is at work, and every end has been told."""

    default_code = "nothing_to_wait_for"
    default_hint = "spawn somebody first; 'retinue task join TASK' shows what came of all"


class LimitExceeded(RetinueError):
    """Over the limit of what may work at once; nothing was done."""

    default_code = "limit_exceeded"
    default_hint = "wait for an end, cancel somebody, or ask to be queued"
    exit_code = 5

    @classmethod
    def of(cls, *, active: int, limit: int, asked: int = 1, hint: str) -> LimitExceeded:
        """Of those that may work at once; how many were asked for, where that explains it."""
        more = f", asked={asked}" if asked > 1 else ""
        return cls(f"concurrency limit exceeded: active={active}, limit={limit}{more}", hint=hint)


class IntegrityBroken(RetinueError):
    """Database, logs and folders disagree."""

    default_code = "integrity"
    default_hint = "'retinue verify' names what disagrees"
    exit_code = 6


class IsolationUnavailable(RetinueError):
    """The boundary that was asked for cannot be put in force."""

    default_code = "isolation_unavailable"
    default_hint = "'retinue doctor' says what is in force here"
    exit_code = 7


class Refused(RetinueError):
    """Legal words at the wrong moment; nothing was done."""

    default_code = "refused"
    default_hint = "'retinue task show TASK' tells how things stand"


class IllegalTransition(Refused):
    """Not a legal move, or another writer moved first."""

    default_code = "illegal_transition"


class LaunchFailed(RetinueError):
    """A child could not be started."""

    default_code = "launch_failed"
    default_hint = "'retinue doctor' says what can be started here"


class StorageFailed(RetinueError):
    """The disk or the database said no."""

    default_code = "storage_failed"
    default_hint = "make room or give access, then ask again"


class StewardUnavailable(RetinueError):
    """No steward can be reached, started or replaced, or it ended while it was asked."""

    default_code = "steward_unavailable"
    default_hint = "steward.log in the root may say why, and 'retinue doctor' what is in order"


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
