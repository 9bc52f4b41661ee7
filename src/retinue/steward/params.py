"""The parameters of a verb: each is asked for by name and kind, none is left over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retinue.domain.errors import BadInput
from retinue.domain.ids import TaskId
from retinue.domain.result import clean_text
from retinue.wire import protocol

LARGEST = 2**53  # that every reader of JSON takes for the same number


class Params:
    """What a caller sent. Whatever nobody asked for is an error, not ignored."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise BadInput("params must be an object", code="invalid_request")
        self._left = dict(given)
        self._by = self._left.pop("by", "user")
        self.if_lost: Callable[[], None] | None = None  # undoes an answer that nobody received
        self.client: object = None  # whose connection it came over

    def lost(self) -> None:
        """An answer that nobody received has been undone; once."""
        undo, self.if_lost = self.if_lost, None
        if undo is not None:
            undo()

    def text(self, name: str, default: str | None = None) -> str:
        """The text, marked where it holds half a character that nothing could store."""
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        return clean_text(value)

    def task(self) -> TaskId:
        return TaskId(self.text("task"))

    def about(self) -> TaskId:
        """Which task it may be about; nothing is asked for by that."""
        return TaskId(str(self._left.get("task", "")))

    def number(self, name: str) -> float | None:
        value = self._left.pop(name, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self._wrong(name, "a number", value)
        return value

    def count(self, name: str, default: int, most: int) -> int:
        value = self._left.pop(name, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self._wrong(name, f"a whole number from 0 to {most}", value)
        return value

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def raw(self, name: str) -> Any:
        return self._left.pop(name, None)

    def by(self) -> str:
        """Who asks: a person at a shell, or the agent that the subagents belong to."""
        if self._by not in ("user", "parent"):
            raise self._wrong("by", "user or parent", self._by)
        return str(self._by)

    def done(self) -> None:
        """Raises:
        BadInput: something was sent that the verb does not know.
        """
        if self._left:
            name = next(iter(self._left))
            said, hint = f"unknown parameter {str(name)[:40]!a}", protocol.OTHER_VERSION
            raise BadInput(said, code="invalid_request", hint=hint)

    @staticmethod
    def _wrong(name: str, expected: str, value: Any) -> BadInput:
        shown = ascii(value)[:40]
        return BadInput(f"{name} must be {expected}, not {shown}", code="invalid_request")


def folder_of(text: str, name: str = "cwd") -> Path:
    """Raises:
    BadInput: it is no folder that is there.
    """
    path = Path(text)
    if not path.is_absolute() or not path.is_dir():
        raise BadInput(f"{name} must be an existing folder", code="invalid_request")
    return path


def texts_of(params: Params, name: str, what: str = "ids") -> list[str]:
    """Those that were sent, if any were.

    Raises:
        BadInput: it is no list of them.
    """
    given = params.raw(name) or []
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise BadInput(f"{name} must be a list of {what}", code="invalid_request")
    return given
