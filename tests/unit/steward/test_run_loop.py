"""The loop that drives runs, and interrupted starts of runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from retinue.core.errors import StorageFailed
from retinue.core.ids import TaskId
from retinue.core.join_result import Source
from retinue.core.plan import Plan, PlanStep
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.steward.journal import RETRY_SECONDS, ActiveRuns, run_to_end
from retinue.steward.plan_service import RunRequest
from support.stage import Stage


class SlowSources:
    """Sources whose repository never finishes opening."""

    async def find(
        self, folder: Path, ref: str, *, dirty: bool, apply: bool, named: bool = False
    ) -> Source:
        return Source(git_dir="/r/.git", top="/r", objects="", object_format="sha1", commit="c")

    async def open(self, task: TaskId, source: Source, *, dirty: bool) -> Source:
        await asyncio.Event().wait()
        return source

    def require_same_repository(self, folder: Path, project: Path) -> None:
        """Accept any folder."""

    async def find_tip(self, task: str, git_dir: str, branch: str) -> str:
        return ""

    async def fast_forward(self, source: Source, branch: str) -> None:
        """Return no tip: nothing was joined."""


def test_a_plan_whose_caller_disconnects_before_its_start_leaves_no_open_task(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path / "retinue.db", sources=SlowSources())
    request = RunRequest(
        plan=Plan(
            goal="g", steps=(PlanStep(id="a", title="a", command=("true",)),), repository="r"
        ),
        text="",
        document={},
        folders=(tmp_path,),
        config=NewConfig(),
        task_config=TaskConfig(),
    )
    starting = stage.begin(stage.service.plans.start(request))
    states = {task.title: task.state for task, _ in stage.service.tasks.list_newest()}
    assert states["g"] == "open" and not starting.done()
    starting.cancel()
    stage.settle_down()
    assert starting.cancelled()
    states = {task.title: task.state for task, _ in stage.service.tasks.list_newest()}
    assert states["g"] == "closed"
    stage.close()


class Steps:
    """Scripted results of `advance`."""

    def __init__(self, *steps: bool | Exception) -> None:
        self._left = list(steps)

    async def advance(self) -> bool:
        step = self._left.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    @property
    def over(self) -> bool:
        return not self._left


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "retinue.db")


def begin(stage: Stage, driven: ActiveRuns, steps: Steps) -> list[str]:
    """Start driving a run; return a list that notes its end."""
    ends: list[str] = []
    course = run_to_end(stage.task, steps.advance, stage.journal, stage.complaints.append)

    async def start() -> None:
        driven.begin(stage.task, course, over=lambda: ends.append("over"))

    stage.do(start())
    return ends


def test_a_disk_error_is_retried(stage: Stage) -> None:
    driven = ActiveRuns(stage.journal, stage.complaints.append)
    ends = begin(stage, driven, Steps(StorageFailed("the disk is full"), True))
    assert stage.complaints == [f"run of {stage.task}: the disk is full"] and not ends
    stage.advance(RETRY_SECONDS)
    assert ends == ["over"] and stage.task not in driven


def test_a_run_advances_at_every_change_and_never_between(stage: Stage) -> None:
    driven, steps = ActiveRuns(stage.journal, stage.complaints.append), Steps(False, False, True)
    ends = begin(stage, driven, steps)
    stage.advance(100 * RETRY_SECONDS)
    assert not steps.over
    for _ in range(2):
        assert stage.task in driven and not ends
        stage.journal.wake(stage.task)
        stage.settle_down()
    assert ends == ["over"] and steps.over


def test_an_unexpected_error_ends_the_loop_and_is_logged(stage: Stage) -> None:
    driven = ActiveRuns(stage.journal, stage.complaints.append)
    waiting = stage.begin(_change(stage))
    assert begin(stage, driven, Steps(KeyError("a bug"))) == ["over"]
    assert stage.complaints == [f"run of {stage.task}: KeyError: 'a bug'"]
    assert waiting.done() and stage.task not in driven


def test_a_detached_run_ends_without_waking_waiters(stage: Stage) -> None:
    driven = ActiveRuns(stage.journal, stage.complaints.append)
    ends = begin(stage, driven, Steps(False))
    waiting = stage.begin(_change(stage))
    stage.do(driven.detach())
    assert ends == ["over"] and not waiting.done() and not stage.complaints


async def _change(stage: Stage) -> None:
    await stage.journal.expect_change(stage.task)
