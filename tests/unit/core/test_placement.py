"""Which node runs a subagent, and what is said if none can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.core.errors import Refused
from retinue.core.placement import PROTOCOL, NodeFacts, Placement, choose_node, require_node


def make_node(
    name: str, *, busy: int = 0, speaks: tuple[int, int] = (PROTOCOL, PROTOCOL)
) -> NodeFacts:
    return NodeFacts(
        id=name,
        name=name,
        state="up",
        slots=4,
        busy=busy,
        labels=("gpu",),
        isolation="",
        speaks=speaks,
        version="9.9",
        memory_mb=0,
    )


@pytest.mark.parametrize(
    ("speaks", "upgrade"),
    [((PROTOCOL + 1, PROTOCOL + 2), "this steward"), ((PROTOCOL - 1, PROTOCOL - 1), "the node")],
)
def test_a_node_of_another_version_is_refused_with_which_side_to_upgrade(
    speaks: tuple[int, int], upgrade: str
) -> None:
    other = make_node("w1", speaks=speaks)
    assert choose_node([other], Placement(), isolated=False) is None
    with pytest.raises(Refused, match=f"w1 runs retinue 9.9: upgrade {upgrade}") as refusal:
        require_node([other], Placement(), isolated=False)
    assert refusal.value.code == "no_such_node"


def test_a_node_that_also_speaks_a_later_version_is_served() -> None:
    later = make_node("w1", speaks=(PROTOCOL, PROTOCOL + 1))
    assert choose_node([later], Placement(), isolated=False) == later


def test_the_least_busy_node_is_chosen_and_a_lost_one_last() -> None:
    nodes = [make_node("w1", busy=1), make_node("w2")]
    chosen = choose_node(nodes, Placement(), isolated=False)
    assert chosen is not None and chosen.name == "w2"
    chosen = choose_node(nodes, Placement(), isolated=False, avoid=["w2"])
    assert chosen is not None and chosen.name == "w1"


def test_the_refusal_names_the_node_that_lacks_a_label_and_one_that_is_draining() -> None:
    plain = replace(make_node("w2"), labels=())
    with pytest.raises(Refused, match="the node w2 with gpu is needed, and w2 does not have gpu"):
        require_node(
            [make_node("w1"), plain], Placement(labels=("gpu",), host="w2"), isolated=False
        )
    going = replace(make_node("w1"), state="draining")
    with pytest.raises(
        Refused, match="w1 takes no more work, because it is draining; no connected"
    ):
        require_node([going, plain], Placement(labels=("gpu",)), isolated=False)
    lost = replace(make_node("w3"), state="lost")
    with pytest.raises(Refused, match="the node w3 is needed, and w3 is lost"):
        require_node([plain, lost], Placement(host="w3"), isolated=False)


def test_one_whose_memory_limit_no_node_allows_is_refused_with_both_numbers() -> None:
    small = replace(make_node("w1"), memory_mb=2048)
    assert choose_node([small], Placement(), isolated=False, memory_mb=2048) == small
    assert choose_node([small], Placement(), isolated=False, memory_mb=4096) is None
    with pytest.raises(Refused, match=r"limit is 4096 MB, and the most .* is 2048 MB") as refusal:
        require_node([small], Placement(), isolated=False, memory_mb=4096)
    assert refusal.value.code == "no_such_node"


def test_a_steward_that_has_its_quota_gets_no_further_slot() -> None:
    full = replace(make_node("w1", busy=2), quota=2, own=2)
    assert full.free == 0
    assert choose_node([full], Placement(), isolated=False) is None
    # Those of other stewards count against the slots alone.
    assert replace(full, own=0).free == 2
