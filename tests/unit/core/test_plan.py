"""Checks of a plan before any step starts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import BadInput
from retinue.core.plan import (
    Plan,
    PlanStep,
    find_prerequisites,
    order_for_integration,
    require_sound_plan,
)


def step(name: str, *owns: str, after: tuple[str, ...] = (), **more: Any) -> PlanStep:
    return PlanStep(id=name, title=name, owns=owns, depends_on=after, command=("true",), **more)


def plan(*steps: PlanStep, **more: Any) -> Plan:
    return Plan(goal="it", repository=".", steps=steps, **more)


def refusal(*steps: PlanStep, **more: Any) -> str:
    with pytest.raises(BadInput) as refused:
        require_sound_plan(plan(*steps, **more))
    assert refused.value.code == "invalid_plan"
    return refused.value.message


@pytest.mark.requirement("R138")
def test_overlapping_concurrent_steps_are_refused_with_both_paths() -> None:
    said = refusal(step("bio", "docs/**"), step("index", "docs/index.md"))
    assert all(word in said for word in ("bio", "index", "'docs/**'", "'docs/index.md'"))


@pytest.mark.requirement("R138")
def test_steps_that_are_not_joined_may_not_overlap_either() -> None:
    loose = [step(name, "a.md", integration="none") for name in ("one", "two")]
    assert "one and two could work at the same time" in refusal(*loose)
    assert "one and two" in refusal(loose[0], step("two", "*.md"))


def test_copied_steps_may_own_the_same_paths() -> None:
    require_sound_plan(plan(*(step(name, "a.md", integration="copy") for name in ("one", "two"))))


def test_dependent_steps_may_own_the_same_path() -> None:
    first, second = step("bio", "a"), step("mid", "b", after=("bio",))
    require_sound_plan(plan(first, second, step("index", "a", after=("mid",))))


def test_a_step_without_owned_paths_runs_alone() -> None:
    require_sound_plan(plan(step("one"), step("two", "a"), step("three")))


@pytest.mark.requirement("R138")
@pytest.mark.parametrize(
    "places", [("out", "out/"), ("out", "out/a"), ("a/b/c", "a/b"), ("./x", "x")]
)
def test_two_steps_cannot_be_copied_to_the_same_place(places: tuple[str, str]) -> None:
    steps = [
        step(name, integration="copy", destination=place)
        for name, place in zip(("one", "two"), places, strict=True)
    ]
    assert "one and two are copied to the same place" in refusal(*steps)


def test_a_copy_into_an_earlier_copy_is_allowed() -> None:
    first = step("one", integration="copy", destination="out")
    require_sound_plan(
        plan(first, step("two", integration="copy", destination="out/a", after=("one",)))
    )


def test_a_dependency_cycle_is_named() -> None:
    said = refusal(step("a", after=("c",)), step("b", after=("a",)), step("c", after=("b",)))
    assert "circle" in said and all(name in said for name in ("a", "b", "c"))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "1 to 1000 steps"),
        ([step("a", "x"), step("A", "y")], "two steps have the id"),
        ([step("a b")], "not a valid id"),
        ([step("a", after=("nobody",))], "which is no step"),
        ([step("a", after=("a",))], "circle"),
        ([step("a", integration="glue")], "unknown integration"),
        ([step("a", "../b")], "not a pattern"),
        ([step("a", "b", destination="out")], "destination belongs to"),
        ([step("a", "b", allow=("everything",))], "unknown allowance"),
    ],
)
def test_an_invalid_plan_is_refused_with_the_problem(steps: list[PlanStep], words: str) -> None:
    assert words in refusal(*steps)


def test_a_step_to_be_merged_needs_a_repository() -> None:
    with pytest.raises(BadInput):
        require_sound_plan(Plan(goal="it", steps=(step("a"),)))


@pytest.mark.requirement("R139")
def test_the_order_is_as_written_except_for_dependencies() -> None:
    order = order_for_integration(plan(step("a", after=("c",)), step("b"), step("c"), step("d")))
    assert [each.id for each in order] == ["b", "c", "a", "d"]


def test_a_step_that_may_change_anything_runs_between_all_others() -> None:
    order = order_for_integration(plan(step("a", "x"), step("any"), step("b", "y"), step("c", "z")))
    before = find_prerequisites(order)
    assert before == {"a": set(), "any": {"a"}, "b": {"a", "any"}, "c": {"a", "any"}}


def test_unmerged_output_delays_no_step() -> None:
    order = order_for_integration(plan(step("a", integration="none"), step("b"), step("c", "x")))
    assert find_prerequisites(order) == {"a": set(), "b": set(), "c": {"b"}}


@given(edges=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_no_step_is_joined_before_its_dependencies(edges: set[tuple[int, int]]) -> None:
    needs = {n: tuple(f"s{a}" for a, b in edges if b == n and a < n) for n in range(8)}
    steps = [step(f"s{n}", f"p{n}", after=needs[n]) for n in reversed(range(8))]
    seen: set[str] = set()
    for each in order_for_integration(plan(*steps)):
        assert seen.issuperset(each.depends_on)
        seen.add(each.id)
    assert len(seen) == 8
