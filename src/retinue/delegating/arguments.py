"""The arguments of a tool call: refused with the place and the fix, or as the tool needs them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from retinue.domain.errors import BadInput
from retinue.domain.policy import MAX_SECONDS

REQUIRED = ("task", "context_paths")
TEXTS = ("task", "subagent_id", "subagent_type")
LISTS = ("context_paths", "context_files")
TASK_KEYS = (*TEXTS[:2], *LISTS, "subagent_type", "timeout_seconds")
PATHS = 'use [] for none, ["./"] for everything below the working folder, or single paths'


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(name, "a text that is not empty", value)
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _seconds(name: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_SECONDS:  # which no whole number is too large for
        raise _wrong(name, f"a number of seconds, at most {MAX_SECONDS}", value)
    return float(value)


def _tasks(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise BadInput(
            "tasks must be a list with at least one task",
            code="invalid_request",
            hint='for example [{"task": "…", "context_paths": []}]',
        )
    return [_task(index, item) for index, item in enumerate(value)]


Kind = Callable[[str, Any], Any]
# tool -> argument -> (what it must be, whether it must be there)
ARGUMENTS: dict[str, dict[str, tuple[Kind, bool]]] = {
    "spawn_subagents": {
        "tasks": (_tasks, True),
        "background": (_flag, False),
        "refine": (_flag, False),
        "idempotency_key": (_text, False),
    },
    "list_subagents": {},
    "continue_subagent": {
        "subagent_id": (_text, True),
        "message": (_text, True),
        "timeout_seconds": (_seconds, False),
    },
    "custom_tool__get_background_tool_status": {"job_id": (_text, True)},
    "custom_tool__get_background_tool_result": {"job_id": (_text, True)},
    "custom_tool__wait_for_background_tool": {"timeout_seconds": (_seconds, False)},
    "custom_tool__cancel_background_tool": {"job_id": (_text, True)},
    "custom_tool__list_background_tools": {"include_all": (_flag, False)},
}


def checked(tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, each of its kind and none too many; what is null counts as left out.

    Raises:
        BadInput: names the argument, within tasks its index, and what to change.
    """
    known = ARGUMENTS[tool]
    _require_known(f"{tool}: ", given, tuple(known))
    found = {name: value for name, value in given.items() if value is not None}
    for name, (_, required) in known.items():
        if required and name not in found:
            raise BadInput(f"{tool}: {name} is missing", code="invalid_request")
    return {name: known[name][0](name, value) for name, value in found.items()}


def _task(index: int, item: Any) -> dict[str, Any]:
    where = f"tasks[{index}]"
    if not isinstance(item, Mapping):
        raise _wrong(where, "an object", item)
    _require_known(f"{where}: ", item, TASK_KEYS)
    given = {name: value for name, value in item.items() if value is not None}
    for name in REQUIRED:
        if name not in given:
            hint = PATHS if name == "context_paths" else "say what the subagent is to do"
            raise BadInput(f"{where}: {name} is missing", code="invalid_request", hint=hint)
    for name in TEXTS:
        if name in given:
            _text(f"{where}.{name}", given[name])
    for name in LISTS:
        value = given.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise _wrong(f"{where}.{name}", "a list of paths", value, hint=PATHS)
    if "timeout_seconds" in given:
        _seconds(f"{where}.timeout_seconds", given["timeout_seconds"])
    return given


def _require_known(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            said = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
            raise BadInput(
                f"{where}unknown argument {str(name)[:40]!a}", code="invalid_request", hint=said
            )


def _wrong(name: str, expected: str, value: Any, hint: str = "") -> BadInput:
    shown = ascii(value)[:40]
    return BadInput(f"{name} must be {expected}, not {shown}", code="invalid_request", hint=hint)
