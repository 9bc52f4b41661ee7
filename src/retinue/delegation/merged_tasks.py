"""Tasks that work on the repository: as a plan, and what became of their output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.errors import BadInput

_PASSED = ("owns", "depends_on", "timeout_seconds", "agent", "model", "access")


def needs_plan(given: Mapping[str, Any]) -> bool:
    """Return whether a call needs a plan: its tasks depend on each other, or are applied."""
    return bool(given.get("apply")) or any("depends_on" in each for each in given["tasks"])


def to_plan(given: Mapping[str, Any]) -> str:
    """Return the tasks of a call, which all have ids, as a plan file.

    Raises:
        BadInput: a task asks for what a step of a plan cannot have.
    """
    steps = []
    for number, task in enumerate(given["tasks"]):
        # A step sees the repository itself, so "./" adds nothing.
        if task.get("context_files") or set(task["context_paths"]) - {"./", "."}:
            raise BadInput(
                f"tasks[{number}]: with depends_on or apply, a task sees the repository alone",
                code="invalid_request",
                hint="use context_paths: [], and name files of the repository in the task",
            )
        step = {
            "id": task["subagent_id"],
            "description": task["task"],
            "refine": given.get("refine", True),
        }
        step |= {key: task[key] for key in _PASSED if key in task}
        step |= {"integration": task.get("integration", "merge")}
        step |= {"type": task["subagent_type"]} if "subagent_type" in task else {}
        steps.append(step)
    goal = "; ".join(" ".join(task["task"].split())[:60] for task in given["tasks"])
    plan = {"goal": goal[:200], "base": {"repository": "."}, "on_failure": "continue"}
    # JSON is YAML, which is how plans are written.
    return json.dumps(plan | {"steps": steps})


def describe_background_plan(shown: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the answer to a background call whose tasks run as the plan of the shown task."""
    folder = f"{shown['path']}/agents"
    known = {row["agentInstance"]: row["status"] for row in shown["subagents"]}
    rows = [
        {
            "subagent_id": name,
            "status": known.get(name, "pending"),
            "workspace": f"{folder}/{name}/workspace",
            "status_file": f"{folder}/{name}/full_logs/status.json",
        }
        for name in names
    ]
    note = "The tasks run in order; their results come with your next calls."
    return {"success": True, "mode": "background", "subagents": rows, "note": note}
