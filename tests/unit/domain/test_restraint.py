"""What a grant of tools adds to the words of a coding agent, and where it is refused."""

from __future__ import annotations

import pytest

from retinue.domain.contract import TOOLS
from retinue.domain.errors import BadInput
from retinue.domain.restraint import own_tools, restrained

SHUT = ("--strict-mcp-config", "--setting-sources=")
HAD_BY_CLAUDE = {"read_file", "write_file", "edit_file", "list_files", "search_files"} | {
    "run_command"
}


def refusal(*command: str, tools: tuple[str, ...] = ("read_file",)) -> BadInput:
    with pytest.raises(BadInput) as caught:
        restrained(command, tools, hands_on=False)
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
def test_claude_is_given_the_whole_list_of_what_it_may_call(
    tools: tuple[str, ...], own: str
) -> None:
    command = ("/opt/bin/claude", "-p", "Look around", "--model=opus", "--verbose")
    words = (f"--tools={own}", f"--allowedTools={own}", *SHUT)
    expected = (command[0], *words, *command[1:])
    assert restrained(command, tools, hands_on=False) == expected
    assert own_tools(expected) == frozenset(filter(None, own.split(",")))
    assert own_tools(command) is None and own_tools((*command, SHUT[0])) is None
    behind = ("env", "A=b", "C=d=e")
    assert restrained(behind + command, tools, hands_on=False) == behind + expected


@pytest.mark.requirement("R101")
@pytest.mark.parametrize(
    "more",
    [
        *("--tools", "--allowedTools=Bash", "--mcp-config", "--settings={}", "--agents"),
        *("--plugin-dir", "--chrome", "--setting-sources=project", "-px", "--"),
    ],
)
def test_claude_is_not_given_what_could_bring_more_tools(more: str) -> None:
    refused = refusal("claude", "-p", "go", more, "x")
    assert more.partition("=")[0] in refused.message and "--model" in refused.hint


@pytest.mark.requirement("R101")
def test_claude_with_a_screen_or_as_another_program_is_not_held_to_tools() -> None:
    assert "--print" in refusal("claude", "mcp", "serve").hint


@pytest.mark.requirement("R101")
@pytest.mark.parametrize("tool", sorted(TOOLS - HAD_BY_CLAUDE))
def test_a_tool_that_claude_does_not_have_can_only_be_handed_on(tool: str) -> None:
    refused = refusal("claude", "-p", "go", tools=("read_file", tool))
    assert tool in refused.message and "run_command" in refused.hint
    words = restrained(("claude", "-p", "go"), ("read_file", tool), hands_on=True)
    assert words[1:3] == ("--tools=Read", "--allowedTools=Read")


@pytest.mark.requirement("R101")
@pytest.mark.parametrize("name", ["codex", "gemini", "opencode"])
@pytest.mark.parametrize("tools", [(), ("read_file",)])
def test_an_agent_that_cannot_be_held_to_a_list_says_why(name: str, tools: tuple[str, ...]) -> None:
    refused = refusal(f"/usr/bin/{name}", "exec", "go", tools=tools)
    assert refused.message.startswith(f"{name} cannot be held to") and ": it " in refused.message
    assert "leave the tools out" in refused.hint


@pytest.mark.requirement("R101")
@pytest.mark.parametrize(
    "command", [("sh", "-c", "claude -p go"), ("env",), ("env", "-i", "claude", "-p", "go"), ("",)]
)
def test_any_other_command_has_no_tools_and_can_only_hand_them_on(command: tuple[str, ...]) -> None:
    assert "claude" in refusal(*command).hint
    assert restrained(command, (), hands_on=False) == command
    assert restrained(command, ("read_file",), hands_on=True) == command
