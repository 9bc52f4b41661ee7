"""Plans as documents: files, submitted plans, and the stored plan of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.contract import REPORT_PATTERN
from retinue.core.plan import Plan, PlanStep


def parse_plan(text: str, *, where: str, variables: Mapping[str, str] | None = None) -> Plan:
    """Parse and check a plan file.

    Args:
        variables: values that replace those of its `vars`.

    Raises:
        BadInput: names the key or the steps, and the line if known.
    """
    from retinue.formats.schemas import plan_schema as plan

    return plan.parse_plan(text, where=where, variables=variables or {})


def plan_from_json(document: object) -> Plan:
    """Parse and check a submitted plan.

    Raises:
        BadInput: names the key or the steps.
    """
    from retinue.formats.schemas import plan_schema as plan

    return plan.plan_from_json(document)


def load_stored_plan(document: object) -> Plan:
    """Parse the stored plan of a run; it was checked when the run began.

    Raises:
        BadInput: another version stored it with keys that this one does not know.
    """
    from retinue.formats.schemas import plan_schema as plan

    return plan.read_stored_plan(document)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = {"goal": plan.goal, "on_failure": plan.on_failure}
    if plan.repository:
        document["base"] = {"repository": plan.repository, "ref": plan.ref}
    if plan.inspect:
        document["inspect"] = list(plan.inspect)
    if plan.max_file_mb is not None:
        document["max_file_mb"] = plan.max_file_mb
    # Earlier versions do not know this key, so the default is left out.
    if plan.report_path_pattern != REPORT_PATTERN:
        document["report_path_pattern"] = plan.report_path_pattern
    return document | {"steps": [_step_to_json(step) for step in plan.steps]}


def _step_to_json(step: PlanStep) -> dict[str, Any]:
    known = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(step).items()
    }
    # A plan file names one label.
    known["on"] = step.on[0] if step.on else ""
    return {name: value for name, value in known.items() if _has_value(name, value)}


def _has_value(name: str, value: object) -> bool:
    # An empty list of tools means no tools; None means the default tools.
    if name in ("approve", "redact"):
        return value is True  # earlier versions do not know these keys
    return value not in (None, "", [], {}) or (name == "tools" and value is not None)
