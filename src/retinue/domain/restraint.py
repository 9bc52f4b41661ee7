"""Coding agents that are run as commands: how the tools of a contract become words to which their
own program holds them.

claude     takes the whole list of what its model may call; nothing else is offered or carried out
codex      can be told what to leave out, tool by tool, so a new version may have more
gemini     reads such a list from a file of policies
opencode   runs plugins that lie in its workspace, whatever it was told
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import BadInput

_CLAUDE_TOOLS = {
    "read_file": "Read",
    "write_file": "Write",
    "edit_file": "Edit",
    "list_files": "Glob",
    "search_files": "Grep",
    "run_command": "Bash",
}
_CLAUDE_PRINTS = {"-p", "--print"}  # else it has a screen, or is another program than the agent
_CLAUDE_OPTIONS = _CLAUDE_PRINTS | {  # that give it no tools beside those of the contract
    *("--model", "--fallback-model", "--effort", "--max-turns", "--max-budget-usd"),
    *("--input-format", "--output-format", "--json-schema", "--verbose"),
    *("--include-partial-messages", "--no-session-persistence"),
    *("--session-id", "--resume", "-r", "--continue", "-c", "--fork-session"),
    *("--system-prompt", "--append-system-prompt", "--add-dir"),
    *("--permission-mode", "--dangerously-skip-permissions"),
}
# No servers and no settings but an administrator's: both could bring programs to run, and the
# workspace is a place where its model may write them.
_SHUT = ("--strict-mcp-config", "--setting-sources=")
_LOOSE = {
    "codex": "it can be told which tools to leave out, and not which to have",
    "gemini": "it takes them from a file of policies alone",
    "opencode": "it runs the plugins that it finds in its workspace",
}
_LEAVE_OUT = "leave the tools out: its boundary and context decide what a command can reach"


def restrained(command: Sequence[str], tools: Sequence[str], *, hands_on: bool) -> tuple[str, ...]:
    """The command with what makes its own program refuse every tool but these.

    A command that is no coding agent has no tools. Those named to one that may delegate are also
    what it can hand on, so they need not be its own.

    Raises:
        BadInput: nothing would hold it to them.
    """
    place = _program(command)
    name = command[place].rpartition("/")[2]
    if name in _LOOSE:
        named = f"tools, such as {tools[0]}" if tools else "having no tools"
        raise _not_enforced(f"{name} cannot be held to {named}: {_LOOSE[name]}", _LEAVE_OUT)
    if name == "claude":
        words = _claude(command[place + 1 :], tools, hands_on=hands_on)
        return (*command[: place + 1], *words, *command[place + 1 :])
    if tools and not hands_on:
        raise _not_enforced(
            f"a command cannot be held to tools, such as {tools[0]}",
            f"{_LEAVE_OUT}; claude can be held to them",
        )
    return tuple(command)


def own_tools(command: Sequence[str]) -> frozenset[str] | None:
    """What the tools are called to which its own program holds it; None where it does not."""
    if _SHUT[0] not in command:
        return None
    place = command.index(_SHUT[0])
    listed = command[place - 1].partition("=")[2]
    is_held = tuple(command[place : place + len(_SHUT)]) == _SHUT
    return frozenset(filter(None, listed.split(","))) if is_held else None


def _program(command: Sequence[str]) -> int:
    """Where in the command its program is named: behind the variables that env sets, if any."""
    place = 0
    if command[0].rpartition("/")[2] == "env":
        place = next((at for at, word in enumerate(command) if at and "=" not in word), 0)
    return place


def _claude(given: Sequence[str], tools: Sequence[str], *, hands_on: bool) -> tuple[str, ...]:
    options = [word.partition("=")[0] for word in given if word.startswith("-")]
    if not _CLAUDE_PRINTS & set(options):
        raise _not_enforced("claude is held to tools only where it prints", "give it --print")
    for option in options:
        if option not in _CLAUDE_OPTIONS:
            raise _not_enforced(
                f"claude is not held to tools with the option {option[:40]!a}",
                f"leave it out, or the tools; it can have {', '.join(sorted(_CLAUDE_OPTIONS))}",
            )
    for tool in tools:
        if tool not in _CLAUDE_TOOLS and not hands_on:
            raise _not_enforced(
                f"claude has no tool that is {tool[:40]}",
                f"it can be granted {', '.join(_CLAUDE_TOOLS)}",
            )
    own = ",".join(_CLAUDE_TOOLS[tool] for tool in tools if tool in _CLAUDE_TOOLS)
    return (f"--tools={own}", f"--allowedTools={own}", *_SHUT)


def _not_enforced(message: str, hint: str) -> BadInput:
    return BadInput(message, code="tools_not_enforced", hint=hint)
