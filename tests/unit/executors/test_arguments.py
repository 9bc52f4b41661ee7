"""What a model gives a tool: taken where it is meant, refused in words where it is not."""

from __future__ import annotations

import pytest

from retinue.domain.conversation import Tool
from retinue.executors.arguments import fitting
from retinue.executors.files import Impossible
from retinue.executors.toolbox import COPIES, NUMBER, TEXT, WHOLE, schema

TOOL = Tool(
    name="tool",
    description="",
    parameters=schema({"path": TEXT}, limit=WHOLE, seconds=NUMBER, copies=COPIES),
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
def test_what_is_meant_is_taken(given: dict[str, object], taken: dict[str, object]) -> None:
    assert fitting(TOOL, {"path": "x", **given}) == {"path": "x", **taken}


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
def test_what_is_not_is_refused_in_words(given: dict[str, object], told: str) -> None:
    with pytest.raises(Impossible) as refused:
        fitting(TOOL, given)
    assert str(refused.value) == told
