"""Plans by tool calls: the submit_plan tool, and tasks of a spawn that become a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.contract import REPORT_PATTERN
from retinue.core.errors import BadInput
from retinue.delegation.answer_text import Document, format_batch, quote_on_one_line
from retinue.delegation.result_view import AnswerBudget
from retinue.delegation.tool_definitions import FETCH
from retinue.delegation.tool_schemas import (
    FLAG,
    NUMBER,
    TEXT,
    Schema,
    ToolLimits,
    build_input_schema,
)

SUBMIT = "submit_plan"
SUBMIT_DESCRIPTION = """Have a whole plan carried out: steps that depend on each other, done by \
subagents and joined in order. Use it instead of spawn_subagents when steps build on each other, \
or when what they change belongs into the project's git repository.

Each step without a command is done by a team, which reads its description and nothing else: say \
all it needs. With base, each step works on a private clone of the project that has what it \
depends on; what it changed is merged on a branch of its own, never into what is checked out. \
Steps that could work at once need owns, the paths that each may change, and may not share any. \
Without base nothing is merged; copy puts files into the task's shared output. base.repository is \
the project's own repository. Leave out destination, allow, secrets, and a max_file_mb above 50: \
these are for people, and a plan of yours that has them is refused.

The call returns when the plan has ended: the results, the branch, and what was never started. A \
plan with anything wrong in it is refused whole, with what to change; then submit it again."""

_TEXTS: Schema = {"type": "array", "items": TEXT}
_STEP = build_input_schema(
    id=TEXT,
    title=TEXT,
    description=TEXT,
    success_criteria=_TEXTS,
    owns=_TEXTS,
    depends_on=_TEXTS,
    tools=_TEXTS,
    command=_TEXTS,
    type=TEXT,
    refine=FLAG | {"default": True},
    verify=_TEXTS,
    integration=TEXT | {"enum": ["merge", "copy", "none"]},
    destination=TEXT,
    timeout_seconds=NUMBER,
    retries={"type": "integer"},
    allow={"type": "array", "items": TEXT | {"enum": ["links", "submodules", "secrets"]}},
    agent=TEXT,
    model=TEXT,
    access=TEXT | {"enum": ["read", "write"]},
    answer_schema={"type": "object", "additionalProperties": True},
    on=TEXT,
    env={"type": "object", "additionalProperties": TEXT},
    secrets=_TEXTS,
    redact=FLAG | {"default": False},
    approve=FLAG | {"default": False},
    reviews=TEXT,
    candidate_of=TEXT,
    votes_on=TEXT,
)
# Written out instead of derived from the plan file's model: that would import pydantic into
# every child. A unit test compares the two.
PLAN = build_input_schema(
    required=("goal", "steps"),
    goal=TEXT,
    base=build_input_schema(repository=TEXT | {"default": "."}, ref=TEXT | {"default": "HEAD"}),
    on_failure=TEXT | {"enum": ["stop", "continue"], "default": "stop"},
    inspect=_TEXTS,
    max_file_mb=NUMBER,
    report_path_pattern=TEXT | {"default": REPORT_PATTERN},
    steps={"type": "array", "items": _STEP},
)


def format_plan_end(end: Document) -> str:
    """Return the outcome of a plan as text for the agent that submitted it."""
    parts = []
    if end.get("branch"):
        parts.append(f"joined on the branch {quote_on_one_line(end['branch'])}")
    for name, why in (end.get("not_started") or {}).items():
        parts.append(f"[{quote_on_one_line(name)}] not started: {quote_on_one_line(why)}")
    for result in end["results"]:
        joined = result.get("integration") or {}
        if joined.get("reason"):
            parts.append(
                f"[{quote_on_one_line(result['subagent_id'])}] "
                f"{quote_on_one_line(joined['reason'])}"
            )
    budget = AnswerBudget(ToolLimits().answer_characters, FETCH)
    batch = {**end, "results": budget.shape_results(end["results"])}
    return "\n".join([*parts, "", format_batch(batch)])


_PASSED = ("owns", "depends_on", "timeout_seconds", "agent", "model", "access", "on")


def needs_plan(given: Mapping[str, Any]) -> bool:
    """Return whether a call needs a plan: its tasks depend on each other, or are applied.

    The arguments need not have been checked.
    """
    tasks = given["tasks"]
    listed = isinstance(tasks, list)
    depends = listed and any("depends_on" in task for task in tasks if isinstance(task, Mapping))
    return bool(given.get("apply")) or depends


def to_plan(given: Mapping[str, Any]) -> str:
    """Return the tasks of a call, which all have ids, as a plan file.

    Raises:
        BadInput: a task asks for what a step of a plan cannot have, or depends on none of these.
    """
    steps = []
    known = {task["subagent_id"] for task in given["tasks"]}
    for number, task in enumerate(given["tasks"]):
        for name in task.get("depends_on", ()):
            if name not in known:
                raise BadInput(
                    f"tasks[{number}].depends_on: no task of this call has the subagent_id "
                    f"{name[:80]!a}",
                    code="invalid_request",
                    hint="give the tasks a subagent_id each, and name these",
                )
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
