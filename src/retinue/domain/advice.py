"""What people are told beside an error whose words do not say what to do."""

from __future__ import annotations

NO_OUTPUT = "no output"
ADVICE = {NO_OUTPUT: "a command has to print its answer, or write it to $RETINUE_ANSWER"}


def advised(error: str) -> str:
    """The error of a result, and what to do about it where that is known."""
    return f"{error}: {ADVICE[error]}" if error in ADVICE else error
