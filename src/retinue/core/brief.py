"""Brief of a subagent: what a parent asks for, before a contract is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from retinue.core.contract import REPORT_PATTERN
from retinue.core.text import shorten

Integration = Literal["merge", "copy", "none"]
Access = Literal["read", "write"]


@dataclass(frozen=True)
class Brief:
    """The task or command of a subagent, and its terms.

    The task's configuration decides terms that are left out.
    """

    text: str = ""
    _: KW_ONLY
    id: str | None = None
    argv: Sequence[str] = ()
    type: str | None = None
    context_paths: Sequence[str] = ()
    context_files: Sequence[str] = ()
    timeout_seconds: float | None = None
    tools: Sequence[str] | None = None  # None: the default tools of a team
    refine: bool = True  # False: the first answer counts
    retries: int | None = None  # further attempts after an error; None: see `default_retries`
    retry_on_timeout: bool = False
    close_on_completion: bool = True
    integration: Integration = "none"
    owns: Sequence[str] = ()  # patterns of paths it may change if its output is merged or copied
    delegation_depth: int = 0  # levels of subagents that it may have below it
    title: str = ""
    success_criteria: Sequence[str] = ()
    report_path_pattern: str = REPORT_PATTERN
    agent: str = ""  # a coding agent, by its name or the id of a configured one
    model: str = ""  # of that coding agent; empty: as configured
    access: Access = "write"  # read: it cannot change its workspace
    answer_schema: Mapping[str, object] | None = None  # JSON schema of its answer
    turns: int | None = None  # model requests that it may make; None: as configured
    on: Sequence[str] = ()  # labels of the node to run it, or host=NAME; empty: as configured
    env: Mapping[str, str] | None = None  # variables of its command
    stdin: str = ""  # standard input of its command
    limits: Mapping[str, float] | None = None  # resource limits below the configured ones
    secrets: Sequence[str] = ()  # NAME, NAME=env:VARIABLE or NAME=file:PATH; never values
    # True: the Python that runs this program, with its packages; or the path of another one.
    python: bool | str = False
    redact: bool = False  # replace the values of its secrets in what it prints and answers

    def default_retries(self, *, command: bool) -> int:
        """Return the default number of retries.

        A team may fail by chance and is retried once. A command or a coding agent would mostly
        fail again, and may have done half of its work: it is retried only if the brief asks for
        retries on timeout.
        """
        return 1 if not command or self.retry_on_timeout else 0

    @property
    def heading(self) -> str:
        """The title, the first line of the text, or the command, on one line."""
        first = self.text.strip().partition("\n")[0]
        return shorten(self.title or first or " ".join(self.argv), 80)
