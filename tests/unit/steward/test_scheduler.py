"""The supervisor: races that real time would hardly hit, full disks, lineages, time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from retinue.core.errors import LimitExceeded, Refused, StorageFailed
from retinue.core.events import SUBAGENT_CLOSED, Recorded
from retinue.core.ids import TaskId
from retinue.core.join_result import JoinOutcome
from retinue.core.lifecycle import State
from retinue.core.result import Declared, Ending, EndKind, FinalDeclaration, Result, Status
from retinue.core.subagent import Subagent
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.steward.scheduler import LAUNCHES
from support.fakes import exited
from support.stage import Crash, NoJoining, Stage, brief

DEADLINE = Ending(kind=EndKind.DEADLINE, signals_sent=("SIGINT",), duration_ms=9)
STOPPED = Ending(kind=EndKind.STOPPED, signals_sent=("SIGINT",), duration_ms=5)
ASKS = FinalDeclaration(status=Declared.BLOCKED, questions=("Which one?",))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "retinue.db")
    yield stage
    stage.close()


def block(stage: Stage, name: str) -> None:
    stage.machine.leave(name, declaration=ASKS)
    stage.machine.end(name, exited(0))
    stage.settle_down()


def finish(stage: Stage, name: str, ending: Ending, answer: str | None = "42") -> None:
    if answer is not None:
        stage.machine.leave(name, final_answer=answer)
    stage.machine.end(name, ending)
    stage.settle_down()


def answer(stage: Stage, name: str, message: str = "the red one") -> None:
    stage.begin(stage.service.spawning.continue_(stage.task, name, message, by="user"))


class TestCallers:
    def test_a_blocking_call_whose_caller_disconnects_during_launch_leaves_no_subagent_running(
        self, stage: Stage
    ) -> None:
        stage.machine.slow_launches = True
        request = stage.request(brief("bio"))
        asked = stage.begin(stage.attended(request))
        asked.cancel()
        stage.settle_down()
        stage.machine.proceed()
        stage.settle_down()
        process = stage.machine.living("bio")
        assert process is None or process.stop_asked
        if process is not None:
            stage.machine.end("bio", STOPPED)
            stage.settle_down()
        assert stage.subagent("bio").standing.status == "cancelled"

    def test_a_background_call_whose_caller_disconnects_during_launch_runs_on(
        self, stage: Stage
    ) -> None:
        stage.machine.slow_launches = True
        asked = stage.begin(stage.spawn(brief("bio")))
        asked.cancel()
        stage.settle_down()
        stage.machine.proceed()
        stage.settle_down()
        assert stage.subagent("bio").standing.status == "running"

    def test_two_cancels_of_one_subagent_both_succeed_with_one_request(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio")))
        verbs = stage.service.subagents
        asked = [
            stage.begin(verbs.cancel(stage.task, "bio", by="user", reason=f"r{n}"))
            for n in range(2)
        ]
        stage.machine.end("bio", STOPPED)
        stage.settle_down()
        assert [each.result().status for each in asked] == [Status.CANCELLED] * 2
        assert stage.types("bio").count("cancel_requested") == 1
        assert stage.types("bio").count("cancelled") == 1

    def test_the_first_of_two_task_cancels_sets_the_recorded_reason(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio")))
        block(stage, "bio")
        cancel = stage.service.tasks.cancel
        both = [
            stage.loop.create_task(cancel(stage.task, by="user", reason=reason))
            for reason in ("first", "second")
        ]
        stage.settle_down()
        assert [each.result() for each in both] == [["bio"], []]
        told = stage.service.subagents.get_result(stage.task, "bio")
        assert told.error == "cancelled by user: first"
        assert stage.machine.published["bio"] == told

    def test_a_late_cancel_is_refused_and_the_answer_stands(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio")))
        asked = stage.begin(stage.service.subagents.cancel(stage.task, "bio", by="user", reason=""))
        finish(stage, "bio", exited(0))
        with pytest.raises(Refused) as refused:
            asked.result()
        assert refused.value.code == "already_completed"
        assert "cancelled" not in stage.types("bio")
        assert stage.service.subagents.get_result(stage.task, "bio").answer == "42"


async def cancel_it(stage: Stage, name: str) -> None:
    await stage.service.subagents.cancel(stage.task, name, by="user", reason="")


async def cancel_all(stage: Stage, name: str) -> None:
    await stage.service.tasks.cancel(stage.task, by="user", reason="")


async def tell(stage: Stage, name: str) -> None:
    stage.service.supervisor.send(stage.subagent(name), "look at this, too", by="user")


@pytest.mark.parametrize("act", [cancel_it, cancel_all, tell])
def test_a_cancel_during_an_end_is_never_recorded_after_it(
    stage: Stage, act: Callable[[Stage, str], Coroutine[None, None, None]]
) -> None:
    for turns in range(12):
        name = f"bio-{turns}"
        stage.do(stage.spawn(brief(name, retries=0)))
        stage.machine.end(name, exited(3))
        for _ in range(turns):
            stage.loop.run_until_complete(asyncio.sleep(0))
        refused = stage.begin(act(stage, name)).exception()
        assert refused is None or isinstance(refused, Refused)
        assert stage.types(name)[-1] == "subagent_closed"


@pytest.mark.parametrize("act", [cancel_it, cancel_all])
@pytest.mark.parametrize("turns", range(12))
def test_a_cancel_at_any_moment_of_blocking_takes_effect(
    stage: Stage, act: Callable[[Stage, str], Coroutine[None, None, None]], turns: int
) -> None:
    asked = begin_while_it_asks(stage, turns, lambda: act(stage, "bio"))
    assert asked.exception() is None
    assert stage.subagent("bio").standing.close_reason == "cancelled_by_user"


@pytest.mark.parametrize("turns", range(12))
def test_an_answer_at_any_moment_of_blocking_starts_a_watched_attempt(
    stage: Stage, turns: int
) -> None:
    go_on = partial(stage.service.spawning.continue_, stage.task, "bio", "the red one", by="user")
    if begin_while_it_asks(stage, turns, go_on).exception() is not None:  # too early
        stage.do(go_on())
    cancelled = stage.begin(cancel_it(stage, "bio"))
    assert not cancelled.done() and stage.machine.living("bio") is not None
    finish(stage, "bio", STOPPED)
    assert cancelled.exception() is None and not stage.complaints
    stage.limit(1)
    stage.do(stage.spawn(brief("docs")))


def begin_while_it_asks(
    stage: Stage, turns: int, act: Callable[[], Coroutine[None, None, object]]
) -> asyncio.Task[object]:
    """Run an action some loop iterations after the process of a blocking subagent has ended."""

    async def later() -> object:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await act()

    stage.do(stage.spawn(brief("bio")))
    stage.machine.leave("bio", declaration=ASKS)
    stage.machine.end("bio", exited(0))
    return stage.begin(later())


def test_concurrent_launches_are_limited(stage: Stage) -> None:
    names = [f"s{number}" for number in range(LAUNCHES + 5)]
    stage.limit(len(names))
    stage.machine.slow_launches = True
    stage.armed["workspace_made"] = LAUNCHES + 1  # where the first that is too much would crash
    stage.begin(stage.spawn(*map(brief, names)))
    stage.armed.clear()
    stage.machine.proceed()
    stage.settle_down()
    assert {stage.subagent(name).standing.status for name in names} == {"running"}


class TestBlocked:
    def test_a_subagent_that_blocks_after_a_cancel_request_is_cancelled(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio")))
        asked = stage.begin(stage.service.subagents.cancel(stage.task, "bio", by="user", reason=""))
        block(stage, "bio")
        assert asked.result().status is Status.CANCELLED
        assert stage.subagent("bio").standing.close_reason == "cancelled_by_user"
        assert "blocked" not in stage.types("bio")

    def test_an_answered_subagent_holds_its_slot_before_its_process_is_up(
        self, stage: Stage
    ) -> None:
        stage.limit(1)
        stage.do(stage.spawn(brief("bio")))
        block(stage, "bio")
        stage.machine.slow_launches = True
        answer(stage, "bio")
        with pytest.raises(LimitExceeded):
            stage.do(stage.spawn(brief("docs")))

    @pytest.mark.parametrize("point", ["committed", "workspace_made", "launched", "running"])
    def test_an_answer_survives_a_crash_and_reaches_the_next_attempt(
        self, stage: Stage, point: str
    ) -> None:
        stage.do(stage.spawn(brief("bio")))
        block(stage, "bio")
        stage.armed[point] = 1
        with pytest.raises(Crash):
            answer(stage, "bio")
        process = stage.machine.living("bio")
        assert process is not None and process.released
        assert "the red one" in stage.machine.words["bio"]

    def test_an_answer_reaches_a_retry_after_a_crash(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio", retries=3)))
        block(stage, "bio")
        answer(stage, "bio")
        stage.crash()
        stage.machine.end("bio", exited(1))
        stage.settle_down()
        assert "the red one" in stage.machine.words["bio"]

    def test_cancelling_a_blocked_subagent_closes_its_gate(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio")))
        block(stage, "bio")
        stage.do(stage.service.subagents.cancel(stage.task, "bio", by="user", reason="no"))
        assert [gate.state for gate in stage.records.list_gates(stage.task)] == ["rejected"]


class TestClosing:
    @pytest.mark.requirement("R136")
    def test_a_late_close_after_a_timeout_names_the_timeout(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio", close_on_completion=False)))
        finish(stage, "bio", DEADLINE, answer=None)
        assert stage.subagent("bio").standing.state is State.FAILED
        stage.do(stage.service.subagents.close(stage.task, "bio", by="user"))
        assert stage.subagent("bio").standing.close_reason == "timeout"

    def test_a_late_close_after_a_lost_child_names_the_loss(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio", close_on_completion=False)))
        stage.machine.end("bio", Ending(kind=EndKind.LOST), record=False)
        stage.crash()
        stage.do(stage.service.subagents.close(stage.task, "bio", by="user"))
        assert stage.subagent("bio").standing.close_reason == "supervisor_lost"

    @pytest.mark.parametrize("whole", [True, False])
    def test_close_waits_for_a_join_under_way(self, tmp_path: Path, whole: bool) -> None:
        joining = SlowJoining()
        stage = Stage(tmp_path / "retinue.db", joining=joining)
        stage.do(stage.spawn(brief("bio", integration="copy"), brief("geo", integration="copy")))
        for name in ("bio", "geo"):
            finish(stage, name, exited(0))
        joined = stage.begin(stage.service.plans.join_output(stage.task, "bio"))
        assert joining.waiting and stage.subagent("bio").standing.state is State.WAITING_FOR_MERGE
        closed: asyncio.Task[object] = stage.begin(
            stage.service.tasks.close(stage.task, by="user")
            if whole
            else stage.service.subagents.close(stage.task, "bio", by="user")
        )
        assert not closed.done() and not joining.shown
        joining.waiting[0].set_result(None)
        stage.settle_down()
        assert joined.done() and closed.done()
        assert joined.result().standing.close_reason == "copied"
        assert joining.shown == (["geo"] if whole else [])
        stage.close()


class SlowJoining(NoJoining):
    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.shown: list[str] = []

    async def make_whole(self, subagent: Subagent) -> None:
        self.shown.append(subagent.id)

    async def copy(self, subagent: Subagent) -> JoinOutcome:
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]
        return JoinOutcome(reason="copied")

    def find_interrupted(self, subagent: Subagent) -> None:
        """Do nothing."""

    def publish(self, subagent: Subagent, result: Result) -> None:
        """Do nothing."""


class TestSuccessors:
    def test_a_successor_gets_a_free_id(self, stage: Stage) -> None:
        for name in ("bio", "bio-3"):
            stage.do(stage.spawn(brief(name, retries=0)))
            finish(stage, name, exited(0))
        answer(stage, "bio", "more")
        assert len(stage.subagents()) == 3
        assert stage.subagents()[-1].contract.continues == "bio"

    @pytest.mark.parametrize("named", ["first", "newest"])
    def test_a_second_continue_goes_on_from_the_newest_successor(
        self, stage: Stage, named: str
    ) -> None:
        stage.do(stage.spawn(brief("bio"), brief("bio-x")))
        for name in ("bio", "bio-x"):
            finish(stage, name, exited(0))
        answer(stage, "bio", "then two")
        second = stage.subagents()[-1]
        finish(stage, second.id, exited(0))
        answer(stage, "bio" if named == "first" else second.id, "then three")
        third = stage.subagents()[-1].contract
        assert (third.continues, third.resumes) == ("bio", second.id)
        assert third.step.description.endswith("\n\nthen two\n\nthen three")

    def test_long_ids_with_the_same_prefix_have_separate_lineages(self, stage: Stage) -> None:
        one, other = "x" * 56 + "-one", "x" * 56 + "-other"
        stage.do(stage.spawn(brief(one), brief(other)))
        for name in (one, other):
            finish(stage, name, exited(0))
        for name in (one, other, one):
            answer(stage, name, f"more of {name[-5:]}")
            finish(stage, stage.subagents()[-1].id, exited(0))
        last = stage.subagents()[-1].contract
        assert last.continues == one
        assert "other" not in last.step.description

    def test_the_first_id_of_a_lineage_answers_a_blocked_successor(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio")))
        finish(stage, "bio", exited(0))
        answer(stage, "bio", "more")
        successor = stage.subagents()[-1].id
        block(stage, successor)
        answer(stage, "bio", "the red one")
        assert len(stage.subagents()) == 2
        assert stage.subagent(successor).standing.in_attempt
        finish(stage, successor, exited(0))
        answer(stage, "bio", "and again")
        told = stage.subagents()[-1].contract.step.description
        assert "the red one" in told and told.endswith("and again")

    def test_two_subagents_never_work_in_one_workspace(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio")))
        finish(stage, "bio", exited(0))
        answer(stage, "bio", "more")
        successor = stage.subagents()[-1]
        with pytest.raises(Refused) as refused:
            stage.do(stage.service.spawning.continue_(stage.task, "bio", "and more", by="user"))
        assert successor.id in refused.value.message
        finish(stage, successor.id, exited(0))
        answer(stage, "bio", "and more")
        assert len(stage.subagents()) == 3

    def test_a_workspace_that_waits_to_be_joined_takes_no_successor(self, tmp_path: Path) -> None:
        stage = Stage(tmp_path / "retinue.db", joining=SlowJoining())
        stage.do(stage.spawn(brief("bio", integration="copy")))
        finish(stage, "bio", exited(0))
        stage.do(stage.service.subagents.close(stage.task, "bio", by="user"))
        answer(stage, "bio", "more")
        successor = stage.subagents()[-1]
        finish(stage, successor.id, exited(0))
        with pytest.raises(Refused) as refused:
            stage.do(stage.service.spawning.continue_(stage.task, "bio", "and more", by="user"))
        assert refused.value.code == "workspace_busy" and successor.id in refused.value.message
        stage.do(stage.service.subagents.close(stage.task, successor.id, by="user"))
        answer(stage, "bio", "and more")
        assert len(stage.subagents()) == 3
        stage.close()


class TestStarting:
    def test_a_supervisor_starts_despite_a_broken_task_file(self, stage: Stage) -> None:
        stage.limit(1)
        stage.do(stage.spawn(brief("bio"), brief("docs"), queue=True))
        stage.tasks.broken = "task.yaml: line 3: no"
        finish(stage, "bio", exited(0))
        stage.crash()
        assert stage.subagent("bio").standing.status == "completed"
        assert stage.subagent("docs").standing.status == "pending"
        assert any("line 3" in text for text in stage.complaints)
        stage.tasks.broken = ""
        stage.crash()
        assert stage.subagent("docs").standing.status == "running"

    def test_a_supervisor_starts_despite_a_full_disk(self, stage: Stage) -> None:
        stage.limit(1)
        stage.machine.slow_launches = True
        stage.begin(stage.spawn(brief("bio")))
        stage.begin(stage.service.subagents.cancel(stage.task, "bio", by="user", reason="no"))
        stage.machine.disk_full = True
        stage.crash()
        assert stage.subagent("bio").standing.status == "pending"
        stage.machine.disk_full = False
        stage.crash()
        assert stage.subagent("bio").standing.status == "cancelled"

    def test_cancelling_a_queued_subagent_reports_a_disk_error(self, stage: Stage) -> None:
        stage.limit(1)
        stage.do(stage.spawn(brief("bio"), brief("geo"), queue=True))
        stage.machine.disk_full = True
        with pytest.raises(StorageFailed, match="geo cannot be ended yet"):
            stage.do(stage.service.subagents.cancel(stage.task, "geo", by="user", reason="no"))
        stage.machine.disk_full = False
        stage.do(stage.service.subagents.cancel(stage.task, "geo", by="user", reason="no"))

    def test_results_are_recorded_once_the_disk_allows(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio")))
        stage.machine.disk_full = True
        finish(stage, "bio", exited(0))
        assert stage.subagent("bio").standing.status == "running"
        stage.machine.disk_full = False
        stage.advance(10.0)
        assert stage.service.subagents.get_result(stage.task, "bio").answer == "42"

    def test_orphans_are_cancelled_once_the_disk_allows(self, stage: Stage) -> None:
        def fill(task: TaskId, recorded: Sequence[Recorded]) -> None:
            ended = {each.event.subagent for each in recorded if each.event.type == SUBAGENT_CLOSED}
            stage.machine.disk_full = stage.machine.disk_full or "bio" in ended

        stage.limit(1)
        stage.tasks.current = replace(stage.tasks.current, admission="queue")
        (parent,) = stage.do(stage.spawn(brief("bio", delegation_depth=1)))
        stage.do(stage.spawned(replace(stage.request(brief("below")), parent=parent)))
        stage.journal.subscribe(fill)
        finish(stage, "bio", exited(0))
        assert stage.subagent("below").standing.status == "pending"
        stage.machine.disk_full = False
        stage.advance(10.0)
        assert stage.subagent("below").standing.close_reason == "cancelled_by_parent"
        assert "started" not in stage.types("below")

    @pytest.mark.requirement("R115")
    def test_a_child_that_misses_its_own_deadline_is_killed(self, stage: Stage) -> None:
        stage.do(stage.spawn(brief("bio", timeout_seconds=1.0, retries=0)))
        stage.advance(1.0 + sum(TaskConfig().graces_ms) / 1000)
        assert stage.machine.living("bio") is not None
        stage.advance(2.0)
        assert stage.service.subagents.get_result(stage.task, "bio").status is Status.TIMEOUT
        assert stage.subagent("bio").standing.close_reason == "timeout"

    @pytest.mark.parametrize("asked", [1, 2])
    def test_a_child_that_ignores_stop_is_killed_after_its_graces(
        self, stage: Stage, asked: int
    ) -> None:
        stage.do(stage.spawn(brief("bio", timeout_seconds=300, retries=0)))
        verbs = stage.service.subagents
        for _ in range(asked):  # a second time gives it no more time
            asking = stage.begin(verbs.cancel(stage.task, "bio", by="user", reason=""))
            stage.advance(sum(TaskConfig().graces_ms) / 1000 / asked)
        assert stage.machine.living("bio") is not None
        stage.advance(2.0)
        assert asking.result().status is Status.CANCELLED
        assert stage.subagent("bio").standing.close_reason == "cancelled_by_user"

    def test_an_adopted_child_that_ignores_stop_is_killed_after_its_graces(
        self, stage: Stage
    ) -> None:
        stage.do(stage.spawn(brief("bio", timeout_seconds=300, retries=0)))
        stage.begin(stage.service.subagents.cancel(stage.task, "bio", by="user", reason=""))
        stage.crash()
        stage.advance(sum(TaskConfig().graces_ms) / 1000 + 2.0)
        assert stage.subagent("bio").standing.status == "cancelled"


class TestLists:
    def test_all_open_and_the_newest_closed_subagents_are_listed(self, stage: Stage) -> None:
        names = ["one", "two", "three", "four"]
        stage.limit(8)
        stage.do(stage.spawn(*(brief(name) for name in names)))
        for name in names[1:]:
            finish(stage, name, exited(0))
        roll = stage.service.subagents.list_subagents(stage.task, limit=2)
        assert [each.id for each in roll.subagents] == ["one", "three", "four"]
        assert roll.total == 4
        for limit in (3, 4, None):
            roll = stage.service.subagents.list_subagents(stage.task, limit=limit)
            assert [each.id for each in roll.subagents] == names
            assert roll.total == 4
        assert stage.service.subagents.list_subagents(stage.task, limit=0).total == 4

    def test_subagents_are_counted_per_task(self, stage: Stage) -> None:
        stage.limit(8)
        stage.do(stage.spawn(brief("one")))
        assert stage.records.count(stage.task) == 1
        other = stage.service.tasks.create(title="other", config=NewConfig())
        assert stage.records.count(other.id) == 0
        stage.do(stage.spawn(brief("two"), brief("three")))
        assert stage.records.count(stage.task) == 3
        assert stage.records.count(other.id) == 0
