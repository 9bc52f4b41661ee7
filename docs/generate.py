"""Writes the pages that are told from the code: commands, tools, errors, the states.

./dev docs           write them
./dev docs --check   say which are out of date
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from retinue.cli.command_table import commands
from retinue.core import errors
from retinue.core.errors import RetinueError
from retinue.core.lifecycle import MOVES
from retinue.delegation.tool_definitions import build_definitions
from retinue.delegation.tool_schemas import ToolLimits

DOCS = Path(__file__).parent
WIDTH = 96


def command_line() -> str:
    """Every command with its own help, as the terminal shows it."""
    parts = [
        "# Command line",
        "",
        "Made from `--help` of each command by `./dev docs`. `--root` and `--json` can stand",
        "before and after every verb. An error is one line, `error[code]: sentence (hint)`. The",
        "exit code names its kind, see [errors](errors.md).",
    ]
    for path, command in _walk("retinue", commands):
        context = click.Context(
            command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH
        )
        parts += ["", f"## `{path}`", "", "```text", command.get_help(context).strip(), "```"]
    return "\n".join(parts) + "\n"


def man_page() -> str:
    """The same help as a page for `man`."""
    lines = [
        '.TH RETINUE 1 "" "retinue" "User commands"',
        ".SH NAME",
        "retinue \\- delegate work to subagents",
    ]
    for path, command in _walk("retinue", commands):
        context = click.Context(
            command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH
        )
        text = command.get_help(context).strip().replace("\\", "\\e").replace("-", "\\-")
        # A leading dot or quote would be a request of roff.
        body = "\n".join(
            f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines()
        )
        lines += [f".SH {path.upper()}", ".nf", body, ".fi"]
    return "\n".join(lines) + "\n"


def _walk(path: str, command: click.Command) -> list[tuple[str, click.Command]]:
    found = [(path, command)]
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                found += _walk(f"{path} {name}", below)
    return found


def error_kinds() -> str:
    """The tree of errors with what a shell sees of each."""
    rows = []
    for kind in errors.KINDS.values():
        above = [each for each in kind.__mro__[1:] if issubclass(each, RetinueError)]
        parent = above[0].__name__ if above else ""
        code, exit_code = kind.default_code, kind.exit_code
        rows.append(
            f"| `{kind.__name__}` | {parent} | `{code}` | {exit_code} | {kind.default_hint} |"
        )
    return "\n".join(
        [
            "# Errors",
            "",
            "Made from the code by `./dev docs`. An error has a stable code, one sentence and a",
            "hint that names the next step. Many errors have a more specific code and hint than",
            "those of their kind below. The Python API raises these classes, which are names of",
            "`retinue` itself (`from retinue import NotFound`). The command line exits with these",
            "codes, and with 130 if it was interrupted. A hint names tools over MCP, calls in",
            "Python, and commands at a shell; `'retinue …'` always is a command for a shell.",
            "",
            "`missing_package`: an optional package is not installed; the hint is the command",
            "that installs it.",
            "",
            "| kind | is a | code | exit | hint |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "```text",
            (errors.__doc__ or "").strip(),
            "```",
            "",
        ]
    )


def states() -> str:
    """The legal moves, as a table."""
    rows = [
        f"| `{state}` | {', '.join(f'`{to}`' for to in sorted(to)) or 'nothing: it is the end'} |"
        for state, to in MOVES.items()
    ]
    return "\n".join(
        [
            "# States",
            "",
            "Made from the transition table by `./dev docs`. The states and the events that lead",
            "to them are explained in [lifecycle](../explanation/lifecycle.md).",
            "",
            "| from | to |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def tools() -> str:
    """The tools of the MCP server with what they take."""
    parts = [
        "# MCP tools",
        "",
        "Made from the descriptions and schemas of the tools by `./dev docs`, with the default",
        "configuration. [MCP](../how-to/mcp.md) says how to install the server. Every answer is",
        "structured content, and the same as text. The result of a background subagent comes once,",
        "with the next answer of any tool, as `background_results`.",
    ]
    for tool in build_definitions(ToolLimits()):
        parts += ["", f"## `{tool.name}`", "", *_quoted(tool.description), ""]
        parts += ["| argument | type | |", "|---|---|---|", *_arguments(tool.takes)]
        gives = ", ".join(f"`{name}`" for name in tool.gives["required"])
        parts += ["", f"Returns at least {gives}."]
    return "\n".join(parts) + "\n"


def _arguments(schema: Mapping[str, Any], above: str = "") -> list[str]:
    rows = []
    for name, each in schema["properties"].items():
        must = ", required" if name in schema.get("required", ()) else ""
        said = str(each.get("description", "")).replace("|", "\\|")
        rows.append(f"| `{above}{name}` | {each['type']}{must} | {said} |")
        if each.get("items", {}).get("properties"):
            rows += _arguments(each["items"], f"{above}{name}[].")
    return rows or ["| none | | |"]


def _quoted(text: str) -> list[str]:
    return [f"> {line}".rstrip() for line in text.splitlines()]


PAGES = {
    "man/retinue.1": man_page,
    "reference/mcp.md": tools,
    "reference/cli.md": command_line,
    "reference/errors.md": error_kinds,
    "reference/states.md": states,
}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    if check and stale:
        print(f"out of date, run ./dev docs: {', '.join(stale)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
