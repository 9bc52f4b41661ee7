"""Names of MCP tools, and which of them a contract grants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.core.contract import (
    Contract,
    Execution,
    Parent,
    Permissions,
    Step,
    Team,
    TeamMember,
    require_narrower,
    require_reachable,
    require_sound,
)
from retinue.core.errors import BadInput
from retinue.core.task_config import Boundary
from retinue.core.tool_servers import (
    ToolServer,
    fill_references,
    find_server,
    is_tool_granted,
    make_tool_names,
)

NEAR = ToolServer(name="near", argv=("x",), environment=(("A", "${ONE} and ${TWO}"),))
FAR = ToolServer(name="far", url="http://x")


def contract(*allowed: str, agent: str = "team", depth: int = 0) -> Contract:
    member = TeamMember(id="m", route="r", wire="openai", model="m", servers=(NEAR, FAR))
    return Contract(
        parent=Parent(run_id="r", step_idx=0, task_prompt="", goal_summary=""),
        step=Step(title="", description=""),
        execution=Execution(attempt_timeout_ms=1000),
        permissions=Permissions(
            allowed_tools=allowed, can_spawn_children=depth > 0, max_delegation_depth=depth
        ),
        team=Team(members=(member,)),
        agent=agent,
    )


def test_a_tool_is_granted_by_its_name_or_with_all_of_its_server() -> None:
    assert is_tool_granted(["mcp__near__a"], "mcp__near__a") and is_tool_granted(
        ["mcp__near__*"], "mcp__near__a"
    )
    assert not is_tool_granted(["mcp__near__a"], "mcp__near__b")
    assert not is_tool_granted(["mcp__near__*"], "mcp__nearer__a") and not is_tool_granted(
        ["mcp__*"], "mcp__near__a"
    )
    assert find_server("mcp__near__a__b") == "near" and find_server("read_file") is None
    assert [server.name for server in contract("mcp__far__x").servers] == ["far"]


def test_only_tools_of_servers_that_the_team_has_are_known() -> None:
    require_sound(contract("read_file", "mcp__near__*", "mcp__far__one"))
    for unknown in ("mcp__other__*", "mcp__near", "mcp____x", "mcp__near__"):
        with pytest.raises(BadInput, match="unknown tool"):
            require_sound(contract(unknown))
    require_sound(contract("mcp__other__*", agent="root"))


def test_a_delegated_contract_has_no_tools_of_servers_that_its_parent_lacks() -> None:
    parent = contract("mcp__near__*", "mcp__far__one", depth=1)
    require_narrower(contract("mcp__near__a", "mcp__far__one"), parent)
    for wider in ("mcp__far__*", "mcp__far__two"):
        with pytest.raises(BadInput, match="its parent lacks these tools"):
            require_narrower(contract(wider), parent)


def test_a_server_at_an_address_needs_a_network() -> None:
    team = contract().team
    assert team is not None
    require_reachable(team, Boundary(network="on"))
    require_reachable(team, Boundary(mode="inherited"))
    with pytest.raises(BadInput, match="the MCP server far is at an address"):
        require_reachable(team, Boundary())
    near = replace(team, members=(replace(team.members[0], servers=(NEAR,)),))
    require_reachable(near, Boundary())


def test_offered_names_fit_every_vendor_and_differ() -> None:
    names = make_tool_names("s", ["read-it", "a.b", "a/b", "a:b"])
    assert names["read-it"] == "mcp__s__read-it" and names["a.b"] == "mcp__s__a_b"
    assert names["a/b"].startswith("mcp__s__a_b_") and len(set(names.values())) == 4
    assert len(make_tool_names("s" * 32, ["t" * 200])["t" * 200]) == 64


def test_a_valid_tool_name_is_never_given_to_another() -> None:
    mark = make_tool_names("s", ["a_b", "a.b"])["a.b"].removeprefix("mcp__s__")
    names = make_tool_names("s", ["a.b", "a_b", mark])
    assert names == {"a_b": "mcp__s__a_b", mark: f"mcp__s__{mark}"}


def test_references_are_found_and_filled() -> None:
    assert NEAR.references == {"ONE", "TWO"}
    assert fill_references("${ONE} and $TWO", {"ONE": "1"}) == "1 and $TWO"
    with pytest.raises(KeyError):
        fill_references("${ONE}", {})
