"""How the process of one attempt ended."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from enum import StrEnum


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
