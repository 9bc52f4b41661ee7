"""How one attempt's process came to its end, before anyone judges it."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from enum import StrEnum


class EndKind(StrEnum):
    EXITED = "exited"  # by itself, with a code or by a signal that nobody of ours sent
    DEADLINE = "deadline"  # its time was up and the stop ladder ended it
    STOPPED = "stopped"  # someone asked, and the stop ladder ended it
    NEVER_RAN = "never_ran"  # its supervisor was gone before it was released; nothing was run
    LAUNCH_FAILED = "launch_failed"  # the command could not be executed at all
    LOST = "lost"  # gone without a record


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
    limit: str = ""  # which of its limits it ran into, where that can be known
    hopeless: bool = False  # the next try would end the same way, as where there is no such program
    orphaned: bool = False  # it ended while it had no supervisor

    @property
    def clean(self) -> bool:
        """Ended by itself and said that all was well."""
        return self.kind is EndKind.EXITED and self.exit_code == 0

    def describe(self) -> str:
        """One clause for people and agents: what ended it."""
        return f"{self._clause()} ({self.limit})" if self.limit else self._clause()

    def _clause(self) -> str:
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
            case EndKind.LOST:
                return self.error or "disappeared without a record"


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
