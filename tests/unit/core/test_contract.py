"""Contracts: defaults, refused terms, and the stored text."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.contract import (
    MAX_DEPTH,
    MAX_RETRIES,
    TOOLS,
    AgentProgram,
    Caller,
    Contract,
    Delegation,
    Execution,
    Outputs,
    Parent,
    Permissions,
    Step,
    Team,
    TeamMember,
    require_narrower,
    require_sound,
)
from retinue.core.errors import BadInput
from retinue.core.placement import Placement
from retinue.core.task_config import Boundary, Limits
from retinue.core.tool_servers import ToolServer
from retinue.formats.contract_json import contract_from_text, contract_to_text, hash_contract

CONTRACT = Contract(
    parent=Parent(run_id="site-run-1", step_idx=2, task_prompt="Build it", goal_summary="Site"),
    step=Step(title="Bio", description="Write bio.md", success_criteria=("bio.md exists",)),
    permissions=Permissions(allowed_tools=("read_file", "write_file")),
    execution=Execution(attempt_timeout_ms=90_000),
    team=Team(members=(TeamMember(id="a", route="a", wire="openai", model="m"),)),
)


def permitted(**terms: Any) -> Contract:
    return replace(CONTRACT, permissions=replace(CONTRACT.permissions, **terms))


def executed(**terms: Any) -> Contract:
    return replace(CONTRACT, execution=replace(CONTRACT.execution, **terms))


@pytest.mark.requirement("R92")
def test_a_tool_that_was_not_granted_is_denied() -> None:
    assert CONTRACT.allows_tool("read_file")
    assert not CONTRACT.allows_tool("run_command")
    nothing = permitted(allowed_tools=())
    assert not any(nothing.allows_tool(tool) for tool in TOOLS)


@pytest.mark.requirement("R93", "R94", "R96", "R97", "R98")
def test_defaults_are_the_safe_choice() -> None:
    assert not CONTRACT.permissions.can_spawn_children
    assert CONTRACT.permissions.max_delegation_depth == 0
    assert CONTRACT.execution.max_retries == 1
    assert CONTRACT.execution.close_on_completion
    assert not CONTRACT.execution.retry_on_timeout
    assert CONTRACT.outputs.report_format == "markdown"
    assert CONTRACT.outputs.integration == "none"


@pytest.mark.requirement("R99")
def test_the_report_lies_where_the_pattern_says() -> None:
    assert CONTRACT.report_path == ".retinue/step-2-result.md"
    other = replace(
        CONTRACT, outputs=Outputs(report_path_pattern=".orchestrix/step-<idx>-result.md")
    )
    require_sound(other)
    assert other.report_path == ".orchestrix/step-2-result.md"


@pytest.mark.requirement("R100")
def test_no_term_can_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONTRACT.execution.max_retries = 9  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONTRACT.command = ("x",)  # type: ignore[misc]


@pytest.mark.requirement("R83")
@pytest.mark.parametrize(
    ("contract", "code"),
    [
        (permitted(allowed_tools=("*",)), "unknown_tool"),
        (permitted(allowed_tools=("read_file", "rm")), "unknown_tool"),
        (permitted(max_delegation_depth=-1), "invalid_contract"),
        (permitted(max_delegation_depth=MAX_DEPTH + 1), "invalid_contract"),
        (permitted(can_spawn_children=True), "invalid_contract"),
        (permitted(max_delegation_depth=1), "invalid_contract"),
        (executed(max_retries=-1), "invalid_contract"),
        (executed(max_retries=MAX_RETRIES + 1), "invalid_contract"),
        (executed(max_retries=10**9), "invalid_contract"),
    ],
)
def test_terms_that_make_no_sense_are_refused(contract: Contract, code: str) -> None:
    with pytest.raises(BadInput) as refused:
        require_sound(contract)
    assert refused.value.code == code
    assert refused.value.hint


def test_a_login_of_the_user_is_not_sent_to_a_node() -> None:
    agent = AgentProgram(type="goose", name="goose", login="own")
    team = Team(members=(TeamMember(id="a", route="", wire="chat", model="m", agent=agent),))
    here = replace(CONTRACT, team=team)
    require_sound(here)
    with pytest.raises(BadInput) as refused:
        require_sound(replace(here, placement=Placement()))
    assert refused.value.code == "no_login_on_nodes"


@pytest.mark.parametrize("pattern", ["/etc/x", "../x", "a/../../x", "a//b", "", "a\0b", "a/"])
def test_a_report_outside_of_the_workspace_is_refused(pattern: str) -> None:
    outputs = Outputs(report_path_pattern=pattern)
    with pytest.raises(BadInput):
        require_sound(replace(CONTRACT, outputs=outputs))


def test_sound_terms_are_accepted() -> None:
    require_sound(CONTRACT)
    require_sound(permitted(can_spawn_children=True, max_delegation_depth=MAX_DEPTH))
    require_sound(executed(max_retries=0))


@pytest.mark.parametrize(
    "wider",
    [
        permitted(allowed_tools=("run_command",)),
        permitted(allowed_tools=(), can_spawn_children=True, max_delegation_depth=2),
        executed(attempt_timeout_ms=90_001),
    ],
)
def test_a_delegated_contract_only_narrows(wider: Contract) -> None:
    parent = permitted(can_spawn_children=True, max_delegation_depth=2)
    require_narrower(executed(attempt_timeout_ms=90_000), parent)
    with pytest.raises(BadInput, match="cannot be wider") as refused:
        require_narrower(wider, parent)
    assert refused.value.code == "contract_too_wide"


def test_a_subagent_without_permission_cannot_delegate() -> None:
    with pytest.raises(BadInput, match="may not delegate"):
        require_narrower(CONTRACT, CONTRACT)


@pytest.mark.requirement(
    "R85", "R86", "R87", "R88", "R89", "R90", "R91", "R92", "R93", "R94", "R95", "R96", "R97",
    "R98", "R99", "R140",
)  # fmt: skip
def test_the_stored_text_has_every_field_under_its_name() -> None:
    stored = json.loads(contract_to_text(CONTRACT))
    assert stored["parent"] == {
        "run_id": "site-run-1",
        "step_idx": 2,
        "task_prompt": "Build it",
        "goal_summary": "Site",
        "caller": None,
    }
    assert stored["step"] == {
        "title": "Bio",
        "description": "Write bio.md",
        "success_criteria": ["bio.md exists"],
    }
    assert stored["permissions"] == {
        "allowed_tools": ["read_file", "write_file"],
        "can_spawn_children": False,
        "max_delegation_depth": 0,
        "access": "write",
    }
    execution = stored["execution"]
    assert (execution["attempt_timeout_ms"], execution["max_retries"]) == (90_000, 1)
    assert execution["close_on_completion"] is True
    assert stored["outputs"]["report_format"] == "markdown"
    assert stored["outputs"]["report_path_pattern"] == ".retinue/step-<idx>-result.md"


@given(
    title=st.text(max_size=80),
    words=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4),
    timeout=st.integers(min_value=1, max_value=10**9),
)
def test_a_stored_contract_is_read_back_equal(title: str, words: list[str], timeout: int) -> None:
    contract = replace(
        executed(attempt_timeout_ms=timeout),
        step=Step(title=title, description=title),
        command=tuple(words),
    )
    text = contract_to_text(contract)
    assert text.isascii() and "\n" not in text
    assert contract_from_text(text) == contract
    assert contract_to_text(contract_from_text(text)) == text
    assert len(hash_contract(text)) == 64


def test_every_part_of_a_contract_is_read_back_with_its_type() -> None:
    server = ToolServer(name="web", environment=(("KEY", "${KEY}"),), allowed_tools=("get",))
    member = TeamMember(id="ada", route="r", wire="openai", model="m", servers=(server, server))
    delegation = Delegation(most=3, default_seconds=9.5, least_seconds=1, most_seconds=60)
    contract = replace(
        CONTRACT,
        parent=replace(CONTRACT.parent, caller=Caller(client="code 1", trace="00-1")),
        boundary=Boundary(limits=Limits(memory_mb=64), launch_prefix=("env", "-i")),
        team=Team(members=(member, replace(member, servers=())), delegation=delegation),
    )
    assert contract_from_text(contract_to_text(contract)) == contract
    assert contract_from_text(contract_to_text(CONTRACT)) == CONTRACT


def test_unknown_fields_are_dropped_and_missing_ones_get_defaults() -> None:
    stored = json.loads(contract_to_text(CONTRACT)) | {"mood": {"good": True}}
    del stored["budget"], stored["boundary"]["limits"], stored["execution"]["max_retries"]
    stored["step"]["mood"] = ["good"]
    assert contract_from_text(json.dumps(stored)) == CONTRACT
