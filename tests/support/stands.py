"""A repository, and subagents of a task that work on it, without any process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from retinue.core.contract import Contract, Execution, Outputs, Parent, Step
from retinue.core.ids import RunId, SubagentId, TaskId
from retinue.core.lifecycle import Standing
from retinue.core.subagent import Subagent
from retinue.workspaces.agent_folder import FolderWorkspace
from retinue.workspaces.git.git_command import Git
from retinue.workspaces.git.git_join import GitJoining
from retinue.workspaces.git.shared_checkouts import SharedCheckouts
from retinue.workspaces.git.user_repository import GitSources, make_owners_git
from support.repositories import Repository

FILES = {"a.txt": "one\n", "b/c.txt": "two\n", "b/d.txt": "three\n"}
TASK = TaskId("t")


class Stand:
    """Where subagents of a task work on a repository; `missing` says why they cannot share."""

    def __init__(self, path: Path, files: Mapping[str, str] = FILES) -> None:
        self.repository = Repository(path / "project", dict(files))
        self.root = path / "root"
        (self.root / "tasks" / TASK / "agents").mkdir(parents=True)
        self.missing: str | None = None
        self.asked = 0
        sources = GitSources(Git(), make_owners_git({}), self.root / "tasks")
        bases = SharedCheckouts(sources.git, self.root, self._missing)
        self.joining = GitJoining(sources, FolderWorkspace(self.root, {}), _nobody, bases)

    async def _missing(self) -> str | None:
        self.asked += 1
        return self.missing

    def subagent(self, name: str = "one", owns: tuple[str, ...] = (), **contract: Any) -> Subagent:
        git_dir = str(self.repository.path / ".git")
        outputs = Outputs(
            integration="merge",
            repository=git_dir,
            base=self.repository.git("rev-parse", "main"),
            branch="refs/heads/retinue/t",
            owns=owns,
        )
        bound = Contract(
            parent=Parent(run_id="r", step_idx=0, task_prompt="", goal_summary=""),
            step=Step(title=name, description=""),
            execution=Execution(attempt_timeout_ms=1000),
            outputs=outputs,
        )
        return Subagent(
            id=SubagentId(name),
            task=TASK,
            run=RunId("r"),
            step_idx=0,
            contract=replace(bound, **contract),
            contract_text="",
            contract_sha256="",
            standing=Standing(),
            created_at="",
        )

    def workspace(self, name: str = "one") -> Path:
        return self.root / "tasks" / TASK / "agents" / name / "workspace"


def _nobody(name: str) -> int | None:
    """Files are ours."""
    return None


def run(act: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(act)


def held(workspace: Path) -> dict[str, str]:
    """Every file that lies there, but for git's."""
    return {
        str(path.relative_to(workspace)): path.read_text()
        for path in workspace.rglob("*")
        if ".git" not in path.parts and path.is_file()
    }
