"""Tool restrictions for coding agents that run as commands.

claude     accepts a complete list of allowed tools as options; this is enforced
codex      can only exclude single tools, so a new version may have more
gemini     reads an allow list only from a policy file
opencode   runs the plugins in its workspace, regardless of its options
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.core.errors import BadInput

_CLAUDE_TOOLS = {
    "read_file": "Read",
    "write_file": "Write",
    "edit_file": "Edit",
    "list_files": "Glob",
    "search_files": "Grep",
    "run_command": "Bash",
}
_CLAUDE_PRINT_MODE = {"-p", "--print"}  # without one of these it is interactive, or a subcommand
# An allow list: an unknown option could give the agent tools beyond the contract.
_CLAUDE_OPTIONS = _CLAUDE_PRINT_MODE | {
    *("--model", "--fallback-model", "--effort", "--max-turns", "--max-budget-usd"),
    *("--input-format", "--output-format", "--json-schema", "--verbose"),
    *("--include-partial-messages", "--no-session-persistence"),
    *("--session-id", "--resume", "-r", "--continue", "-c", "--fork-session"),
    *("--system-prompt", "--append-system-prompt", "--add-dir"),
    *("--permission-mode", "--dangerously-skip-permissions"),
}
# No MCP servers and no settings except an administrator's. Both can name programs to run, and the
# model could write them into the workspace.
_NO_OUTSIDE_CONFIG = ("--strict-mcp-config", "--setting-sources=")
_UNENFORCEABLE = {
    "codex": "it can exclude tools, but has no list of allowed ones",
    "gemini": "it reads allowed tools only from a policy file",
    "opencode": "it runs the plugins that it finds in its workspace",
}
_LEAVE_OUT = "leave the tools out: its boundary and context limit what a command can reach"


def restrict_command(
    command: Sequence[str], tools: Sequence[str], *, may_delegate: bool
) -> tuple[str, ...]:
    """Return the command with options that make the agent refuse all other tools.

    A command that is not a coding agent has no tools.

    Args:
        may_delegate: the tools may then include some that only its subagents use.

    Raises:
        BadInput: the restriction cannot be enforced.
    """
    index = _find_program(command)
    name = command[index].rpartition("/")[2]
    if name in _UNENFORCEABLE:
        named = f"tools, such as {tools[0]}" if tools else "having no tools"
        raise _refuse_unenforced(
            f"{name} cannot be held to {named}: {_UNENFORCEABLE[name]}",
            f"{_LEAVE_OUT}; or spawn it by name, with --agent {name}",
        )
    if name == "claude":
        words = _restrict_claude(command[index + 1 :], tools, may_delegate=may_delegate)
        return (*command[: index + 1], *words, *command[index + 1 :])
    if tools and not may_delegate:
        raise _refuse_unenforced(
            f"a command cannot be held to tools, such as {tools[0]}",
            f"{_LEAVE_OUT}; claude can be held to them",
        )
    return tuple(command)


def list_native_tools(command: Sequence[str]) -> frozenset[str] | None:
    """Return its allowed tools by the agent's own names; None if it is not restricted."""
    if _NO_OUTSIDE_CONFIG[0] not in command:
        return None
    index = command.index(_NO_OUTSIDE_CONFIG[0])
    listed = command[index - 1].partition("=")[2]
    is_restricted = tuple(command[index : index + len(_NO_OUTSIDE_CONFIG)]) == _NO_OUTSIDE_CONFIG
    return frozenset(filter(None, listed.split(","))) if is_restricted else None


def _find_program(command: Sequence[str]) -> int:
    """Return the index of the program in the command; `env NAME=value` in front is skipped."""
    index = 0
    if command[0].rpartition("/")[2] == "env":
        index = next((at for at, word in enumerate(command) if at and "=" not in word), 0)
    return index


def _restrict_claude(
    given: Sequence[str], tools: Sequence[str], *, may_delegate: bool
) -> tuple[str, ...]:
    options = [word.partition("=")[0] for word in given if word.startswith("-")]
    if not _CLAUDE_PRINT_MODE & set(options):
        raise _refuse_unenforced(
            "claude can be held to tools only in print mode", "add --print to the command"
        )
    for option in options:
        if option not in _CLAUDE_OPTIONS:
            raise _refuse_unenforced(
                f"claude cannot be held to tools with the option {option[:40]!a}",
                "leave out the option or the tools; "
                f"allowed options: {', '.join(sorted(_CLAUDE_OPTIONS))}",
            )
    for tool in tools:
        if tool not in _CLAUDE_TOOLS and not may_delegate:
            raise _refuse_unenforced(
                f"claude has no tool for {tool[:40]}",
                f"it can be granted {', '.join(_CLAUDE_TOOLS)}",
            )
    own = ",".join(_CLAUDE_TOOLS[tool] for tool in tools if tool in _CLAUDE_TOOLS)
    return (f"--tools={own}", f"--allowedTools={own}", *_NO_OUTSIDE_CONFIG)


def _refuse_unenforced(message: str, hint: str) -> BadInput:
    return BadInput(message, code="tools_not_enforced", hint=hint)
