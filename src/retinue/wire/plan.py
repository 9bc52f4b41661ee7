"""A plan as people write it, and as the run keeps it."""

from __future__ import annotations

from typing import Any

from retinue.domain.contract import REPORT_PATTERN
from retinue.domain.plan import Plan, PlanStep


def parse_plan(text: str, *, where: str) -> Plan:
    """A plan file's content, sound as a whole.

    Raises:
        BadInput: names the key or the steps, and the line where there is one.
    """
    from retinue.wire.forms import plan

    return plan.parse_plan(text, where=where)


def plan_from_json(document: object) -> Plan:
    """A plan that was submitted, sound as a whole.

    Raises:
        BadInput: names the key or the steps.
    """
    from retinue.wire.forms import plan

    return plan.plan_from_json(document)


def kept_plan(document: object) -> Plan:
    """The plan that a run kept: it was judged when the run began, if by other rules.

    Raises:
        BadInput: another version kept it, with keys that are not known here.
    """
    from retinue.wire.forms import plan

    return plan.kept_plan(document)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = {"goal": plan.goal, "on_failure": plan.on_failure}
    if plan.repository:
        document["base"] = {"repository": plan.repository, "ref": plan.ref}
    if plan.inspect:
        document["inspect"] = list(plan.inspect)
    if plan.max_file_mb is not None:
        document["max_file_mb"] = plan.max_file_mb
    if plan.report_path_pattern != REPORT_PATTERN:  # which not every version knows
        document["report_path_pattern"] = plan.report_path_pattern
    return document | {"steps": [_step_to_json(step) for step in plan.steps]}


def _step_to_json(step: PlanStep) -> dict[str, Any]:
    known = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(step).items()
    }
    return {name: value for name, value in known.items() if _says_something(name, value)}


def _says_something(name: str, value: object) -> bool:
    return value not in (None, "", []) or (name == "tools" and value is not None)
