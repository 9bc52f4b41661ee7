"""What a model gives a tool, held against what the tool says that it takes.

Of JSON Schema it knows what our own tools say. A library would know all of it, and be the larger
part of the process that every team is cloned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from retinue.domain.conversation import Tool
from retinue.executors.files import Impossible


def fitting(tool: Tool, arguments: Mapping[str, object]) -> dict[str, Any]:
    """The arguments as the tool takes them.

    Raises:
        Impossible: they are not what it takes; names the first that is wrong.
    """
    return _members(tool.parameters, arguments, tool.name)


def _members(schema: Mapping[str, Any], given: Mapping[str, object], whose: str) -> dict[str, Any]:
    takes, required = schema["properties"], schema["required"]
    if unknown := [name for name in given if name not in takes]:
        raise Impossible(f"{whose} takes {', '.join(takes)}; not {unknown[0][:80]!a}")
    if missing := [name for name in required if name not in given]:
        raise Impossible(f"{whose} needs {missing[0]}")
    return {
        name: _fit(takes[name], value, name)
        for name, value in given.items()
        if value is not None or name in required  # some say so where they give nothing
    }


def _fit(schema: Mapping[str, Any], value: object, name: str) -> Any:
    match schema["type"], value:
        case "string", str():
            return value
        case "array", list():
            return [_fit(schema["items"], each, f"{name}[{at}]") for at, each in enumerate(value)]
        case "object", dict():
            return _members(schema, value, name)
        case "integer" | "number", int() | float() | str() if not isinstance(value, bool):
            return _number(schema["type"], value, name)
    raise _unfit(schema["type"], name)


def _number(kind: str, value: float | str, name: str) -> float:
    """Also where it stands in a text, as small models write it."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _unfit(kind, name) from None
    if not isfinite(number) or (kind == "integer" and not number.is_integer()):
        raise _unfit(kind, name)
    return int(number) if kind == "integer" else number


def _unfit(kind: str, name: str) -> Impossible:
    article = "an" if kind[0] in "aio" else "a"
    return Impossible(f"{name} should be {article} {kind}")
