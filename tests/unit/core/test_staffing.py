"""Which members a subagent gets, by its type and its parent's configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.core.staffing import (
    Candidate,
    ModelBackend,
    Spawner,
    Staff,
    select_members,
)


def spawner(name: str, *subagents: str) -> Spawner:
    backend = ModelBackend(name=name, type="openai", model="m")
    sent = tuple(Candidate(id=each) for each in subagents)
    return Spawner(id=name, backend=backend, system_message=f"I am {name}", subagents=sent)


POOL = (Candidate(id="judge1"), Candidate(id="judge2"))


@pytest.mark.requirement("R153")
def test_all_backends_of_the_parent_are_inherited_by_default() -> None:
    staff = Staff(spawners=(spawner("a"), spawner("b")))
    members = select_members(staff)
    assert [each.backend.name for each in members if each.backend] == ["a", "b"]
    assert [each.id for each in members] == ["", ""]
    assert [each.system_message for each in members] == ["I am a", "I am b"]


@pytest.mark.requirement("R153", "R165")
def test_only_the_spawners_backend_is_inherited_if_configured() -> None:
    staff = Staff(spawners=(spawner("a"), spawner("b")), inherit_one=True)
    (member,) = select_members(staff, spawner="b")
    assert member.backend is not None and member.backend.name == "b"


@pytest.mark.requirement("R163")
def test_a_custom_team_does_the_work_of_a_subagent_without_a_type() -> None:
    assert select_members(Staff(spawners=(spawner("a"),), pool=POOL)) == POOL


@pytest.mark.requirement("R166")
@pytest.mark.parametrize(
    ("subagent_type", "expected"),
    [("round_evaluator", ["judge1", "judge2"]), ("explorer", ["own"]), (None, ["own"])],
)
def test_only_round_evaluators_prefer_the_pool_to_their_parents_team(
    subagent_type: str | None, expected: list[str]
) -> None:
    staff = Staff(spawners=(spawner("a", "own"),), pool=POOL)
    assert [each.id for each in select_members(staff, subagent_type)] == expected


@pytest.mark.requirement("R166")
def test_a_typed_subagent_without_a_custom_team_inherits_its_parent() -> None:
    staff = Staff(spawners=(spawner("a"), spawner("b")), pool=POOL)
    (member,) = select_members(staff, "explorer", spawner="b")
    assert member.backend is not None and member.backend.name == "b"


@pytest.mark.requirement("R167", "R168")
@pytest.mark.parametrize("types", [("builder",), ("*",)])
def test_a_type_that_opted_in_gets_the_pool(types: tuple[str, ...]) -> None:
    staff = Staff(spawners=(spawner("a", "own"),), pool=POOL, pool_types=types)
    assert select_members(staff, "builder") == POOL


@pytest.mark.requirement("R167", "R168")
def test_only_the_wildcard_covers_a_type_that_is_not_listed() -> None:
    staff = Staff(spawners=(spawner("a", "own"),), pool=POOL, pool_types=("builder",))
    assert [each.id for each in select_members(staff, "explorer")] == ["own"]


@pytest.mark.requirement("R166", "R167")
def test_an_untyped_subagent_inherits_its_parent_if_types_are_listed() -> None:
    staff = Staff(spawners=(spawner("a"), spawner("b")), pool=POOL, pool_types=("evaluator",))
    (member,) = select_members(staff, None, spawner="b")
    assert member.backend is not None and member.backend.name == "b"
    assert select_members(replace(staff, pool_types=("*",))) == POOL
    assert select_members(Staff(pool=POOL, pool_types=("evaluator",))) == POOL  # there is no other


def test_without_configuration_there_are_no_members() -> None:
    assert select_members(Staff()) == ()


@pytest.mark.requirement("R165")
@pytest.mark.parametrize("shared", [True, False])
def test_a_delegating_member_is_inherited_by_its_subagents(shared: bool) -> None:
    sent = Candidate(id="own", backend=ModelBackend(name="own", type="openai", model="m"))
    above = replace(spawner("a"), subagents=() if shared else (sent,))
    staff = Staff(spawners=(above,), pool=(sent,) if shared else (), inherit_one=True)
    (member,) = select_members(staff, spawner="own")
    assert (member.id, member.backend) == ("", sent.backend)
