"""A run of the benchmarks as a table, as JSON, and as a page of the documentation."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from measure import Figure, Sample
from plot import plot

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, PLOT = DOCS / "performance.md", DOCS / "images" / "growth.svg"

ABOVE = """# Performance

<!-- Made by `./dev bench --publish`; change bench/, not this page. -->

Each figure is measured beside a floor: the least work that does the job at all, or a program that
people use instead. Both are measured in the same run, in alternating rounds. Compare ratios between
machines, not times. The verdict compares the figure with its target; for each missed target, the
reason is below the table.

{machine}

{noise}

| what | floor | figure | compared | target | verdict | command |
|---|---|---|---|---|---|---|
"""
NO_REASON = "the reason is not known: measure again on a machine without other work, then profile."
GROWTH = """
## Growth

![how times and memory grow](images/growth.svg)

Both axes are logarithmic. A level curve does not depend on the number; a curve that rises by one
step for each step to the right is proportional to it.
"""


@dataclass(frozen=True)
class Run:
    """What was measured, by which benchmark, where, and how undisturbed."""

    machine: Mapping[str, str]
    full: bool
    calm: Sequence[float]  # how much of a core a busy loop got, before and after
    figures: Mapping[str, Sequence[Figure]] = field(default_factory=dict)


def machine() -> dict[str, str]:
    memory = Path("/proc/meminfo").read_text().split(maxsplit=2)[1]
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(memory) / 1024**2:.0f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def calm(seconds: float = 0.3) -> float:
    """Which share of a core a busy loop gets: less than one where others work beside it."""
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        pass
    return (time.process_time() - used) / (time.perf_counter() - began)


def line(figure: Figure) -> str:
    """One figure for a terminal."""
    ours = _sample(figure.ours) if figure.ours else ""
    floor = f"  floor: {_sample(figure.floor)}" if figure.floor else ""
    return (
        f"{figure.name:20} {_number(figure.value):>9} {figure.unit:56} {_target(figure):>9} "
        f"{figure.verdict:7}{ours}{floor}"
    ).rstrip()


def to_json(run: Run) -> str:
    return json.dumps(
        {
            "machine": run.machine,
            "full": run.full,
            "calm": run.calm,
            "figures": {
                name: [asdict(each) | {"verdict": each.verdict} for each in found]
                for name, found in run.figures.items()
            },
        },
        indent=2,
    )


def from_json(text: str) -> Run:
    document = json.loads(text)
    figures = {
        name: [_figure(each) for each in found] for name, found in document["figures"].items()
    }
    return Run(document["machine"], document["full"], document["calm"], figures)


def publish(run: Run) -> None:
    """The documentation shows this run."""
    PAGE.write_text(page(run))
    curves = [figure for found in run.figures.values() for figure in found if figure.curve]
    if curves:
        PLOT.write_text(plot(curves))


def page(run: Run) -> str:
    text = ABOVE.format(machine=_machine(run), noise=_noise(run))
    option = " --full" if run.full else ""
    missed = []
    for name, found in run.figures.items():
        for figure in found:
            text += _row(figure, f"./dev bench {name}{option}")
            if figure.verdict == "MISSED":
                missed.append(figure)
    if missed:
        text += "\n## What is missed, and why\n\n"
        text += "".join(
            f"- **{each.name}** ({_number(each.value)} {each.unit}, target {_target(each)}): "
            f"{each.note or NO_REASON}\n"
            for each in missed
        )
    return text + (GROWTH if any(f.curve for found in run.figures.values() for f in found) else "")


def _machine(run: Run) -> str:
    about = run.machine
    return (
        f"Measured on {about['date']}: {about['cores']} cores, {about['memory']} of memory, "
        f"{about['kernel']}, Python {about['python']}."
    )


def _noise(run: Run) -> str:
    before, after = run.calm
    size = "at its full size" if run.full else "at a small size"
    shares = f"{before:.0%} of a core before and {after:.0%} after"
    judged = (
        "so it had the machine nearly to itself; repeated runs still differ by a tenth to a third."
        if min(before, after) > 0.93
        else "so other work ran at the same time: times and tails are worse than on a quiet "
        "machine, and a target that is missed by little may be met there."
    )
    return f"Each benchmark was run {size}. A busy loop got {shares}, {judged}"


def _row(figure: Figure, command: str) -> str:
    cells = [
        figure.name,
        _sample(figure.floor) if figure.floor else "",
        _sample(figure.ours) if figure.ours else "",
        f"{_number(figure.value)} {figure.unit}",
        _target(figure),
        "**missed**" if figure.verdict == "MISSED" else figure.verdict,
        f"`{command}`",
    ]
    return f"| {' | '.join(cells)} |\n"


def _sample(sample: Sample) -> str:
    tail = f", p99 {_number(sample.p99)}" if sample.p99 is not None else ""
    return f"{sample.what}: {_number(sample.median)} {sample.unit}{tail}"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'>=' if figure.at_least else '<='} {_number(figure.target)}"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or not value else "< 0.001"


def _figure(document: Mapping[str, Any]) -> Figure:
    values = {key: value for key, value in document.items() if key != "verdict"}
    for side in ("ours", "floor"):
        values[side] = Sample(**values[side]) if values[side] else None
    values["curve"] = [(x, y) for x, y in values["curve"]]
    return Figure(**values)
