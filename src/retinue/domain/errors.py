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
stable code, one sentence, and a hint that names the next step.
"""

from __future__ import annotations

from typing import ClassVar


class RetinueError(Exception):
    """Base of every error that a caller may want to catch."""

    default_code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, code: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint


class BadInput(RetinueError):
    default_code = "bad_input"
    exit_code = 2


class NotFound(RetinueError):
    default_code = "not_found"
    exit_code = 3


class WaitTimedOut(RetinueError):
    default_code = "wait_timed_out"
    exit_code = 4


class NothingToWaitFor(WaitTimedOut):
    default_code = "nothing_to_wait_for"


class LimitExceeded(RetinueError):
    default_code = "limit_exceeded"
    exit_code = 5


class IntegrityBroken(RetinueError):
    default_code = "integrity"
    exit_code = 6


class IsolationUnavailable(RetinueError):
    default_code = "isolation_unavailable"
    exit_code = 7


class Refused(RetinueError):
    default_code = "refused"


class IllegalTransition(Refused):
    default_code = "illegal_transition"


class LaunchFailed(RetinueError):
    default_code = "launch_failed"


class StorageFailed(RetinueError):
    default_code = "storage_failed"


class StewardUnavailable(RetinueError):
    default_code = "steward_unavailable"


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
