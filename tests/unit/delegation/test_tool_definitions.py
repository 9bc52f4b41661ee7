"""Descriptions, schemas and argument checks of the tools agree."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from retinue.core.errors import BadInput
from retinue.core.result import Status
from retinue.delegation.result_view import ADVICE
from retinue.delegation.tool_definitions import (
    MOST_CHARACTERS,
    PLAIN_NAMES,
    SPAWN,
    WAIT,
    build_definitions,
    check_arguments,
    format_instructions,
)
from retinue.delegation.tool_schemas import ToolLimits

TOOLS = {each.name: each for each in build_definitions(ToolLimits())}
TIMED = {"task": "x", "context_paths": []}
GOOD = {"tasks": [TIMED]}


def test_the_schemas_are_valid_and_refuse_other_properties() -> None:
    for tool in TOOLS.values():
        for schema in (tool.takes, tool.gives):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
    assert TOOLS[SPAWN].takes["additionalProperties"] is False
    item = TOOLS[SPAWN].takes["properties"]["tasks"]["items"]
    assert item["additionalProperties"] is False
    assert item["required"] == ["task", "context_paths"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "tasks is missing"),
        ({"tasks": [{"task": "x"}]}, "tasks[0]: context_paths is missing"),
        ({"tasks": [{"task": " ", "context_paths": []}]}, "tasks[0].task"),
        ({"tasks": [{"task": "x", "context_paths": "./"}]}, "tasks[0].context_paths"),
        ({"tasks": [{"task": "x", "context_paths": [1]}]}, "tasks[0].context_paths"),
        ({"tasks": [{"task": "x", "context_paths": None}]}, "context_paths is missing"),
        ({"tasks": ["x"]}, "tasks[0] must be an object"),
        ({"tasks": [TIMED | {"timeout_seconds": 10**400}]}, "tasks[0].timeout_seconds must be"),
        ({"tasks": [TIMED | {"timeout_seconds": -1}]}, "tasks[0].timeout_seconds must be"),
        (GOOD | {"background": "yes"}, "background must be true or false"),
        (GOOD | {"depends_on": []}, "unknown argument 'depends_on'"),
    ],
)
def test_a_wrong_call_is_refused_by_the_check_and_by_the_schema(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput) as refused:
        check_arguments(SPAWN, given)
    assert says in refused.value.message
    blank = any(isinstance(t, dict) and t.get("task") == " " for t in given.get("tasks", []))
    if not blank:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(given, TOOLS[SPAWN].takes)


def test_an_unknown_argument_of_a_small_tool_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown argument 'seconds'"):
        check_arguments(WAIT, {"seconds": 1})


def test_null_counts_as_left_out() -> None:
    given = {"tasks": [{"task": "x", "context_paths": [], "subagent_id": None}], "refine": None}
    assert check_arguments(SPAWN, given) == GOOD


@pytest.mark.requirement("R228", "R231")
def test_each_status_has_advice_and_the_instructions_explain_mixed_results() -> None:
    assert set(ADVICE) == set(Status)
    instructions = format_instructions(ToolLimits())
    assert "Use every answer that is valid" in instructions
    assert "workspaces of the others" in instructions and "blocked" in instructions


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("background", [False, True])
def test_clients_that_cut_at_2048_characters_cut_nothing(plain: bool, background: bool) -> None:
    limits = ToolLimits(most=1000, plain_names=plain, background=background)
    texts = [format_instructions(limits)]
    texts += [each.description for each in build_definitions(limits)]
    assert all(len(text) <= MOST_CHARACTERS for text in texts)


def test_plain_names_replace_the_long_ones_everywhere() -> None:
    limits = ToolLimits(plain_names=True)
    tools = build_definitions(limits)
    assert {each.name for each in tools} >= set(PLAIN_NAMES.values())
    texts = [format_instructions(limits), *(each.description for each in tools)]
    assert not any(name in text for name in PLAIN_NAMES for text in texts)


@pytest.mark.requirement("R195", "R271")
def test_without_spawning_the_instructions_do_not_mention_it() -> None:
    said = format_instructions(ToolLimits(enabled=False))
    assert SPAWN not in said and "Delegat" not in said and WAIT in said


@pytest.mark.requirement("R275")
def test_the_instructions_say_that_only_some_parents_can_copy_files() -> None:
    assert "with copy_files_batch where you have it" in " ".join(
        format_instructions(ToolLimits()).split()
    )


def test_a_place_is_listed_where_there_are_nodes_and_always_understood() -> None:
    def list_terms(nodes: bool) -> set[str]:
        (spawn, *_) = build_definitions(ToolLimits(nodes=nodes))
        return set(spawn.takes["properties"]["tasks"]["items"]["properties"])

    assert list_terms(True) - list_terms(False) == {"on"}
    given = {"tasks": [{"task": "x", "context_paths": [], "on": "gpu"}]}
    assert check_arguments(SPAWN, given) == given


def test_the_limits_of_the_configuration_are_in_the_description() -> None:
    (spawn, *_) = build_definitions(ToolLimits(most=7, default_seconds=90, background=False))
    assert "At most 7 tasks" in spawn.description
    limit = spawn.takes["properties"]["tasks"]["items"]["properties"]["timeout_seconds"]
    assert limit["description"] == "60 to 600; default 90."
    assert "disabled" in spawn.description
    assert spawn.takes["properties"]["tasks"]["maxItems"] == 7
