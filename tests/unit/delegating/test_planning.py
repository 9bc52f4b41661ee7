"""What the tool for plans says that it takes is what a plan's form takes."""

from __future__ import annotations

from typing import Any

from retinue.delegating.planning import PLAN
from retinue.wire.forms.plan import PlanModel

UNSAID = (None, "", [])  # defaults that tell a model nothing


def told(schema: Any, parts: dict[str, Any]) -> Any:
    """The same without references, titles, and what means that a key may be left out."""
    if isinstance(schema, list):
        return [told(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return told(parts[schema["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in schema:
        (only,) = (each for each in schema["anyOf"] if each != {"type": "null"})
        return told(only, parts)
    kept = {key: told(each, parts) for key, each in schema.items()}
    if kept.get("default") in UNSAID:
        kept.pop("default", None)
    for noise in ("title", "description", "maxLength"):
        if isinstance(kept.get(noise), str | int):  # a property of that name is an object
            del kept[noise]
    return kept


def test_the_tool_takes_what_the_form_takes() -> None:
    schema = PlanModel.model_json_schema()
    parts = schema.pop("$defs")
    assert told(schema, parts) == PLAN
