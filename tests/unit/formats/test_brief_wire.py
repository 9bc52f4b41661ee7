"""Spawn requests: strict parsing; one invalid brief refuses the whole request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.brief import Brief
from retinue.core.errors import BadInput
from retinue.formats.contract_json import brief_to_json, parse_briefs, request_sha256
from retinue.formats.schemas.brief_schema import MAX_ARGV, MAX_TEXT

LEAST: dict[str, Any] = {"task": "Write bio.md", "context_paths": []}
MOST: dict[str, Any] = {
    "task": "Write bio.md",
    "subagent_id": "bio",
    "argv": ["make", ""],
    "subagent_type": "explorer",
    "context_paths": ["./"],
    "context_files": ["notes.md"],
    "timeout_seconds": 1.5,
    "allowed_tools": ["read_file"],
    "max_retries": 2,
    "retry_on_timeout": True,
    "close_on_completion": False,
    "integration": "merge",
    "owns": ["bio.md"],
    "title": "Bio",
    "success_criteria": ["bio.md exists"],
    "report_path_pattern": "r-<idx>.md",
    "max_delegation_depth": 2,
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def refusal(items: Any) -> BadInput:
    with pytest.raises(BadInput) as refused:
        parse_briefs(items)
    return refused.value


@pytest.mark.requirement("R148")
def test_a_minimal_brief_is_accepted() -> None:
    (brief,) = parse_briefs([LEAST])
    assert brief == Brief("Write bio.md")


def test_every_field_of_a_brief_is_parsed() -> None:
    (brief,) = parse_briefs([MOST])
    assert brief == Brief(
        "Write bio.md",
        id="bio",
        argv=("make", ""),
        type="explorer",
        context_paths=("./",),
        context_files=("notes.md",),
        timeout_seconds=1.5,
        tools=("read_file",),
        retries=2,
        retry_on_timeout=True,
        close_on_completion=False,
        integration="merge",
        owns=("bio.md",),
        title="Bio",
        success_criteria=("bio.md exists",),
        report_path_pattern="r-<idx>.md",
        delegation_depth=2,
    )
    assert parse_briefs([brief_to_json(brief)]) == [brief]


@pytest.mark.parametrize("items", [None, [], {}, "x", 7, ["x"], [None], [[]]])
def test_an_invalid_list_of_tasks_is_refused(items: Any) -> None:
    assert refusal(items).code == "invalid_request"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"context_paths": None}, "tasks[1].context_paths"),
        ({"context_paths": "./"}, "tasks[1].context_paths"),
        ({"context_paths": [7]}, "tasks[1].context_paths.0"),
        ({"task": 7}, "tasks[1].task"),
        ({"task": "x" * (MAX_TEXT + 1)}, "tasks[1].task"),
        ({"max_retries": "2"}, "tasks[1].max_retries"),
        ({"max_retries": 1.5}, "tasks[1].max_retries"),
        ({"max_retries": True}, "tasks[1].max_retries"),
        ({"retry_on_timeout": 1}, "tasks[1].retry_on_timeout"),
        ({"timeout_seconds": "90000"}, "tasks[1].timeout_seconds"),
        ({"timeout_seconds": 0}, "tasks[1].timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "tasks[1].timeout_seconds"),
        ({"timeout_seconds": float("inf")}, "tasks[1].timeout_seconds"),
        ({"timeout_seconds": True}, "tasks[1].timeout_seconds"),
        ({"no_such_key": 1}, "tasks[1].no_such_key"),
        ({"task": "  \n"}, "tasks[1]"),
        ({"argv": [""]}, "tasks[1]"),
        ({"argv": ["a\0b"]}, "tasks[1]"),
        ({"argv": ["x" * (MAX_ARGV + 1)]}, "tasks[1]"),
    ],
)
def test_the_first_wrong_item_is_named_and_the_whole_call_refused(
    change: dict[str, Any], where: str
) -> None:
    refused = refusal([LEAST, LEAST | change])
    assert refused.message.startswith(where)
    assert "\n" not in refused.message and len(refused.message) < 300


@pytest.mark.parametrize("name", ["../x", "", "a/b", "-x", "x" * 65])
def test_an_invalid_id_is_refused(name: str) -> None:
    assert refusal([LEAST | {"subagent_id": name}]).code == "invalid_id"


@pytest.mark.requirement("R172", "R214", "R216")
def test_context_paths_must_be_written_out() -> None:
    assert "context_paths" in refusal([{"task": "x"}]).message


@given(st.lists(st.dictionaries(st.sampled_from([*LEAST, "argv", "max_retries"]), json_values)))
def test_no_request_makes_the_parser_crash(items: list[Any]) -> None:
    try:
        parse_briefs(items)
    except BadInput as refused:
        assert refused.message


def test_the_same_request_has_the_same_hash_and_another_has_another() -> None:
    one, same = parse_briefs([LEAST]), parse_briefs([dict(reversed(LEAST.items()))])
    assert request_sha256(one) == request_sha256(same)
    for change in ({"task": "Write it"}, {"subagent_id": "x"}, {"max_retries": 0}):
        assert request_sha256(one) != request_sha256(parse_briefs([LEAST | change]))
    assert request_sha256(one) != request_sha256([*one, *one])
