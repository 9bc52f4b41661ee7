"""Tool restrictions of coding agents that run as commands."""

from __future__ import annotations

import pytest

from retinue.core.agent_cli_tools import list_native_tools, restrict_command
from retinue.core.contract import TOOLS
from retinue.core.errors import BadInput

SHUT = ("--strict-mcp-config", "--setting-sources=")
HAD_BY_CLAUDE = {"read_file", "write_file", "edit_file", "list_files", "search_files"} | {
    "run_command"
}


def refusal(*command: str, tools: tuple[str, ...] = ("read_file",)) -> BadInput:
    with pytest.raises(BadInput) as caught:
        restrict_command(command, tools, may_delegate=False)
    assert caught.value.code == "tools_not_enforced"
    return caught.value


@pytest.mark.requirement("R101")
@pytest.mark.parametrize(
    ("tools", "own"),
    [
        ((), ""),
        (("read_file",), "Read"),
        (("write_file", "edit_file"), "Write,Edit"),
        (("list_files", "search_files", "run_command"), "Glob,Grep,Bash"),
    ],
)
def test_claude_gets_the_complete_list_of_its_tools(tools: tuple[str, ...], own: str) -> None:
    command = ("/opt/bin/claude", "-p", "Look around", "--model=opus", "--verbose")
    words = (f"--tools={own}", f"--allowedTools={own}", *SHUT)
    expected = (command[0], *words, *command[1:])
    assert restrict_command(command, tools, may_delegate=False) == expected
    assert list_native_tools(expected) == frozenset(filter(None, own.split(",")))
    assert list_native_tools(command) is None and list_native_tools((*command, SHUT[0])) is None
    behind = ("env", "A=b", "C=d=e")
    assert restrict_command(behind + command, tools, may_delegate=False) == behind + expected


@pytest.mark.requirement("R101")
@pytest.mark.parametrize(
    "more",
    [
        *("--tools", "--allowedTools=Bash", "--mcp-config", "--settings={}", "--agents"),
        *("--plugin-dir", "--chrome", "--setting-sources=project", "-px", "--"),
    ],
)
def test_claude_refuses_options_that_could_add_tools(more: str) -> None:
    refused = refusal("claude", "-p", "go", more, "x")
    assert more.partition("=")[0] in refused.message and "--model" in refused.hint


@pytest.mark.requirement("R101")
def test_claude_can_be_restricted_only_in_print_mode() -> None:
    assert "--print" in refusal("claude", "mcp", "serve").hint


@pytest.mark.requirement("R101")
@pytest.mark.parametrize("tool", sorted(TOOLS - HAD_BY_CLAUDE))
def test_a_tool_that_claude_lacks_needs_permission_to_delegate(tool: str) -> None:
    refused = refusal("claude", "-p", "go", tools=("read_file", tool))
    assert tool in refused.message and "run_command" in refused.hint
    words = restrict_command(("claude", "-p", "go"), ("read_file", tool), may_delegate=True)
    assert words[1:3] == ("--tools=Read", "--allowedTools=Read")


@pytest.mark.requirement("R101")
@pytest.mark.parametrize("name", ["codex", "gemini", "opencode"])
@pytest.mark.parametrize("tools", [(), ("read_file",)])
def test_an_agent_without_an_allow_list_is_refused_with_the_reason(
    name: str, tools: tuple[str, ...]
) -> None:
    refused = refusal(f"/usr/bin/{name}", "exec", "go", tools=tools)
    assert refused.message.startswith(f"{name} cannot be held to") and ": it " in refused.message
    assert "leave the tools out" in refused.hint and f"--agent {name}" in refused.hint


@pytest.mark.requirement("R101")
@pytest.mark.parametrize(
    "command", [("sh", "-c", "claude -p go"), ("env",), ("env", "-i", "claude", "-p", "go"), ("",)]
)
def test_other_commands_take_tools_only_for_delegation(command: tuple[str, ...]) -> None:
    assert "claude" in refusal(*command).hint
    assert restrict_command(command, (), may_delegate=False) == command
    assert restrict_command(command, ("read_file",), may_delegate=True) == command
