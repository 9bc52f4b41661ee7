"""What a run works for, as its verbs need it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from retinue.domain.ids import TaskId
from retinue.domain.join import Source
from retinue.domain.subagent import Draft

BRANCH = "refs/heads/retinue/{task}"


class Sources(Protocol):
    async def find(self, folder: Path, ref: str, *, dirty: bool, apply: bool) -> Source:
        """What a run would start from; nothing has been made.

        Raises:
            BadInput: in one sentence, why that cannot be.
        """

    async def open(self, task: TaskId, source: Source, *, dirty: bool) -> Source:
        """The task has a repository of its own, and with `dirty` a base of what is there now.

        Raises:
            RetinueError: it cannot be made.
        """

    async def tip(self, task: TaskId, git_dir: str, branch: str) -> str:
        """Where a branch stands; empty when there is none.

        Raises:
            RetinueError: the repository cannot be read.
        """

    async def fast_forward(self, source: Source, branch: str) -> None:
        """The branch that is checked out, and its files, are what was joined.

        Raises:
            Refused: it is not clean, or has moved elsewhere; it is as it was.
        """


def branch_of(task: TaskId) -> str:
    return BRANCH.format(task=task)


def merged_into(draft: Draft, source: Source, branch: str) -> Draft:
    """The draft, if it is to be merged, bound to what it starts from and is merged into."""
    outputs = draft.contract.outputs
    if outputs.integration != "merge":
        return draft
    outputs = replace(outputs, repository=source.repository, base=source.commit, branch=branch)
    return replace(draft, contract=replace(draft.contract, outputs=outputs))
