"""Figures of a root in the text format of Prometheus."""

from __future__ import annotations

import os
import resource

from retinue.steward.app import App
from retinue.version import VERSION

STATUSES = ("pending", "running", "blocked", "waiting_for_merge", "completed", "failed")
# Linux reports ru_maxrss in kilobytes.
KILOBYTE = 1024


def format_metrics(app: App) -> str:
    """Return the figures of the root; the cost grows with the number of tasks, not of events."""
    tasks = app.records.list_tasks(-1)
    subagents = dict.fromkeys((*STATUSES, "cancelled"), 0)
    tokens = {"input": 0, "output": 0}
    cost = 0.0
    for task in tasks:
        counts = app.records.count_by_status(task.id)
        for status in subagents:
            subagents[status] += getattr(counts, status)
        totals = app.records.sum_totals(task.id)
        tokens["input"] += totals.input_tokens + totals.root_input_tokens
        tokens["output"] += totals.output_tokens + totals.root_output_tokens
        cost += totals.estimated_cost + totals.root_cost
    states = {state: sum(task.state == state for task in tasks) for state in ("open", "closed")}
    used = resource.getrusage(resource.RUSAGE_SELF)
    parts = [
        _format("info", "gauge", "Version of the steward.", {f'version="{VERSION}"': 1}),
        _format("tasks", "gauge", "Tasks by state.", _label("state", states)),
        _format("subagents", "gauge", "Subagents by status.", _label("status", subagents)),
        _format("children", "gauge", "Running child processes.", {"": app.supervisor.alive}),
        _format(
            "events_total",
            "counter",
            "Events recorded in all tasks.",
            {"": sum(task.last_seq for task in tasks)},
        ),
        _format("tokens_total", "counter", "Tokens of all models.", _label("direction", tokens)),
        _format("cost_usd_total", "counter", "Estimated cost of all models.", {"": round(cost, 6)}),
        _format(
            "steward_cpu_seconds_total",
            "counter",
            "Processor time of the steward.",
            {"": round(used.ru_utime + used.ru_stime, 3)},
        ),
        _format(
            "steward_memory_bytes",
            "gauge",
            "Largest resident memory of the steward.",
            {"": used.ru_maxrss * KILOBYTE},
        ),
        _format("steward_pid", "gauge", "Process id of the steward.", {"": os.getpid()}),
    ]
    return "".join(parts)


def _label(name: str, values: dict[str, int]) -> dict[str, float]:
    return {f'{name}="{value}"': number for value, number in values.items()}


def _format(name: str, kind: str, says: str, values: dict[str, float]) -> str:
    full = f"retinue_{name}"
    lines = [f"# HELP {full} {says}", f"# TYPE {full} {kind}"]
    lines += [
        f"{full}{{{label}}} {it}" if label else f"{full} {it}" for label, it in values.items()
    ]
    return "\n".join(lines) + "\n"
