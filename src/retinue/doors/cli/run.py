"""How a command line ends: an exit code, and one line for any error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from retinue.domain.errors import RetinueError
from retinue.doors.cli import render
from retinue.doors.cli.quick import quick
from retinue.doors.cli.session import Session

INTERRUPTED = 130


def run(argv: Sequence[str]) -> int:
    """The command was carried out, or one line says why not; the exit code tells which."""
    words = list(argv) or ["--help"]
    session = Session()
    code: int | None = None
    try:
        _accept_every_text()
        code = quick(words, session)
        if code is None:
            from retinue.doors.cli.commands import carry_out

            code = carry_out(words, session)
        render.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
        with suppress(OSError):
            render.flush()
    except BrokenPipeError:
        code = code or 0  # whoever read us has read enough; what came of it stands
    except Exception as error:
        code = _complain(_as_ours(error), session.json or _asked_for_json(words))
    return code


def _as_ours(error: Exception) -> RetinueError:
    """Any error with a code, a sentence and an exit code."""
    if isinstance(error, RetinueError):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        hint = "see that there is room, and access, where the output and the files are"
        return RetinueError(f"{where}{error.strerror or error}", code="io", hint=hint)
    hint = "this is a defect of retinue itself; steward.log in the root may say more"
    return RetinueError(f"{type(error).__name__}: {error}", code="internal", hint=hint)


def _complain(error: RetinueError, as_json: bool) -> int:
    """The error is on standard error in one line, and as JSON where that was asked for."""
    hint = f" ({render.one_line(error.hint)})" if error.hint else ""
    line = f"error[{render.one_line(error.code)}]: {render.one_line(error.message)}{hint}"
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
    problem = {"code": error.code, "message": error.message, "hint": error.hint}
    with suppress(OSError):
        if as_json:
            render.say_json({"success": False, "error": problem})
        render.flush()
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
