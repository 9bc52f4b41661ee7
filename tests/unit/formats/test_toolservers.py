"""MCP servers in a configuration: valid ones, and the errors of invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import BadInput
from retinue.core.staffing import select_members
from retinue.formats.config_document import parse_config, parse_task_config

PLAIN = {"name": "w", "command": "weather", "args": ["-q"], "env": {"KEY": "${WEATHER_KEY}"}}
FAR = {
    "name": "far",
    "type": "streamable-http",
    "url": "https://example.org/mcp",
    "headers": {"Authorization": "Bearer ${T}"},
}


def config(servers: Any, kind: str = "openai") -> dict[str, Any]:
    backend = {"type": kind, "model": "m", "mcp_servers": servers}
    return {"agents": [{"id": "one", "backend": backend}]}


def test_servers_are_inherited_with_the_backend() -> None:
    policy = parse_task_config(config([PLAIN, FAR]), where="x")
    (member,) = select_members(policy.crew)
    near, far = member.servers
    assert near.argv == ("weather", "-q") and near.references == {"WEATHER_KEY"}
    assert far.url == FAR["url"] and far.references == {"T"} and not far.argv
    assert policy.crew.servers == member.servers


def test_in_a_mapping_the_key_is_the_servers_name() -> None:
    listed = parse_task_config(config([{"name": "w", "command": "x"}]), where="x")
    mapped = parse_task_config(config({"w": {"command": "x"}}), where="x")
    assert listed.crew == mapped.crew


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        ("weather", "expected a list"),
        ([{"command": "x"}], "name: is missing"),
        ([{"name": "a__b", "command": "x"}], "no '__'"),
        ([{"name": "a" * 33, "command": "x"}], "at most 32"),
        ([{"name": "w"}], "command: is required for type stdio"),
        ([{"name": "w", "command": "x", "url": "http://x"}], "url: is required for type"),
        ([{"name": "w", "type": "sse", "url": "http://x"}], "stdio or streamable-http"),
        ([{"name": "w", "command": "x", "headers": {"A": "b"}}], "headers: is not allowed"),
        ([FAR | {"env": {"A": "b"}}], "env: is not allowed"),
        ([FAR | {"headers": {"A": "b\nC: d"}}], "on one line"),
        ([{"name": "w", "command": "x", "env": {"A B": "c"}}], "environment variable"),
        ([{"name": "w", "command": "x", "comand": "y"}], "did you mean"),
        ([PLAIN, PLAIN | {"name": "W"}], "two servers are named 'W'"),
        ([{"name": "w", "command": "x", "timeout_seconds": 0}], "timeout_seconds"),
    ],
)
def test_an_invalid_server_is_refused_by_its_full_key(servers: Any, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_config(config(servers), where="x")
    assert why in refused.value.message and "mcp_servers" in refused.value.message


def test_a_command_has_no_servers() -> None:
    backend = {"type": "command", "argv": ["x"], "mcp_servers": [PLAIN]}
    with pytest.raises(BadInput, match="not allowed for type command"):
        parse_config({"agents": [{"id": "one", "backend": backend}]}, where="x")


def test_a_secret_in_the_wrong_place_is_not_repeated() -> None:
    wrong = {"name": "w", "command": "x", "env": {"KEY": ["sk-secret"]}}
    with pytest.raises(BadInput) as refused:
        parse_config(config([wrong]), where="x")
    assert "sk-secret" not in refused.value.message
