"""Figures of a root, for Prometheus and OpenTelemetry."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from retinue.steward.app import App
from retinue.version import VERSION

STATUSES = (
    "pending",
    "running",
    "blocked",
    "waiting_for_merge",
    "completed",
    "failed",
    "cancelled",
)
# Linux reports ru_maxrss in kilobytes.
KILOBYTE = 1024


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A named figure, with one value for each value of its label."""

    name: str
    kind: Literal["gauge", "counter"]
    description: str
    label: str = ""
    values: Mapping[str, float]


def measure_root(app: App) -> list[Metric]:
    """Return the figures of the root; the cost grows with the number of tasks, not of events."""
    tasks = app.records.list_tasks(-1)
    subagents = dict.fromkeys(STATUSES, 0)
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
    return [
        Metric(
            name="info",
            kind="gauge",
            description="Version of the steward.",
            label="version",
            values={VERSION: 1},
        ),
        Metric(
            name="tasks",
            kind="gauge",
            description="Tasks by state.",
            label="state",
            values=states,
        ),
        Metric(
            name="subagents",
            kind="gauge",
            description="Subagents by status.",
            label="status",
            values=subagents,
        ),
        Metric(
            name="children",
            kind="gauge",
            description="Running child processes.",
            values={"": app.supervisor.alive},
        ),
        Metric(
            name="events_total",
            kind="counter",
            description="Events recorded in all tasks.",
            values={"": sum(task.last_seq for task in tasks)},
        ),
        Metric(
            name="tokens_total",
            kind="counter",
            description="Tokens of all models.",
            label="direction",
            values=tokens,
        ),
        Metric(
            name="cost_usd_total",
            kind="counter",
            description="Estimated cost of all models.",
            values={"": round(cost, 6)},
        ),
        Metric(
            name="steward_cpu_seconds_total",
            kind="counter",
            description="Processor time of the steward.",
            values={"": round(used.ru_utime + used.ru_stime, 3)},
        ),
        Metric(
            name="steward_memory_bytes",
            kind="gauge",
            description="Largest resident memory of the steward.",
            values={"": used.ru_maxrss * KILOBYTE},
        ),
        Metric(
            name="steward_pid",
            kind="gauge",
            description="Process id of the steward.",
            values={"": os.getpid()},
        ),
    ]


def format_for_prometheus(metrics: Sequence[Metric]) -> str:
    """Return the text format of Prometheus."""
    lines: list[str] = []
    for metric in metrics:
        full = f"retinue_{metric.name}"
        lines += [f"# HELP {full} {metric.description}", f"# TYPE {full} {metric.kind}"]
        for value, number in metric.values.items():
            label = f'{{{metric.label}="{value}"}}' if metric.label else ""
            lines.append(f"{full}{label} {number}")
    return "\n".join(lines) + "\n"
