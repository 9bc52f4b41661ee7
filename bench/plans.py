"""Benchmarks of plans: how soon a workspace is ready, what a merge costs as a repository grows."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from measure import Figure, in_turns, median_ms, sample
from retinue.child import sandbox, syscalls
from retinue.child.namespaces import PROCESSES, clone_into
from retinue.child.sandbox import OURS, Owners
from retinue.core.contract import Contract, Execution, Outputs, Parent, Step
from retinue.core.ids import RunId, SubagentId, TaskId
from retinue.core.join_result import Source
from retinue.core.lifecycle import Standing
from retinue.core.subagent import Subagent
from retinue.ports import LaunchOrder
from retinue.runtime.process_runtime import ProcessRuntime
from retinue.runtime.sandbox_view import WORK, ChildUsers
from retinue.workspaces.agent_folder import FolderWorkspace
from retinue.workspaces.folder_cleanup import sweep
from retinue.workspaces.git.git_command import Git
from retinue.workspaces.git.git_join import GitJoining
from retinue.workspaces.git.shared_checkouts import SharedCheckouts
from retinue.workspaces.git.user_repository import GitSources, make_owners_git

TASK = TaskId("bench")
OWNED = "d1"  # a hundred files
WHO = ["-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0"]


@dataclass
class Stand:
    """A repository of so many files, and a root beside it."""

    repository: Path
    root: Path
    sources: GitSources
    joining: GitJoining
    source: Source
    runtime: ProcessRuntime

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
            contract_text="",
            contract_sha256="",
            standing=Standing(),
            created_at="",
        )

    def workspace(self, name: str) -> Path:
        return self.root / "tasks" / TASK / "agents" / name / "workspace"

    async def edit(self, subagent: Subagent, script: str) -> None:
        """A command has run in the subagent's workspace, in a process of its own, isolated."""
        lent, below = await self.joining.lay_out(subagent)
        workspace = self.workspace(subagent.contract.continues or subagent.id)
        folder = workspace.parent / "runtime"
        folder.mkdir(exist_ok=True)
        child = await self.runtime.launch(
            LaunchOrder(
                task=TASK,
                subagent=subagent.id,
                attempt=1,
                argv=("/bin/sh", "-c", script),
                environment={},
                workspace=workspace,
                runtime_folder=folder,
                timeout_ms=60_000,
                graces_ms=(0, 0),
                output_limit_bytes=10_000,
                lent=lent,
                below=below,
            )
        )
        await child.release()
        ending = await child.wait_ended()
        assert ending.clean, ending.describe()

    async def cycle(self, name: str) -> None:
        """Made, edited, taken in, merged and removed."""
        subagent = self.subagent(name)
        await self.edit(subagent, f"echo new > new-{name}.txt")
        change = await self.joining.take_in(subagent)
        merged = await self.joining.merge(subagent, change)
        commit = await self.joining.commit(subagent, merged)
        assert await self.joining.move(subagent, merged, commit), "nobody else moves it"
        sweep(self.workspace(name).parent, force=True)


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
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"], ["gc", "-q"]):
            run(["git", *WHO, *words], top)
        yield top


async def stand(top: Path) -> Stand:
    root = top.parent / ".retinue"
    (root / "tasks" / TASK / "agents").mkdir(parents=True)
    sources = GitSources(Git(), make_owners_git({}), root / "tasks")
    runtime = ProcessRuntime()
    bases = SharedCheckouts(sources.git, root, partial(runtime.layers_missing, root))
    joining = GitJoining(sources, FolderWorkspace(root, {}), ChildUsers(), bases)
    source = await sources.find(top, "HEAD", dirty=False, apply=False)
    await sources.open(TASK, source, dirty=False)
    return Stand(top, root, sources, joining, source, runtime)


async def workspace(files: int, rounds: int) -> list[Figure]:
    """A child's private copy of a repository, and the whole way from there to a merge."""
    few, many = await _copies(200, rounds), await _copies(files, rounds)
    ms = {name: median_ms(seconds) for name, seconds in many.items()}
    was = {name: median_ms(seconds) for name, seconds in few.items()}
    span = math.log(files / 200)
    growth = {name: math.log(ms[name] / was[name]) / span for name in ms}
    size = f"{files:,} files"
    return [
        Figure(
            "workspace",
            ms["shared"] / ms["worktree"],
            f"x git worktree add, {size}",
            0.02,
            ours=sample("ready to edit, seen through", many["shared"]),
            floor=sample("git worktree add", many["worktree"]),
            details={f"{name}_{n}_ms": value[name] for n, value in ((200, was), (files, ms))
                     for name in ms},
        ),
        Figure(
            "workspace cycle",
            ms["cycle"] / ms["worktree_cycle"],
            f"x worktree, commit, merge, remove, {size}",
            0.1,
            ours=sample("to merged and removed", many["cycle"]),
            floor=sample("the same with a worktree", many["worktree_cycle"]),
            note="Ours runs the edit in an isolated process; theirs writes the file itself.",
        ),
        Figure("workspace growth", growth["shared"], f"exponent from 200 to {size}", 0.1),
        Figure("cycle growth", growth["cycle"], f"exponent from 200 to {size}", 0.1),
        Figure("workspace, whole", ms["whole"] / ms["worktree"], f"x git worktree add, {size}",
               note="The fallback, where the kernel cannot show a checkout through a workspace: "
               "every file is written."),
        Figure("workspace, sparse", ms["sparse"] / ms["worktree"], f"x git worktree add, {size}",
               0.2, note="The same with `subagent_workspaces: sparse`, for a step that owns a "
               "folder.", ours=sample("what it owns is there", many["sparse"])),
    ]  # fmt: skip


