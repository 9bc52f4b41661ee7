"""Benchmarks of plans: how soon a workspace is ready, what a merge costs as a repository grows."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from measure import Figure, in_turns, median_ms, sample
from retinue.domain.contract import Contract, Execution, Outputs, Parent, Step
from retinue.domain.ids import RunId, SubagentId, TaskId
from retinue.domain.join import Source
from retinue.domain.lifecycle import Standing
from retinue.domain.subagent import Subagent
from retinue.runtimes.view import child_uid
from retinue.workspaces.folder import FolderWorkspace
from retinue.workspaces.git import Git
from retinue.workspaces.joining import GitJoining
from retinue.workspaces.sources import GitSources

TASK = TaskId("bench")


@dataclass
class Stand:
    """A repository of so many files, and a root beside it."""

    repository: Path
    root: Path
    sources: GitSources
    joining: GitJoining
    source: Source

    def subagent(self, name: str, continues: str = "") -> Subagent:
        outputs = Outputs(
            integration="merge",
            repository=self.source.git_dir,
            base=self.source.commit,
            branch="refs/heads/retinue/bench",
        )
        contract = Contract(
            parent=Parent(run_id="r", step_idx=0, task_prompt="", goal_summary=""),
            step=Step(title=name, description=""),
            execution=Execution(attempt_timeout_ms=1000),
            outputs=outputs,
            continues=continues,
        )
        return Subagent(
            id=SubagentId(name),
            task=TASK,
            run=RunId("r"),
            step_idx=0,
            contract=contract,
            contract_sha256="",
            standing=Standing(),
            created_at="",
        )

    def workspace(self, name: str) -> Path:
        return self.root / "tasks" / TASK / "agents" / name / "workspace"


def run(words: list[str], folder: Path) -> None:
    subprocess.run(words, cwd=folder, check=True)


@contextmanager
def repository(files: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder:
        top = Path(folder) / "repository"
        for number in range(files):
            path = top / f"d{number // 100}" / f"f{number % 100}.txt"
            if not number % 100:
                path.parent.mkdir(parents=True)
            path.write_text(f"line of {number}\n" * 20)
        who = ["-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"], ["gc", "-q"]):
            run(["git", *who, *words], top)
        yield top


async def stand(top: Path) -> Stand:
    root = top.parent / ".retinue"
    (root / "tasks" / TASK / "agents").mkdir(parents=True)
    sources = GitSources(Git(), root / "tasks")
    joining = GitJoining(sources, FolderWorkspace(root, {}), child_uid)
    source = await sources.find(top, "HEAD", dirty=False, apply=False)
    await sources.open(TASK, source, dirty=False)
    return Stand(top, root, sources, joining, source)


async def workspace(files: int, rounds: int) -> list[Figure]:
    """A child's workspace, owned by its user and with a clone of its own, against a worktree."""
    with repository(files) as top:
        it = await stand(top)
        made = iter(range(10_000))

        async def ours() -> None:
            await it.joining.lay_out(it.subagent(f"w{next(made)}"))

        async def theirs() -> None:
            place = str(top.parent / f"worktree-{next(made)}")
            run(["git", "worktree", "add", "-q", "--detach", place, "HEAD"], top)

        taken = await in_turns(rounds, worktree=theirs, workspace=ours)
    ms = {name: median_ms(seconds) for name, seconds in taken.items()}
    ratio = ms["workspace"] / ms["worktree"]
    return [
        Figure(
            "workspace",
            ratio,
            f"x git worktree add, {files:,} files",
            0.02,
            ours=sample("ready to edit", taken["workspace"]),
            floor=sample("git worktree add", taken["worktree"]),
            note="A workspace is a whole checkout with a clone of its own, so every file is "
            "written. Only a copy-on-write view of one checkout (overlayfs, in the child's own "
            "mount namespace) costs nothing for a file that is not touched.",
        )
    ]


async def merging(files: int, rounds: int) -> dict[str, list[float]]:
    """Seconds to take a change in, and to merge it, commit it and move the branch."""
    taken: dict[str, list[float]] = {"take_in": [], "merge": []}
    with repository(files) as top:
        it = await stand(top)
        await it.joining.lay_out(it.subagent("w"))
        for number in range(rounds + 1):
            (it.workspace("w") / f"new{number}.txt").write_text(f"{number}\n")
            subagent = it.subagent(f"s{number}", continues="w")
            began = time.perf_counter()
            change = await it.joining.take_in(subagent)
            between = time.perf_counter()
            merged = await it.joining.merge(subagent, change)
            commit = await it.joining.commit(subagent, merged)
            outcome = await it.joining.move(subagent, merged, commit)
            ended = time.perf_counter()
            assert outcome is not None, "nobody else moves it"
            if number:
                taken["take_in"].append(between - began)
                taken["merge"].append(ended - between)
    return taken


async def merge(most: int, rounds: int) -> list[Figure]:
    few, many = await merging(200, rounds), await merging(most, rounds)
    details = {
        f"{name}_{size}_ms": median_ms(found[name])
        for size, found in ((200, few), (most, many))
        for name in ("take_in", "merge")
    }
    growth = median_ms(many["merge"]) / median_ms(few["merge"])
    taking = median_ms(many["take_in"]) / median_ms(few["take_in"])
    return [
        Figure("merge", growth, f"x from 200 to {most} files", 2, details=details),
        Figure("take in", taking, f"x from 200 to {most} files"),
    ]
