"""Brief of a subagent: what a parent asks for, before a contract is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from retinue.core.contract import REPORT_PATTERN
from retinue.core.safe_text import shorten

Integration = Literal["merge", "copy", "none"]
Access = Literal["read", "write"]


@dataclass(frozen=True)
class Brief:
    """The task or command of a subagent, and its terms.

    The task's configuration decides terms that are left out.
    """

    text: str = ""
    """The brief in words."""
    _: KW_ONLY
    id: str | None = None
    """The id, unique in the task; None: generated."""
    argv: Sequence[str] = ()
    """The command to run; without it, a team of models works on the brief."""
    type: str | None = None
    """The type: a role with instructions."""
    context_paths: Sequence[str] = ()
    """Files and folders that the subagent may read."""
    context_files: Sequence[str] = ()
    """Single files that are copied for it to read."""
    timeout_seconds: float | None = None
    """Time limit of an attempt; None: as configured."""
    tools: Sequence[str] | None = None
    """The only tools of its team or agent; None: the usual ones."""
    refine: bool = True
    """Whether the team refines and votes; otherwise the first answer is taken."""
    retries: int | None = None
    """Further attempts after an error; None: 1 for a team, 0 for a command or coding agent."""
    retry_on_timeout: bool = False
    """Whether a time-out is retried too."""
    close_on_completion: bool = True
    """Whether it is closed at its end; otherwise the parent has to close it."""
    integration: Integration = "none"
    """How its output is joined: merge, copy or none."""
    owns: Sequence[str] = ()
    """Patterns of the only paths that it may change if its output is merged or copied."""
    delegation_depth: int = 0
    """How many levels of its own subagents it may have."""
    title: str = ""
    """Its title in lists."""
    success_criteria: Sequence[str] = ()
    """Conditions that its work has to meet."""
    report_path_pattern: str = REPORT_PATTERN
    """The path of its report in its workspace."""
    agent: str = ""
    """The coding agent that does the work, by its name or the id of a configured one."""
    model: str = ""
    """The model of that coding agent; empty: as configured."""
    access: Access = "write"
    """read: its workspace is read-only."""
    answer_schema: Mapping[str, object] | None = None
    """The JSON schema that its answer must fit."""
    turns: int | None = None
    """The most model requests that it may make; None: as configured."""
    on: Sequence[str] = ()
    """Labels of the node to run it on, or host=NAME; empty: as configured."""
    env: Mapping[str, str] | None = None
    """Environment variables of its command. The contract records them; see `secrets`."""
    stdin: str = ""
    """Standard input of its command."""
    limits: Mapping[str, float] | None = None
    """Resource limits below the configured ones."""
    secrets: Sequence[str] = ()
    """NAME, NAME=env:VARIABLE or NAME=file:PATH; never values."""
    python: bool | str = False
    """True: the interpreter of this program with its packages; or the path of another one."""
    redact: bool = False
    """Whether the values of its secrets are replaced in what it prints and answers."""

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
