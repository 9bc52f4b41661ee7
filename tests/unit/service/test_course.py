"""Where a run stands in its plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retinue.domain.ids import SubagentId
from retinue.domain.lifecycle import Standing, State
from retinue.domain.plan import Plan, PlanStep
from retinue.service.course import Course
from support.values import SUBAGENT


def step(name: str, after: tuple[str, ...] = (), **more: Any) -> PlanStep:
    return PlanStep(id=name, title=name, depends_on=after, **({"owns": (name,)} | more))


def course(*steps: PlanStep, on_failure: str = "stop") -> Course:
    plan = Plan(goal="it", repository=".", steps=steps, on_failure=on_failure)
    return Course(plan=plan, base="base")


def standing(
    course: Course, name: str, state: State, final: str = "", blocked: bool = False
) -> None:
    known = replace(
        SUBAGENT,
        id=SubagentId(name),
        step_idx=course.place[name],
        standing=Standing(state=state, final_status=final, blocked=blocked),
    )
    course.active.pop(name, None)
    (course.over if state is State.CLOSED else course.active)[name] = known


def joined(course: Course, name: str, commit: str = "") -> None:
    standing(course, name, State.CLOSED, "completed")
    if commit:
        course.commits[name] = commit


def startable(course: Course) -> list[str]:
    return [each.id for each in course.startable()]


def test_a_step_starts_once_all_it_depends_on_is_joined() -> None:
    run = course(step("a"), step("b"), step("c", ("a", "b")))
    assert startable(run) == ["a", "b"]
    joined(run, "a", "1")
    standing(run, "b", State.WAITING_FOR_MERGE)
    assert startable(run) == []
    joined(run, "b", "2")
    assert startable(run) == ["c"]


@pytest.mark.requirement("R139")
def test_nobody_is_joined_before_those_ahead_of_it_are_over() -> None:
    run = course(step("a"), step("b"), step("c"))
    standing(run, "a", State.RUNNING)
    standing(run, "b", State.WAITING_FOR_MERGE)
    assert run.next_to_join() is None
    standing(run, "a", State.WAITING_FOR_MERGE)
    first = run.next_to_join()
    assert first is not None and first.id == "a"
    standing(run, "a", State.CLOSED, "failed")
    second = run.next_to_join()
    assert second is not None and second.id == "b"
    assert list(run.never()) == ["c"]


@pytest.mark.requirement("R77")
def test_what_a_step_starts_from_does_not_depend_on_who_was_faster() -> None:
    run = course(step("a"), step("b"), step("slow"), step("d", ("b",)))
    joined(run, "a", "1")
    joined(run, "b", "2")
    assert run.base_of(run.order[3]) == "2"
    joined(run, "slow", "3")
    assert run.base_of(run.order[3]) == "2"
    assert run.base_of(run.order[0]) == "base"


def test_a_step_that_changed_nothing_passes_on_what_it_started_from() -> None:
    run = course(step("a"), step("b", ("a",)), step("c", ("b",)))
    joined(run, "a", "1")
    joined(run, "b")
    assert run.base_of(run.order[2]) == "1"


@pytest.mark.parametrize(
    ("on_failure", "never"), [("stop", ["b", "c", "d"]), ("continue", ["b", "c"])]
)
def test_after_a_failure_dependants_never_start(on_failure: str, never: list[str]) -> None:
    run = course(step("a"), step("b", ("a",)), step("c", ("b",)), step("d"), on_failure=on_failure)
    standing(run, "a", State.CLOSED, "failed")
    assert list(run.never()) == never
    assert run.ended is (on_failure == "stop")


def test_only_a_run_that_is_stopping_gives_up_on_those_that_ask() -> None:
    run = course(step("a"), step("b"), step("c"))
    standing(run, "a", State.RUNNING, blocked=True)
    standing(run, "b", State.RUNNING)
    assert run.stuck() == []
    standing(run, "c", State.CLOSED, "failed")
    assert run.stuck() == []  # b still works
    standing(run, "b", State.WAITING_FOR_MERGE)
    assert [each.id for each in run.stuck()] == ["a"]


def test_a_step_that_works_alone_waits_for_all_before_it_whatever_came_of_them() -> None:
    run = course(step("a"), step("any", owns=()), step("c"), on_failure="continue")
    assert startable(run) == ["a"]
    standing(run, "a", State.CLOSED, "failed")
    assert startable(run) == ["any"]
    joined(run, "any", "1")
    assert startable(run) == ["c"]
    assert run.base_of(run.order[2]) == "1"
