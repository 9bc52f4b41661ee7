"""Validation of the arguments that a model gives to a tool."""

from __future__ import annotations

import pytest

from retinue.core.conversation import Tool
from retinue.team.tools.file_tools import ToolError
from retinue.team.tools.tool_registry import (
    COPIES,
    NUMBER,
    TEXT,
    WHOLE,
    build_schema,
    check_arguments,
)

TOOL = Tool(
    name="tool",
    description="",
    parameters=build_schema({"path": TEXT}, limit=WHOLE, seconds=NUMBER, copies=COPIES),
)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"limit": 7}, {"limit": 7}),
        ({"limit": 7.0}, {"limit": 7}),
        ({"limit": "7"}, {"limit": 7}),
        ({"limit": None}, {}),
        ({"seconds": 2}, {"seconds": 2.0}),
        ({"seconds": "2.5"}, {"seconds": 2.5}),
        ({"copies": []}, {"copies": []}),
        (
            {"copies": [{"source": "a", "target": "b"}]},
            {"copies": [{"source": "a", "target": "b"}]},
        ),
    ],
)
def test_valid_arguments_are_converted(given: dict[str, object], taken: dict[str, object]) -> None:
    assert check_arguments(TOOL, {"path": "x", **given}) == {"path": "x", **taken}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "tool needs path"),
        ({"path": None}, "path should be a string"),
        ({"path": ["x"]}, "path should be a string"),
        ({"path": "x", "y": 1}, "tool takes path, limit, seconds, copies; not 'y'"),
        ({"path": "x", "limit": True}, "limit should be an integer"),
        ({"path": "x", "limit": 1.5}, "limit should be an integer"),
        ({"path": "x", "limit": "many"}, "limit should be an integer"),
        ({"path": "x", "seconds": "nan"}, "seconds should be a number"),
        ({"path": "x", "seconds": 10**400}, "seconds should be a number"),
        ({"path": "x", "copies": "all"}, "copies should be an array"),
        ({"path": "x", "copies": ["a"]}, "copies[0] should be an object"),
        ({"path": "x", "copies": [{"source": "a"}]}, "copies[0] needs target"),
    ],
)
def test_invalid_arguments_are_refused_with_a_reason(given: dict[str, object], told: str) -> None:
    with pytest.raises(ToolError) as refused:
        check_arguments(TOOL, given)
    assert str(refused.value) == told
