"""Which members a subagent gets, by its type and its parent's configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.domain.staffing import Candidate, ModelBackend, Spawner, Staff, members_for


def spawner(name: str, *subagents: str) -> Spawner:
    backend = ModelBackend(name=name, type="openai", model="m")
    sent = tuple(Candidate(id=each) for each in subagents)
    return Spawner(id=name, backend=backend, system_message=f"I am {name}", subagents=sent)


POOL = (Candidate(id="judge1"), Candidate(id="judge2"))


@pytest.mark.requirement("R153")
def test_all_of_the_parents_backends_are_inherited_when_nothing_else_is_said() -> None:
    staff = Staff(spawners=(spawner("a"), spawner("b")))
    members = members_for(staff)
    assert [each.backend.name for each in members if each.backend] == ["a", "b"]
    assert [each.id for each in members] == ["", ""]
    assert [each.system_message for each in members] == ["I am a", "I am b"]


@pytest.mark.requirement("R153", "R165")
def test_only_the_spawning_ones_backend_is_inherited_where_that_is_configured() -> None:
    staff = Staff(spawners=(spawner("a"), spawner("b")), inherit_one=True)
    (member,) = members_for(staff, spawner="b")
    assert member.backend is not None and member.backend.name == "b"


@pytest.mark.requirement("R163")
def test_a_custom_team_does_the_work_of_a_subagent_without_a_type() -> None:
    assert members_for(Staff(spawners=(spawner("a"),), pool=POOL)) == POOL


@pytest.mark.requirement("R166")
@pytest.mark.parametrize(
    ("subagent_type", "expected"),
    [("round_evaluator", ["judge1", "judge2"]), ("explorer", ["own"]), (None, ["own"])],
)
def test_the_pool_is_for_round_evaluators_and_others_prefer_their_parents_own(
    subagent_type: str | None, expected: list[str]
) -> None:
    staff = Staff(spawners=(spawner("a", "own"),), pool=POOL)
    assert [each.id for each in members_for(staff, subagent_type)] == expected


@pytest.mark.requirement("R166")
def test_a_typed_subagent_without_its_parents_own_is_staffed_like_its_parent() -> None:
    staff = Staff(spawners=(spawner("a"), spawner("b")), pool=POOL)
    (member,) = members_for(staff, "explorer", spawner="b")
    assert member.backend is not None and member.backend.name == "b"


@pytest.mark.requirement("R167", "R168")
@pytest.mark.parametrize("types", [("builder",), ("*",)])
def test_a_type_that_opted_in_gets_the_pool(types: tuple[str, ...]) -> None:
    staff = Staff(spawners=(spawner("a", "own"),), pool=POOL, pool_types=types)
    assert members_for(staff, "builder") == POOL


@pytest.mark.requirement("R167", "R168")
def test_only_the_wildcard_covers_a_type_that_is_not_listed() -> None:
    staff = Staff(spawners=(spawner("a", "own"),), pool=POOL, pool_types=("builder",))
    assert [each.id for each in members_for(staff, "explorer")] == ["own"]


def test_nobody_configured_is_nobody_sent() -> None:
    assert members_for(Staff()) == ()


@pytest.mark.requirement("R165")
@pytest.mark.parametrize("shared", [True, False])
def test_one_that_was_sent_and_delegates_in_its_turn_is_inherited_itself(shared: bool) -> None:
    sent = Candidate(id="own", backend=ModelBackend(name="own", type="openai", model="m"))
    above = replace(spawner("a"), subagents=() if shared else (sent,))
    staff = Staff(spawners=(above,), pool=(sent,) if shared else (), inherit_one=True)
    (member,) = members_for(staff, spawner="own")
    assert (member.id, member.backend) == ("", sent.backend)
