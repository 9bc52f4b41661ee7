"""The schema of submit_plan equals that of plan files."""

from __future__ import annotations

from typing import Any

from retinue.delegation.plan_tool import PLAN
from retinue.formats.schemas.plan_schema import PlanModel

UNSAID = (None, "", [])  # defaults that tell a model nothing


def told(schema: Any, parts: dict[str, Any]) -> Any:
    """Return the schema without references, titles and null alternatives."""
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


def test_the_plan_schema_equals_that_of_plan_files() -> None:
    schema = PlanModel.model_json_schema()
    parts = schema.pop("$defs")
    assert told(schema, parts) == PLAN
