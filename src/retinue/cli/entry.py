"""Entry point of the command line: exit codes and error reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from retinue.cli import render
from retinue.cli.fast_path import has_no_command, run_fast_path
from retinue.cli.steward_session import CliSession
from retinue.core.errors import RetinueError

INTERRUPTED = 130


def run(argv: Sequence[str]) -> int:
    """Run the command, report any error in one line, and return the exit code."""
    words = list(argv)
    session = CliSession()
    code: int | None = None
    try:
        _escape_unencodable_output()
        code = run_fast_path(words, session)
        # A shell that asks for completions gives no words.
        asks = "_RETINUE_COMPLETE" in os.environ
        if code is None and not asks and has_no_command(words, session):
            from retinue.cli.overview import show_overview

            show_overview(session)
            code = 0
        if code is None:
            from retinue.cli.command_table import carry_out

            code = carry_out(words, session)
        render.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
        # Print what the command had written before it was interrupted.
        with suppress(OSError):
            render.flush()
    except BrokenPipeError:
        # The reader closed the pipe (`retinue ... | head`). That does not change the outcome.
        code = code or 0
    except Exception as error:
        code = _report_error(_as_ours(error), session.json or _is_json_requested(words))
    return code


def _as_ours(error: Exception) -> RetinueError:
    """Convert any exception to an error with a code, a message and an exit code."""
    if isinstance(error, RetinueError):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        hint = "check disk space and permissions of the output and the files"
        return RetinueError(f"{where}{error.strerror or error}", code="io", hint=hint)
    hint = "this is a bug in retinue; steward.log in the root may have details"
    return RetinueError(f"{type(error).__name__}: {error}", code="internal", hint=hint)


def _report_error(error: RetinueError, as_json: bool) -> int:
    """Print the error on standard error, and as JSON on standard output if requested."""
    hint = f" ({render.to_one_line(error.hint)})" if error.hint else ""
    line = f"error[{render.to_one_line(error.code)}]: {render.to_one_line(error.message)}{hint}"
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
    problem = {"code": error.code, "message": error.message, "hint": error.hint}
    with suppress(OSError):
        if as_json:
            render.print_json({"success": False, "error": problem})
        render.flush()
    return error.exit_code


def _is_json_requested(words: list[str]) -> bool:
    """Return whether a command line that failed to parse contains `--json`."""
    # Words after `--` belong to the subagent's command.
    return "--json" in words[: words.index("--")] if "--" in words else "--json" in words


def _escape_unencodable_output() -> None:
    """Print characters that the locale cannot encode as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
