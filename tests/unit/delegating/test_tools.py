"""Descriptions, schemas and checks of the tools say the same."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from retinue.delegating.answers import ADVICE
from retinue.delegating.arguments import checked
from retinue.delegating.terms import Terms
from retinue.delegating.tools import SPAWN, WAIT, definitions, instructions
from retinue.domain.errors import BadInput

TOOLS = {each.name: each for each in definitions(Terms())}
TIMED = {"task": "x", "context_paths": []}
GOOD = {"tasks": [TIMED]}


def test_the_schemas_are_schemas_and_take_nothing_beyond_what_they_name() -> None:
    for tool in TOOLS.values():
        for schema in (tool.takes, tool.gives):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
        assert tool.takes["additionalProperties"] is False
    item = TOOLS[SPAWN].takes["properties"]["tasks"]["items"]
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
        checked(SPAWN, given)
    assert says in refused.value.message
    blank = any(isinstance(t, dict) and t.get("task") == " " for t in given.get("tasks", []))
    if not blank:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(given, TOOLS[SPAWN].takes)


def test_null_counts_as_left_out() -> None:
    given = {"tasks": [{"task": "x", "context_paths": [], "subagent_id": None}], "refine": None}
    assert checked(SPAWN, given) == GOOD


@pytest.mark.requirement("R228", "R231")
def test_the_parent_is_told_what_each_status_means() -> None:
    said = instructions(Terms())
    for status in ADVICE:
        assert f"- {status} (" in said
    assert "Use every answer that is valid" in said and "workspaces of the others" in said


@pytest.mark.requirement("R195", "R271")
def test_a_parent_that_cannot_spawn_is_told_of_nothing_that_it_lacks() -> None:
    said = instructions(Terms(enabled=False))
    assert SPAWN not in said and "Delegat" not in said and WAIT in said


@pytest.mark.requirement("R275")
def test_a_tool_that_only_some_parents_have_is_told_of_as_such() -> None:
    assert "with copy_files_batch where you have it" in " ".join(instructions(Terms()).split())


def test_the_limits_of_the_configuration_are_in_the_description() -> None:
    (spawn, *_) = definitions(Terms(most=7, default_seconds=90, background=False))
    assert "At most 7 tasks" in spawn.description and "90 s" in spawn.description
    assert "disabled" in spawn.description
    assert spawn.takes["properties"]["tasks"]["maxItems"] == 7
