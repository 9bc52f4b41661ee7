"""Parameters of a verb. Each is taken by name and type; unknown ones are refused.

A parameter may name a task or subagent by the beginning of its id; it is resolved here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retinue.core.errors import BadInput, NotFound
from retinue.core.ids import LAST, TaskId, is_reference
from retinue.core.safe_text import clean_text
from retinue.formats import steward_protocol
from retinue.store.reads import Records

# Largest integer that all JSON readers represent exactly
LARGEST = 2**53
LIST_LIMIT = 50
MOST = 1_000_000


class Params:
    """Parameters of one request; `refuse_unknown` reports those that no verb took."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise BadInput("params must be an object", code="invalid_request")
        self._left = dict(given)
        self._by = self._left.pop("by", "user")
        # Undoes the delivery if the response cannot be sent
        self.on_lost: Callable[[], None] | None = None
        # The connection that the request came over
        self.client: object = None

    def revoke_answer(self) -> None:
        """Undo the delivery of a response that could not be sent; at most once."""
        # Cleared first: the connection and the request may both report the loss.
        undo = self.on_lost
        self.on_lost = None
        if undo is not None:
            undo()

    def take_text(self, name: str, default: str | None = None) -> str:
        """Return the text, with lone surrogates replaced: they cannot be stored."""
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            raise self._make_error(name, "a string", value)
        return clean_text(value)

    def take_task(self) -> TaskId:
        return TaskId(self.take_text("task"))

    def peek_task(self) -> TaskId:
        """Return the task id without taking it; empty if there is none."""
        return TaskId(str(self._left.get("task", "")))

    def take_number(self, name: str) -> float | None:
        value = self._left.pop(name, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self._make_error(name, "a number", value)
        return value

    def take_count(self, name: str, default: int, most: int) -> int:
        value = self._left.pop(name, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self._make_error(name, f"a whole number from 0 to {most}", value)
        return value

    def take_flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise self._make_error(name, "true or false", value)
        return value

    def peek(self, name: str) -> Any:
        """Return a parameter without taking it."""
        return self._left.get(name)

    def replace_text(self, name: str, value: str) -> None:
        """Replace a parameter that was not taken yet."""
        self._left[name] = value

    def take_raw(self, name: str) -> Any:
        return self._left.pop(name, None)

    def get_actor(self) -> str:
        """Return who sent the request: `user` (a shell) or `parent` (an agent)."""
        if self._by not in ("user", "parent"):
            raise self._make_error("by", "user or parent", self._by)
        return str(self._by)

    def refuse_unknown(self) -> None:
        """Raises:
        BadInput: the request has a parameter that the verb does not know.
        """
        if self._left:
            name = next(iter(self._left))
            said = f"unknown parameter {str(name)[:40]!a}"
            hint = steward_protocol.OTHER_VERSION_HINT
            raise BadInput(said, code="invalid_request", hint=hint)

    @staticmethod
    def _make_error(name: str, expected: str, value: Any) -> BadInput:
        shown = ascii(value)[:40]
        return BadInput(f"{name} must be {expected}, not {shown}", code="invalid_request")


def parse_folder(text: str, name: str = "cwd") -> Path:
    """Raises:
    BadInput: the path is not absolute or not a folder.
    """
    path = Path(text)
    if not path.is_absolute() or not path.is_dir():
        raise BadInput(f"{name} must be an existing folder", code="invalid_request")
    return path


def take_texts(params: Params, name: str, what: str = "ids") -> list[str]:
    """Return a list of strings; empty if none was sent.

    Raises:
        BadInput: the value is not a list of strings.
    """
    given = params.take_raw(name) or []
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise BadInput(f"{name} must be a list of {what}", code="invalid_request")
    return given


def take_mapping(params: Params, name: str) -> dict[str, str]:
    """Return a mapping of names to texts; empty if none was sent.

    Raises:
        BadInput: the value is not such a mapping.
    """
    given = params.take_raw(name) or {}
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise BadInput(f"{name} must be a mapping of names to texts", code="invalid_request")
    return {clean_text(each): clean_text(value) for each, value in given.items()}


def take_closed_limit(params: Params, default: int = LIST_LIMIT, most: int = MOST) -> int | None:
    """Return how many closed subagents to list; None with `all`."""
    limit = params.take_count("limit", default, most)
    return None if params.take_flag("all") else limit


MOST_NAMED = 5


def resolve_ids(records: Records, params: Params) -> None:
    """Replace short forms of `task` and `subagent` by the ids they stand for.

    A text that stands for nothing stays as it is: the verb reports it.

    Raises:
        BadInput: a prefix fits several ids.
    """
    task = params.peek("task")
    if not isinstance(task, str) or not is_reference(task):
        return
    found = _resolve_task(records, task)
    if found != task:
        params.replace_text("task", found)
    subagent = params.peek("subagent")
    if isinstance(subagent, str) and is_reference(subagent):
        named = _resolve_subagent(records, TaskId(found), subagent)
        if named != subagent:
            params.replace_text("subagent", named)


def _resolve_task(records: Records, text: str) -> str:
    if text == LAST:
        newest = records.list_tasks(1)
        return newest[0].id if newest else text
    try:
        records.get_task(TaskId(text))
        return text
    except NotFound:
        return _choose(text, records.list_task_ids(text, MOST_NAMED + 1), "task")


def _resolve_subagent(records: Records, task: TaskId, text: str) -> str:
    if text == LAST:
        newest = records.list_newest(task, 1)
        return newest[0].id if newest else text
    try:
        records.get_subagent(task, text)
        return text
    except NotFound:
        return _choose(text, records.list_subagent_ids(task, text, MOST_NAMED + 1), "subagent")


def _choose(text: str, found: list[str], what: str) -> str:
    """Return the only id found; the text itself if there is none.

    Raises:
        BadInput: there are several.
    """
    if len(found) > 1:
        more = ", ..." if len(found) > MOST_NAMED else ""
        raise BadInput(
            f"several {what} ids begin with {text[:80]!a}: {', '.join(found[:MOST_NAMED])}{more}",
            code="ambiguous_id",
            hint="give more of the id",
        )
    return found[0] if found else text
