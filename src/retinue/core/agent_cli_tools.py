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
_CLAUDE_PRINTS = {"-p", "--print"}  # without one of these it is interactive, or a subcommand
# An allow list: an unknown option could give the agent tools beyond the contract.
_CLAUDE_OPTIONS = _CLAUDE_PRINTS | {
    *("--model", "--fallback-model", "--effort", "--max-turns", "--max-budget-usd"),
    *("--input-format", "--output-format", "--json-schema", "--verbose"),
    *("--include-partial-messages", "--no-session-persistence"),
    *("--session-id", "--resume", "-r", "--continue", "-c", "--fork-session"),
    *("--system-prompt", "--append-system-prompt", "--add-dir"),
    *("--permission-mode", "--dangerously-skip-permissions"),
}
# No MCP servers and no settings except an administrator's. Both can name programs to run, and the
# model could write them into the workspace.
_SHUT = ("--strict-mcp-config", "--setting-sources=")
_LOOSE = {
    "codex": "it can exclude tools, but has no list of allowed ones",
    "gemini": "it reads allowed tools only from a policy file",
    "opencode": "it runs the plugins that it finds in its workspace",
}
_LEAVE_OUT = "leave the tools out: its boundary and context limit what a command can reach"


def restrict_command(
    command: Sequence[str], tools: Sequence[str], *, hands_on: bool
) -> tuple[str, ...]:
    """Return the command with options that make the agent refuse all other tools.

    A command that is not a coding agent has no tools. With `hands_on` the command may delegate:
    it may then name tools that only its subagents use.

    Raises:
        BadInput: the restriction cannot be enforced.
    """
    place = _find_program(command)
    name = command[place].rpartition("/")[2]
    if name in _LOOSE:
        named = f"tools, such as {tools[0]}" if tools else "having no tools"
        raise _refuse_unenforced(
            f"{name} cannot be held to {named}: {_LOOSE[name]}",
            f"{_LEAVE_OUT}; or spawn it by name, with --agent {name}",
        )
    if name == "claude":
        words = _restrict_claude(command[place + 1 :], tools, hands_on=hands_on)
        return (*command[: place + 1], *words, *command[place + 1 :])
    if tools and not hands_on:
        raise _refuse_unenforced(
            f"a command cannot be held to tools, such as {tools[0]}",
            f"{_LEAVE_OUT}; claude can be held to them",
        )
    return tuple(command)


def own_tools(command: Sequence[str]) -> frozenset[str] | None:
    """Return the agent's own names of its allowed tools; None if it is not restricted."""
    if _SHUT[0] not in command:
        return None
    place = command.index(_SHUT[0])
    listed = command[place - 1].partition("=")[2]
    is_held = tuple(command[place : place + len(_SHUT)]) == _SHUT
    return frozenset(filter(None, listed.split(","))) if is_held else None


def _find_program(command: Sequence[str]) -> int:
    """Return the index of the program in the command; `env NAME=value` in front is skipped."""
    place = 0
    if command[0].rpartition("/")[2] == "env":
        place = next((at for at, word in enumerate(command) if at and "=" not in word), 0)
    return place


def _restrict_claude(
    given: Sequence[str], tools: Sequence[str], *, hands_on: bool
) -> tuple[str, ...]:
    options = [word.partition("=")[0] for word in given if word.startswith("-")]
    if not _CLAUDE_PRINTS & set(options):
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
        if tool not in _CLAUDE_TOOLS and not hands_on:
            raise _refuse_unenforced(
                f"claude has no tool for {tool[:40]}",
                f"it can be granted {', '.join(_CLAUDE_TOOLS)}",
            )
    own = ",".join(_CLAUDE_TOOLS[tool] for tool in tools if tool in _CLAUDE_TOOLS)
    return (f"--tools={own}", f"--allowedTools={own}", *_SHUT)


def _refuse_unenforced(message: str, hint: str) -> BadInput:
    return BadInput(message, code="tools_not_enforced", hint=hint)
