"""What a plan must be before anything of it starts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.errors import BadInput
from retinue.domain.plan import (
    Plan,
    PlanStep,
    foundations,
    integration_order,
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
def test_an_overlap_of_owners_that_could_work_at_once_names_both_and_their_paths() -> None:
    said = refusal(step("bio", "docs/**"), step("index", "docs/index.md"))
    assert all(word in said for word in ("bio", "index", "'docs/**'", "'docs/index.md'"))


@pytest.mark.requirement("R138")
def test_steps_that_are_not_joined_are_held_to_what_the_plan_says_of_them_too() -> None:
    loose = [step(name, "a.md", integration="none") for name in ("one", "two")]
    assert "one and two could work at the same time" in refusal(*loose)
    assert "one and two" in refusal(loose[0], step("two", "*.md"))


def test_steps_that_are_copied_own_their_paths_each_in_a_place_of_its_own() -> None:
    require_sound_plan(plan(*(step(name, "a.md", integration="copy") for name in ("one", "two"))))


def test_owners_of_the_same_path_are_fine_when_one_waits_for_the_other() -> None:
    first, second = step("bio", "a"), step("mid", "b", after=("bio",))
    require_sound_plan(plan(first, second, step("index", "a", after=("mid",))))


def test_a_step_without_owned_paths_overlaps_with_nobody_because_it_works_alone() -> None:
    require_sound_plan(plan(step("one"), step("two", "a"), step("three")))


@pytest.mark.requirement("R138")
@pytest.mark.parametrize(
    "places", [("out", "out/"), ("out", "out/a"), ("a/b/c", "a/b"), ("./x", "x")]
)
def test_two_steps_are_not_copied_to_one_place(places: tuple[str, str]) -> None:
    steps = [
        step(name, integration="copy", destination=place)
        for name, place in zip(("one", "two"), places, strict=True)
    ]
    assert "one and two are copied to the same place" in refusal(*steps)


def test_a_copy_into_what_an_earlier_one_left_is_fine() -> None:
    first = step("one", integration="copy", destination="out")
    require_sound_plan(
        plan(first, step("two", integration="copy", destination="out/a", after=("one",)))
    )


def test_a_circle_of_dependencies_is_named() -> None:
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
def test_what_cannot_be_carried_out_is_refused_with_a_sentence(
    steps: list[PlanStep], words: str
) -> None:
    assert words in refusal(*steps)


def test_a_step_to_be_merged_needs_a_repository() -> None:
    with pytest.raises(BadInput):
        require_sound_plan(Plan(goal="it", steps=(step("a"),)))


@pytest.mark.requirement("R139")
def test_the_order_is_as_written_but_for_what_must_come_first() -> None:
    order = integration_order(plan(step("a", after=("c",)), step("b"), step("c"), step("d")))
    assert [each.id for each in order] == ["b", "c", "a", "d"]


def test_whoever_may_change_anything_waits_for_all_before_and_holds_up_all_after() -> None:
    order = integration_order(plan(step("a", "x"), step("any"), step("b", "y"), step("c", "z")))
    before = foundations(order)
    assert before == {"a": set(), "any": {"a"}, "b": {"a", "any"}, "c": {"a", "any"}}


def test_output_that_is_not_merged_holds_up_nobody() -> None:
    order = integration_order(plan(step("a", integration="none"), step("b"), step("c", "x")))
    assert foundations(order) == {"a": set(), "b": set(), "c": {"b"}}


@given(edges=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_nothing_is_joined_before_what_it_depends_on(edges: set[tuple[int, int]]) -> None:
    needs = {n: tuple(f"s{a}" for a, b in edges if b == n and a < n) for n in range(8)}
    steps = [step(f"s{n}", f"p{n}", after=needs[n]) for n in reversed(range(8))]
    seen: set[str] = set()
    for each in integration_order(plan(*steps)):
        assert seen.issuperset(each.depends_on)
        seen.add(each.id)
    assert len(seen) == 8
