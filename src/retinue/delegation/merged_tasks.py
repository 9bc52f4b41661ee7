"""Tasks that work on the repository: as a plan, and what became of their output."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retinue.core.errors import BadInput
from retinue.delegation.result_view import MOST_FILES

MOST_PATCH_BYTES = 4 << 20
_PASSED = ("owns", "depends_on", "timeout_seconds", "agent", "model", "access")
_FILE = re.compile(r"diff --git a/(?P<name>.*) b/(?P=name)$")


def needs_plan(given: Mapping[str, Any]) -> bool:
    """Return whether a call needs a plan: its tasks depend on each other, or are applied."""
    return bool(given.get("apply")) or any("depends_on" in each for each in given["tasks"])


def to_plan(given: Mapping[str, Any]) -> str:
    """Return the tasks of a call as a plan file.

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
        step = {"description": task["task"], "refine": given.get("refine", True)}
        step |= {key: task[key] for key in _PASSED if key in task}
        step |= {"integration": task.get("integration", "merge")}
        step |= {"id": task["subagent_id"]} if "subagent_id" in task else {}
        step |= {"type": task["subagent_type"]} if "subagent_type" in task else {}
        steps.append(step)
    goal = "; ".join(" ".join(task["task"].split())[:60] for task in given["tasks"])
    plan = {"goal": goal[:200], "base": {"repository": "."}, "on_failure": "continue"}
    # JSON is YAML, which is how plans are written.
    return json.dumps(plan | {"steps": steps})


def describe_integration(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result whose integration says which files changed, and where the patch is."""
    joined = result.get("integration")
    logs = result.get("log_path")
    if not isinstance(joined, Mapping) or joined.get("mode") != "merge" or not logs:
        return dict(result)
    patch = Path(str(logs)).parent / "artifacts" / "changes.patch"
    view = {key: value for key, value in joined.items() if value}
    if stat := read_diffstat(patch):
        view["diffstat"] = stat
    if joined.get("reason") not in ("merged", "no_changes") and patch.is_file():
        view["patch"] = str(patch)
    return {**result, "integration": view}


def read_diffstat(patch: Path) -> list[str]:
    """Return the changed files of a patch with their added and removed lines."""
    try:
        with patch.open("rb") as file:
            lines = file.read(MOST_PATCH_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    found: list[list[Any]] = []
    inside = False  # a hunk, where lines are content and not headers
    for line in lines:
        if line.startswith("diff --git "):
            match = _FILE.match(line)
            found.append([match["name"] if match else line[11:], 0, 0])
            inside = False
        elif line.startswith("@@"):
            inside = True
        elif inside and found and line[:1] in ("+", "-"):
            found[-1][1 if line[0] == "+" else 2] += 1
    shown = [f"{name} +{added} -{removed}" for name, added, removed in found[:MOST_FILES]]
    more = len(found) - MOST_FILES
    return [*shown, f"… {more} more"] if more > 0 else shown
