"""The command line: one process per command, loaded no further than the command needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from retinue.domain.errors import RetinueError
from retinue.doors.cli import render
from retinue.doors.cli.options import Lazy, Session

INTERRUPTED = 130
BAD_INPUT = 2

# name -> (module, what it does)
COMMANDS = {
    "task": ("task", "Create tasks, look at them, end them."),
    "subagent": ("subagent", "Spawn subagents, wait for them, read their results."),
    "gate": ("gate", "Answer the questions of blocked subagents."),
    "timeline": ("timeline", "What happened in a task, in order."),
    "steward": ("upkeep", "The resident process of a root."),
    "doctor": ("upkeep", "What subagents can rely on here."),
    "verify": ("upkeep", "Whether database, logs and folders agree."),
    "gc": ("upkeep", "Remove what closed tasks no longer need."),
    "demo": ("demo", "Three subagents at work, in a few seconds."),
}


def _say_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from retinue import __version__

        render.say(f"retinue {__version__}")
        context.exit()


commands = Lazy(
    "retinue",
    later=COMMANDS,
    help="Delegate work to subagents: child processes under contract, whose end is recorded.",
    example="retinue demo",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_say_version,
            help="Show the version.",
        )
    ],
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command was carried out, or one line says why not; the exit code tells which."""
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    session = Session()
    try:
        _accept_every_text()
        code = _carry_out(words, session)
        render.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = 0  # whoever read us has read enough
        _forget_output()
    except Exception as error:
        session.json = session.json or _asked_for_json(words)
        code = _complain(_as_ours(error), session.json)
    return code


def _carry_out(words: list[str], session: Session) -> int:
    if "_RETINUE_COMPLETE" in os.environ:
        commands.main(prog_name="retinue")
    try:
        with commands.make_context("retinue", words, obj=session) as context:
            code: Any = commands.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0


def _as_ours(error: Exception) -> RetinueError:
    """Any error with a code, a sentence and an exit code."""
    if isinstance(error, RetinueError):
        return error
    if isinstance(error, click.ClickException):
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
        return _Usage(
            error.format_message().rstrip("."), hint=f"try '{path} --help'" if path else ""
        )
    if isinstance(error, OSError):
        return RetinueError(f"{type(error).__name__}: {error}", code="io")
    return RetinueError(f"{type(error).__name__}: {error}", code="internal")


class _Usage(RetinueError):
    default_code = "usage"
    exit_code = BAD_INPUT


def _complain(error: RetinueError, as_json: bool) -> int:
    """The error is on standard error in one line, and as JSON where that was asked for."""
    hint = f" ({render.one_line(error.hint)})" if error.hint else ""
    line = f"error[{render.one_line(error.code)}]: {render.one_line(error.message)}{hint}"
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
    problem = {"code": error.code, "message": error.message, "hint": error.hint}
    try:
        if as_json:
            render.say_json({"success": False, "error": problem})
        render.flush()
    except OSError:
        _forget_output()
    return error.exit_code


def _asked_for_json(words: list[str]) -> bool:
    """Whether JSON was asked for on a line that could not be understood."""
    return "--json" in words[: words.index("--")] if "--" in words else "--json" in words


def _accept_every_text() -> None:
    """No text is an error, whatever the locale can write."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """What could not be written is not tried again when the interpreter ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