async def _copies(files: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way to a private copy, and of each whole cycle, in turns."""
    with repository(files) as top:
        it = await stand(top)
        made = iter(range(10_000))

        async def shared() -> None:
            subagent = it.subagent(f"s{next(made)}")
            _, below = await it.joining.lay_out(subagent)
            assert below, "the kernel shows a checkout through a workspace"
            mounted.append(mount_seconds(it.workspace(subagent.id), below))

        async def whole() -> None:
            await it.joining.lay_out(elsewhere(it.subagent(f"p{next(made)}"), "shared"))

        async def sparse() -> None:
            await it.joining.lay_out(elsewhere(it.subagent(f"o{next(made)}"), "sparse"))

        async def worktree() -> None:
            place = str(top.parent / f"worktree-{next(made)}")
            run(["git", "worktree", "add", "-q", "--detach", place, "HEAD"], top)

        async def cycle() -> None:
            await it.cycle(f"c{next(made)}")

        async def worktree_cycle() -> None:
            number = next(made)
            place, branch = top.parent / f"cycle-{number}", f"b{number}"
            run(["git", "worktree", "add", "-q", "-b", branch, str(place), "HEAD"], top)
            (place / f"new{number}.txt").write_text("new\n")
            run(["git", "add", "-A"], place)
            run(["git", *WHO, "commit", "-qm", branch], place)
            run(["git", *WHO, "merge", "-q", "--no-edit", branch], top)
            run(["git", "worktree", "remove", "--force", str(place)], top)

        mounted: list[tuple[float, float]] = []
        acts = {"worktree": worktree, "shared": shared, "whole": whole, "sparse": sparse}
        acts |= {"cycle": cycle, "worktree_cycle": worktree_cycle}
        taken = await in_turns(rounds, acts, calm=True)
        it.runtime.close()
    # Only what the mount itself took: a process to do it in is there in any case.
    taken["shared"] = [
        laid - all_ + inside
        for laid, (all_, inside) in zip(taken["shared"], mounted[1:], strict=True)
    ]
    return taken


def elsewhere(subagent: Subagent, workspaces: str) -> Subagent:
    """The same for a subagent that is launched where nothing can be shown to it."""
    bound = subagent.contract
    boundary = replace(bound.boundary, launch_prefix=("env",), workspaces=workspaces)
    outputs = replace(bound.outputs, owns=(OWNED,))
    return replace(subagent, contract=replace(bound, boundary=boundary, outputs=outputs))


def mount_seconds(workspace: Path, below: tuple[Path, ...]) -> tuple[float, float]:
    """Seconds that it took to have a workspace shown over a checkout: in all, and within."""
    began = time.perf_counter()
    source, sink = os.pipe()
    with tempfile.TemporaryDirectory() as staging:
        pid = clone_into(PROCESSES)
        if pid == 0:
            try:
                os.write(sink, struct.pack("d", _mount(workspace, below, staging)))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    os.close(sink)
    (inside,) = struct.unpack("d", os.read(source, 8))
    os.close(source)
    return time.perf_counter() - began, inside


def _mount(workspace: Path, below: tuple[Path, ...], root: str) -> float:
    syscalls.require_own_namespaces()
    syscalls.mount(None, b"/", None, syscalls.MS_REC | syscalls.MS_PRIVATE, b"")
    syscalls.mount(b"tmpfs", root.encode(), b"tmpfs", 0, b"")
    os.mkdir(f"{root}/proc")
    syscalls.mount(b"proc", f"{root}/proc".encode(), b"proc", 0, b"")
    paths = tuple(map(str, below))
    uid = ChildUsers()(f"{TASK}/{workspace.parent.name}")
    owners = Owners(uid, f"{root}/proc").open_mapping(*OURS)
    began = time.perf_counter()
    held = sandbox.open_overlay_trees(str(workspace), paths, str(workspace.parent / WORK))
    mapping = None if uid is None else owners
    sandbox.mount_overlay(held, f"{root}/workspace", f"{root}/.layers", mapping)
    return time.perf_counter() - began


async def merging(files: int, rounds: int) -> dict[str, list[float]]:
    """Seconds to take a change in, and to merge it, commit it and move the branch."""
    taken: dict[str, list[float]] = {"take_in": [], "merge": []}
    with repository(files) as top:
        it = await stand(top)
        await it.joining.lay_out(it.subagent("w"))
        for number in range(rounds + 1):
            subagent = it.subagent(f"s{number}", continues="w")
            await it.edit(subagent, f"echo {number} > new{number}.txt")
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
        it.runtime.close()
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
