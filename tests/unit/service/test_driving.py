"""Runs that are driven to their ends, and starts of runs that are broken off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from retinue.domain.errors import StorageFailed
from retinue.domain.ids import TaskId
from retinue.domain.join import Source
from retinue.domain.plan import Plan, PlanStep
from retinue.domain.policy import NewConfig, TaskConfig
from retinue.service import RunRequest
from retinue.service.driving import RETRY_SECONDS, Driven, drive
from support.stage import Stage


class SlowSources:
    """A repository that is being opened for ever."""

    async def find(self, folder: Path, ref: str, *, dirty: bool, apply: bool) -> Source:
        return Source(git_dir="/r/.git", top="/r", objects="", object_format="sha1", commit="c")

    async def open(self, task: TaskId, source: Source, *, dirty: bool) -> Source:
        await asyncio.Event().wait()
        return source

    async def tip(self, task: str, git_dir: str, branch: str) -> str:
        return ""

    async def fast_forward(self, source: Source, branch: str) -> None:
        """Nothing was joined."""


def test_a_plan_whose_caller_goes_before_it_began_leaves_no_open_task(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "retinue.db", sources=SlowSources())
    request = RunRequest(
        plan=Plan(
            goal="g", steps=(PlanStep(id="a", title="a", command=("true",)),), repository="r"
        ),
        document={},
        folders=(tmp_path,),
        config=NewConfig(),
        policy=TaskConfig(),
    )
    starting = stage.begin(stage.service.plans.start(request))
    states = {task.title: task.state for task, _ in stage.service.tasks.newest()}
    assert states["g"] == "open" and not starting.done()
    starting.cancel()
    stage.settle_down()
    assert starting.cancelled()
    states = {task.title: task.state for task, _ in stage.service.tasks.newest()}
    assert states["g"] == "closed"
    stage.close()


class Steps:
    """What happens each time a run is asked how far it is."""

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


def begin(stage: Stage, driven: Driven, steps: Steps) -> list[str]:
    """The run is under way; the list says when it is not any more."""
    ends: list[str] = []
    course = drive(stage.task, steps.advance, stage.journal, stage.complaints.append)

    async def start() -> None:
        driven.begin(stage.task, course, over=lambda: ends.append("over"))

    stage.do(start())
    return ends


def test_what_the_disk_refuses_is_tried_again(stage: Stage) -> None:
    driven = Driven(stage.journal, stage.complaints.append)
    ends = begin(stage, driven, Steps(StorageFailed("the disk is full"), True))
    assert stage.complaints == [f"run of {stage.task}: the disk is full"] and not ends
    stage.advance(RETRY_SECONDS)
    assert ends == ["over"] and stage.task not in driven


def test_a_run_is_asked_again_at_every_change_and_never_between(stage: Stage) -> None:
    driven, steps = Driven(stage.journal, stage.complaints.append), Steps(False, False, True)
    ends = begin(stage, driven, steps)
    stage.advance(100 * RETRY_SECONDS)
    assert not steps.over
    for _ in range(2):
        assert stage.task in driven and not ends
        stage.journal.wake(stage.task)
        stage.settle_down()
    assert ends == ["over"] and steps.over


def test_a_fault_that_nobody_foresaw_ends_the_driving_and_is_told(stage: Stage) -> None:
    driven = Driven(stage.journal, stage.complaints.append)
    waiting = stage.begin(_change(stage))
    assert begin(stage, driven, Steps(KeyError("a bug"))) == ["over"]
    assert stage.complaints == [f"run of {stage.task}: KeyError: 'a bug'"]
    assert waiting.done() and stage.task not in driven


def test_what_is_detached_is_over_and_nobody_is_told_that_it_ended(stage: Stage) -> None:
    driven = Driven(stage.journal, stage.complaints.append)
    ends = begin(stage, driven, Steps(False))
    waiting = stage.begin(_change(stage))
    stage.do(driven.detach())
    assert ends == ["over"] and not waiting.done() and not stage.complaints


async def _change(stage: Stage) -> None:
    await stage.journal.next_change(stage.task)
