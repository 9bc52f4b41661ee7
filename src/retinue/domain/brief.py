"""What a parent asks for, before it is bound into a contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from retinue.domain.contract import REPORT_PATTERN
from retinue.domain.event import shorten


@dataclass(frozen=True)
class Brief:
    """The words a subagent is given, or the command it runs, and its terms.

    Leave a term out and the task's configuration decides.
    """

    text: str = ""
    _: KW_ONLY
    id: str | None = None
    argv: Sequence[str] = ()
    type: str | None = None
    context_paths: Sequence[str] = ()
    context_files: Sequence[str] = ()
    timeout_seconds: float | None = None
    tools: Sequence[str] | None = None  # none named: the usual ones of a team
    refine: bool = True  # False: the first answer counts
    retries: int = 1
    retry_on_timeout: bool = False
    close_on_completion: bool = True
    integration: str = "none"
    delegation_depth: int = 0  # how many levels of subagents it may have of its own
    title: str = ""
    success_criteria: Sequence[str] = ()
    report_path_pattern: str = REPORT_PATTERN

    @property
    def heading(self) -> str:
        """One line that names the work."""
        first = self.text.strip().partition("\n")[0]
        return shorten(self.title or first or " ".join(self.argv), 80)
