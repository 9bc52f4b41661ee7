"""Git source of a run: the port to the user's repository, and the name of its branch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from retinue.core.ids import TaskId
from retinue.core.join_result import Source
from retinue.core.subagent import Draft

BRANCH = "refs/heads/retinue/{task}"


class Sources(Protocol):
    """Access to the user's repository."""

    async def find(
        self, folder: Path, ref: str, *, dirty: bool, apply: bool, named: bool = False
    ) -> Source:
        """Return what a run would start from, without changing anything.

        Args:
            named: whether a user named this folder as the repository; then it may be bare.

        Raises:
            BadInput: no run can start from this folder.
        """

    async def open(self, task: TaskId, source: Source, *, dirty: bool) -> Source:
        """Create the task's own repository; with `dirty`, commit uncommitted changes as base.

        Raises:
            RetinueError: the repository cannot be created.
        """

    def require_same_repository(self, folder: Path, project: Path) -> None:
        """Raises:
        BadInput: the folder is not in the repository of the project.
        """

    async def find_tip(self, task: TaskId, git_dir: str, branch: str) -> str:
        """Return the commit of a branch; empty if there is none.

        Raises:
            RetinueError: the repository cannot be read.
        """

    async def fast_forward(self, source: Source, branch: str) -> None:
        """Fast-forward the checked-out branch and its files to what was joined.

        Raises:
            Refused: the checkout is not clean or has diverged; nothing was changed.
        """


def name_branch(task: TaskId) -> str:
    return BRANCH.format(task=task)


def bind_merge(draft: Draft, source: Source, branch: str) -> Draft:
    """Return the draft with repository, base and branch set if its output is merged."""
    outputs = draft.contract.outputs
    if outputs.integration != "merge":
        return draft
    outputs = replace(outputs, repository=source.repository, base=source.commit, branch=branch)
    return replace(draft, contract=replace(draft.contract, outputs=outputs))
