"""All of a task's results side by side: for programs, and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retinue.domain.advice import advised
from retinue.domain.result import Result
from retinue.domain.subagent import Subagent, Task
from retinue.wire.result import batch_to_json, result_to_json

Part = tuple[Subagent, Result | None]


def joined_to_json(
    task: Task, outcome: str, parts: Sequence[Part], details: Mapping[str, object]
) -> dict[str, Any]:
    """Every part in its place; `details` are those of the run's end."""
    results = [result for _, result in parts if result is not None]
    unsettled = [subagent.standing.status for subagent, result in parts if result is None]
    summary: dict[str, int] = batch_to_json(results)["summary"] | {"total": len(parts)}
    summary |= {word: unsettled.count(word) for word in ("pending", "running")}
    never = never_started(details)
    return {
        "task_id": task.id,
        "title": task.title,
        "run_id": task.run,
        "outcome": outcome,
        "subagents": [
            {
                "agentInstance": subagent.id,
                "step_idx": subagent.step_idx,
                "title": subagent.contract.step.title,
                "status": subagent.standing.status,
                "result": result_to_json(result) if result else None,
            }
            for subagent, result in parts
        ],
        "not_started": never,
        "summary": summary | {"not_started": len(never)},
    }


def never_started(details: Mapping[str, object]) -> dict[str, str]:
    """The planned steps that a run ended without, each with why."""
    found = details.get("not_started")
    return {str(name): str(why) for name, why in found.items()} if isinstance(found, dict) else {}


def joined_to_markdown(document: dict[str, Any]) -> str:
    lines = [f"# {document['title']}", "", f"Run {document['run_id']}: {document['outcome']}", ""]
    for part in document["subagents"]:
        result = part["result"] or {}
        lines += [f"## {part['step_idx']}. {part['agentInstance']}: {part['status']}", ""]
        lines += [part["title"], ""]
        if result.get("error"):
            lines += [f"Error: {advised(result['error'])}", ""]
        if result.get("answer"):
            lines += [_quoted(result["answer"]), ""]
        if result:
            lines += [f"Workspace: `{result['workspace']}`", ""]
    for name, why in document["not_started"].items():
        lines += [f"## {name}: not started", "", why, ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A child's words as a quotation: whatever is in them, they start no heading of ours."""
    return "\n".join(f"> {line}" for line in text.splitlines())
