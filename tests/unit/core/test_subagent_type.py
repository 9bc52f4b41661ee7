"""Which types a parent is shown and may request."""

from __future__ import annotations

import pytest

from retinue.core.errors import BadInput
from retinue.core.subagent_type import BrokenType, Catalogue, SubagentType


def kind(name: str, built_in: bool = True) -> SubagentType:
    return SubagentType(name=name, description="d", instructions="i", built_in=built_in)


SHIPPED = tuple(map(kind, ("explorer", "researcher", "evaluator", "novelty")))
WHOLE = Catalogue(types=(*SHIPPED, kind("reasoner", built_in=False)))
TORN = Catalogue(
    types=SHIPPED[1:],
    broken=(
        BrokenType(
            name="explorer", source="x/SUBAGENT.md", code="unknown_key", problem="x/SUBAGENT.md: k"
        ),
    ),
)


def names(catalogue: Catalogue, configured: list[str] | None) -> list[str]:
    return [each.name for each in catalogue.list_active(configured)[0]]


@pytest.mark.requirement("R193", "R198")
def test_without_a_list_the_core_types_are_active_and_novelty_is_not() -> None:
    assert WHOLE.list_active(None) == (SHIPPED[:3], ())


def test_a_list_selects_the_active_types_in_its_order_each_once() -> None:
    assert names(WHOLE, ["novelty", "reasoner", "explorer", "novelty"]) == [
        "novelty",
        "reasoner",
        "explorer",
    ]


def test_an_empty_list_leaves_no_type_and_nothing_to_warn_about() -> None:
    assert WHOLE.list_active([]) == ((), ())


@pytest.mark.requirement("R196")
def test_an_unknown_name_in_the_list_is_a_warning_and_the_others_stay() -> None:
    shown, warnings = WHOLE.list_active(["explorer", "explroer"])
    assert [each.name for each in shown] == ["explorer"]
    assert warnings == (
        "there is no subagent type 'explroer'; available:"
        " explorer, researcher, evaluator, novelty, reasoner",
    )


def test_a_broken_type_is_left_out_of_the_active_ones_with_its_path() -> None:
    shown, warnings = TORN.list_active(None)
    assert [each.name for each in shown] == ["researcher", "evaluator"]
    assert warnings == ("a subagent type is left out: x/SUBAGENT.md: k",)


def test_a_known_type_is_found_by_its_name() -> None:
    assert WHOLE.require("novelty") is SHIPPED[3]


@pytest.mark.parametrize("name", ["reviewer", "Explorer", "", "../explorer", "x\x1b[2J"])
def test_an_unknown_type_is_refused_with_the_available_names(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        WHOLE.require(name)
    assert refused.value.code == "unknown_type"
    assert refused.value.message.endswith(
        "available: explorer, researcher, evaluator, novelty, reasoner"
    )
    assert refused.value.message.isprintable()


@pytest.mark.requirement("R195")
def test_an_inactive_type_is_refused_as_inactive() -> None:
    with pytest.raises(BadInput, match="novelty is not active; available: explorer") as refused:
        WHOLE.narrow(["explorer"]).require("novelty")
    assert "subagent_types" in refused.value.hint


def test_a_request_for_a_broken_type_fails_with_its_problem() -> None:
    with pytest.raises(BadInput) as refused:
        TORN.require("explorer")
    assert (refused.value.code, refused.value.message) == ("unknown_key", "x/SUBAGENT.md: k")


def test_only_listed_types_may_be_asked_for() -> None:
    narrow = WHOLE.narrow(["explorer"])
    assert narrow.names == ("explorer",)
    with pytest.raises(BadInput) as refused:
        narrow.require("researcher")
    assert refused.value.message.endswith("available: explorer")


def test_without_a_list_a_projects_own_types_may_be_asked_for_and_novelty_not() -> None:
    assert WHOLE.narrow(None).names == ("explorer", "researcher", "evaluator", "reasoner")


def test_with_an_empty_list_no_type_may_be_asked_for() -> None:
    with pytest.raises(BadInput) as refused:
        WHOLE.narrow([]).require("explorer")
    assert refused.value.message.endswith("available: none")


def test_a_broken_type_is_reported_only_if_it_may_be_requested() -> None:
    assert TORN.narrow(["explorer"]).broken == TORN.broken
    assert TORN.narrow(["researcher"]).broken == ()
