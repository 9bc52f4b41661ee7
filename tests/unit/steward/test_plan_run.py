"""Plan runs: unexpected errors in joins, and stops and closes at awkward moments."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import Refused, StorageFailed
from retinue.core.join_result import CONFLICT, JoinFailed, JoinOutcome, MergedTree
from retinue.core.lifecycle import State
from retinue.core.plan import COPY, MERGE, Plan, PlanStep
from retinue.core.result import Result
from retinue.core.subagent import Subagent
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.ports import LaunchOrder, ProcessIdentity
from retinue.steward.journal import RETRY_SECONDS
from retinue.steward.plan_service import RunRequest
from retinue.workspaces.agent_folder import make_launch_order
from support.fakes import FakeRuntime, exited
from support.stage import NoJoining, Stage

SECONDS = 60  # long enough for a run to retry many times


class BrokenJoining(NoJoining):
    """Join backend that raises an unexpected error for the first step."""

    def __init__(self) -> None:
        self.fault: Exception = OSError(24, "Too many open files")
        self.fault_of_keep: Exception | None = None
        self.fault_of_publish: Exception | None = None
        self.merged = False  # the merge happened before the error
        self.legible = True  # whether it was merged can be looked up
        self.kept = asyncio.Event()
        self.kept.set()
        self.tried: list[str] = []

    async def copy(self, subagent: Subagent) -> JoinOutcome:
        self.tried.append(subagent.id)
        if subagent.id == "one":
            raise self.fault
        return JoinOutcome(reason="copied")

    async def find_merged(self, subagent: Subagent) -> JoinOutcome | None:
        self.tried.append(subagent.id)
        if len(self.tried) == 1 or not self.legible:
            raise self.fault
        return JoinOutcome(reason="merged", details={"commit": "c"}) if self.merged else None

    async def keep(self, subagent: Subagent, failure: JoinFailed) -> dict[str, object]:
        if self.fault_of_keep is not None:
            raise self.fault_of_keep
        await self.kept.wait()
        return {"workspace": "kept"}

    def find_interrupted(self, subagent: Subagent) -> None:
        """Do nothing."""

    def publish(self, subagent: Subagent, result: Result) -> None:
        if self.fault_of_publish is not None:
            raise self.fault_of_publish


@pytest.fixture
def joining() -> BrokenJoining:
    return BrokenJoining()


@pytest.fixture
def stage(tmp_path: Path, joining: BrokenJoining) -> Iterator[Stage]:
    stage = Stage(tmp_path / "retinue.db", joining=joining)
    yield stage
    stage.close()


def begin(stage: Stage, *names: str, integration: str = COPY, verify: tuple[str, ...] = ()) -> None:
    """Start a plan."""
    terms: dict[str, Any] = {"command": ("true",), "integration": integration, "verify": verify}
    steps = tuple(PlanStep(id=name, title=name, **terms) for name in names)
    plan = Plan(goal="both", steps=steps, on_failure="continue")
    request = RunRequest(
        plan=plan, text="", document={}, folders=(), config=NewConfig(), task_config=TaskConfig()
    )
    stage.task = stage.do(stage.service.plans.start(request)).id


def test_a_plan_that_cannot_be_kept_is_refused_and_none_of_its_steps_begins(stage: Stage) -> None:
    stage.tasks.disk_full = True
    with pytest.raises(StorageFailed):
        begin(stage, "one")
    (task,) = (each for each, _ in stage.service.tasks.list_newest() if each.title == "both")
    assert task.state == "closed"
    assert stage.records.list_newest(task.id, 10) == []


def carry_out(stage: Stage, *names: str, integration: str = COPY) -> None:
    """Let every step of the plan finish, then wait long enough for all that follows."""
    begin(stage, *names, integration=integration)
    for name in names:
        stage.machine.leave(name, final_answer="42")
        stage.machine.end(name, exited(0))
    for _ in range(SECONDS):
        stage.advance(1.0)


@pytest.mark.parametrize("fault", [OSError(24, "Too many open files"), KeyError("a bug")], ids=repr)
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
def test_an_unexpected_error_in_a_join_fails_its_step_once_and_the_run_goes_on(
    stage: Stage, joining: BrokenJoining, fault: Exception, kept: bool
) -> None:
    joining.fault = fault
    joining.fault_of_keep = None if kept else fault
    carry_out(stage, "one", "two")
    assert joining.tried == ["one", "two"]
    assert [e for e in stage.types("one") if "merge" in e or "closed" in e] == [
        "subagent_waiting_for_merge",
        "worktree_merge_failed",
        "subagent_closed",
    ]
    result = stage.service.subagents.get_result(stage.task, "one")
    assert type(fault).__name__ in (result.error or "") and str(fault) in (result.error or "")
    assert result.answer == "42"
    assert stage.subagent("two").standing.final_status == "completed"
    assert stage.service.tasks.join(stage.task).outcome == "failed"
    told = [line for line in stage.complaints if "join of one" in line]
    assert len(told) == 1 and type(fault).__name__ in told[0]


def test_a_step_that_was_merged_before_the_error_is_completed(
    stage: Stage, joining: BrokenJoining
) -> None:
    joining.merged = True
    carry_out(stage, "one", integration=MERGE)
    assert stage.subagent("one").standing.final_status == "completed"
    assert stage.types("one").count("worktree_merged") == 1


def test_a_step_whose_merge_cannot_be_looked_up_fails_once(
    stage: Stage, joining: BrokenJoining
) -> None:
    joining.legible = False
    carry_out(stage, "one", integration=MERGE)
    assert joining.tried == ["one", "one"]
    assert stage.types("one").count("worktree_merge_failed") == 1
    assert stage.service.tasks.join(stage.task).outcome == "failed"


def test_the_join_error_is_the_reason_even_if_the_output_cannot_be_kept(
    stage: Stage, joining: BrokenJoining
) -> None:
    joining.fault = JoinFailed("both changed a.txt", reason=CONFLICT, files=("a.txt",))
    joining.fault_of_keep = KeyError("a bug")
    carry_out(stage, "one", "two")
    result = stage.service.subagents.get_result(stage.task, "one")
    about = result.integration or {}
    assert (result.error, about["reason"]) == ("both changed a.txt", CONFLICT)
    assert (about["conflicted_files"], about["not_kept"]) == (["a.txt"], "KeyError('a bug')")
    assert stage.types("one").count("worktree_merge_failed") == 1
    assert [line for line in stage.complaints if "KeyError: 'a bug'" in line]
    assert stage.subagent("two").standing.final_status == "completed"


def test_a_failure_is_recorded_later_without_another_join(
    stage: Stage, joining: BrokenJoining
) -> None:
    joining.fault_of_publish = KeyError("a bug")
    carry_out(stage, "one")
    assert joining.tried == ["one"]
    told = [line for line in stage.complaints if "failure of one: KeyError" in line]
    assert SECONDS / RETRY_SECONDS / 2 < len(told) <= SECONDS / RETRY_SECONDS + 1
    joining.fault_of_publish = None
    stage.advance(RETRY_SECONDS)
    assert stage.types("one").count("worktree_merge_failed") == 1
    assert str(joining.fault) in (stage.service.subagents.get_result(stage.task, "one").error or "")


def test_an_error_while_recording_does_not_fail_a_merged_step(
    stage: Stage, joining: BrokenJoining
) -> None:
    joining.merged = True
    joining.fault_of_publish = KeyError("a bug")
    carry_out(stage, "one", integration=MERGE)
    assert stage.subagent("one").standing.state is State.WAITING_FOR_MERGE
    joining.fault_of_publish = None
    stage.advance(RETRY_SECONDS)
    assert stage.subagent("one").standing.final_status == "completed"


def test_a_detached_run_leaves_a_failing_step_to_the_next_steward(
    stage: Stage, joining: BrokenJoining
) -> None:
    joining.kept.clear()
    carry_out(stage, "one")
    assert stage.service.supervisor.joins
    stage.do(stage.service.plans.detach())
    assert not stage.service.supervisor.joins
    assert stage.subagent("one").standing.state is State.WAITING_FOR_MERGE


def test_a_run_cancelled_during_binding_starts_no_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, decided = 0, asyncio.Event()

    async def isolation_missing(runtime: FakeRuntime, behind: object) -> None:
        nonlocal trials
        trials += 1
        if trials > 1:  # the first is that of the plan as a whole
            await decided.wait()

    monkeypatch.setattr(FakeRuntime, "isolation_missing", isolation_missing)
    begin(stage, "one", "two")
    assert trials == 2
    stage.service.plans.stop(stage.task, by="user", reason="enough")
    assert stage.do(stage.service.tasks.cancel(stage.task, by="user", reason="enough")) == []
    decided.set()
    stage.settle_down()
    assert stage.subagents() == []
    assert stage.records.get_task(stage.task).state == "closed"


class FullChecking(BrokenJoining):
    """Check backend that cannot write down the process of a check."""

    def __init__(self) -> None:
        super().__init__()
        self.discarded: list[LaunchOrder] = []

    async def check_out(self, subagent: Subagent, merged: MergedTree | None) -> LaunchOrder:
        return make_launch_order(subagent, Path("/w"), Path("/w/runtime"), environment={})

    def note(self, order: LaunchOrder, identity: ProcessIdentity) -> None:
        raise StorageFailed("cannot write: no space left", code="disk_full")

    async def discard(self, order: LaunchOrder) -> None:
        self.discarded.append(order)

    def read_error_output(self, order: LaunchOrder) -> str:
        return ""

    def read_message(self, order: LaunchOrder) -> str:
        return ""


def test_a_check_that_cannot_be_noted_is_killed(tmp_path: Path) -> None:
    checking = FullChecking()
    stage = Stage(tmp_path / "retinue.db", joining=checking)
    begin(stage, "two", verify=("check",))
    stage.machine.leave("two", final_answer="42")
    stage.machine.end("two", exited(0))
    stage.advance(1.0)
    assert stage.machine.living("two") is None
    assert len(checking.discarded) == 1
    assert stage.subagent("two").standing.close_reason == "check_failed"
    assert "no space left" in (stage.service.subagents.get_result(stage.task, "two").error or "")
    stage.close()


@pytest.mark.parametrize("turns", range(30))
def test_the_task_of_a_run_is_closed_only_after_its_last_step(stage: Stage, turns: int) -> None:
    begin_in_turn(stage)

    async def close() -> object:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await stage.service.plans.close(stage.task, by="user")

    finish(stage, "two")
    closed = stage.begin(close())
    assert isinstance(closed.exception(), Refused)
    finish(stage, "three")
    again = stage.begin(close())
    stage.settle_down()
    if again.exception() is not None:  # too early
        stage.do(close())
    ended = stage.service.tasks.join(stage.task)
    assert (ended.outcome, ended.details.get("not_started")) == ("succeeded", {})


def test_wait_all_waits_for_steps_that_have_not_started(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def isolation_missing(runtime: FakeRuntime, behind: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(FakeRuntime, "isolation_missing", isolation_missing)
    begin_in_turn(stage)
    waiting = stage.begin(stage.service.delivery.wait_all(stage.task, timeout=SECONDS))
    for name in ("two", "three"):
        assert not waiting.done()
        finish(stage, name)
        stage.settle_down()
    assert waiting.done() and len(stage.subagents()) == 2


def begin_in_turn(stage: Stage) -> None:
    """Start a plan whose second step depends on the first."""
    terms: dict[str, Any] = {"command": ("true",), "integration": "none"}
    two = PlanStep(id="two", title="two", **terms)
    three = PlanStep(id="three", title="three", depends_on=("two",), **terms)
    plan = Plan(goal="both", steps=(two, three))
    request = RunRequest(
        plan=plan, text="", document={}, folders=(), config=NewConfig(), task_config=TaskConfig()
    )
    stage.task = stage.do(stage.service.plans.start(request)).id


def finish(stage: Stage, name: str) -> None:
    """Let the subagent finish its work."""
    stage.machine.leave(name, final_answer="42")
    stage.machine.end(name, exited(0))
