"""Progress of a plan: what can start, what can be joined, what never will."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retinue.core.ids import SubagentId
from retinue.core.lifecycle import Standing, State
from retinue.core.plan import Plan, PlanStep
from retinue.core.plan_progress import PlanProgress
from support.values import SUBAGENT


def step(name: str, after: tuple[str, ...] = (), **more: Any) -> PlanStep:
    return PlanStep(id=name, title=name, depends_on=after, **({"owns": (name,)} | more))


def course(*steps: PlanStep, on_failure: str = "stop") -> PlanProgress:
    plan = Plan(goal="it", repository=".", steps=steps, on_failure=on_failure)
    return PlanProgress(plan=plan, base="base")


def standing(
    course: PlanProgress, name: str, state: State, final: str = "", blocked: bool = False
) -> None:
    known = replace(
        SUBAGENT,
        id=SubagentId(name),
        step_idx=course.place[name],
        standing=Standing(state=state, final_status=final, blocked=blocked),
    )
    course.active.pop(name, None)
    (course.closed if state is State.CLOSED else course.active)[name] = known


def joined(course: PlanProgress, name: str, commit: str = "") -> None:
    standing(course, name, State.CLOSED, "completed")
    if commit:
        course.commits[name] = commit


def startable(course: PlanProgress) -> list[str]:
    return [each.id for each in course.list_startable()]


def test_a_step_starts_once_all_it_depends_on_is_joined() -> None:
    run = course(step("a"), step("b"), step("c", ("a", "b")))
    assert startable(run) == ["a", "b"]
    joined(run, "a", "1")
    standing(run, "b", State.WAITING_FOR_MERGE)
    assert startable(run) == []
    joined(run, "b", "2")
    assert startable(run) == ["c"]


@pytest.mark.requirement("R139")
def test_a_step_is_joined_only_after_those_before_it() -> None:
    run = course(step("a"), step("b"), step("c"))
    standing(run, "a", State.RUNNING)
    standing(run, "b", State.WAITING_FOR_MERGE)
    assert run.find_next_to_join() is None
    standing(run, "a", State.WAITING_FOR_MERGE)
    first = run.find_next_to_join()
    assert first is not None and first.id == "a"
    standing(run, "a", State.CLOSED, "failed")
    second = run.find_next_to_join()
    assert second is not None and second.id == "b"
    assert list(run.list_unstartable()) == ["c"]


@pytest.mark.requirement("R77")
def test_the_base_of_a_step_does_not_depend_on_timing() -> None:
    run = course(step("a"), step("b"), step("slow"), step("d", ("b",)))
    joined(run, "a", "1")
    joined(run, "b", "2")
    assert run.find_base(run.order[3]) == "2"
    joined(run, "slow", "3")
    assert run.find_base(run.order[3]) == "2"
    assert run.find_base(run.order[0]) == "base"


def test_a_step_without_changes_passes_on_its_base() -> None:
    run = course(step("a"), step("b", ("a",)), step("c", ("b",)))
    joined(run, "a", "1")
    joined(run, "b")
    assert run.find_base(run.order[2]) == "1"


@pytest.mark.parametrize(
    ("on_failure", "never"), [("stop", ["b", "c", "d"]), ("continue", ["b", "c"])]
)
def test_after_a_failure_dependants_never_start(on_failure: str, never: list[str]) -> None:
    run = course(step("a"), step("b", ("a",)), step("c", ("b",)), step("d"), on_failure=on_failure)
    standing(run, "a", State.CLOSED, "failed")
    assert list(run.list_unstartable()) == never
    assert run.ended is (on_failure == "stop")


def test_only_a_stopping_run_closes_blocked_steps() -> None:
    run = course(step("a"), step("b"), step("c"))
    standing(run, "a", State.RUNNING, blocked=True)
    standing(run, "b", State.RUNNING)
    assert run.list_stuck() == []
    standing(run, "c", State.CLOSED, "failed")
    assert run.list_stuck() == []  # b still works
    standing(run, "b", State.WAITING_FOR_MERGE)
    assert [each.id for each in run.list_stuck()] == ["a"]


def test_a_step_that_works_alone_waits_for_all_before_it_even_failed_ones() -> None:
    run = course(step("a"), step("any", owns=()), step("c"), on_failure="continue")
    assert startable(run) == ["a"]
    standing(run, "a", State.CLOSED, "failed")
    assert startable(run) == ["any"]
    joined(run, "any", "1")
    assert startable(run) == ["c"]
    assert run.find_base(run.order[2]) == "1"
