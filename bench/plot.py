"""Growth curves as a small picture: one panel for each, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from measure import Figure

ACROSS, WIDE, HIGH = 3, 260, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 26, 30, 36
STYLE = (
    "text{font:11px sans-serif;fill:#24292f}.name{font-weight:bold}.axis{stroke:#8c959f}"
    ".grid{stroke:#d0d7de;stroke-dasharray:2 3}"
    ".line{stroke:#0969da;fill:none;stroke-width:2}.dot{fill:#0969da}"
)


def plot(figures: Sequence[Figure]) -> str:
    rows = math.ceil(len(figures) / ACROSS)
    width, height = ACROSS * WIDE, rows * HIGH
    panels = "".join(
        f'<g transform="translate({number % ACROSS * WIDE} {number // ACROSS * HIGH})">'
        f"{_panel(figure)}</g>\n"
        for number, figure in enumerate(figures)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="growth curves">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{panels}</svg>\n'
    )


def _panel(figure: Figure) -> str:
    xs, ys = _decades([x for x, _ in figure.curve]), _decades([y for _, y in figure.curve])
    points = [(_across(x, xs), _up(y, ys)) for x, y in figure.curve]
    over, _, unit = figure.axes.rpartition(", ")
    parts = [
        f'<text class="name" x="{LEFT}" y="16">{escape(figure.name)}, {escape(unit)}</text>',
        f'<text x="{(LEFT + WIDE - RIGHT) / 2}" y="{HIGH - 6}" text-anchor="middle">'
        f"{escape(over)}</text>",
    ]
    for power in range(xs[0], xs[1] + 1):
        x = _across(10.0**power, xs)
        parts.append(_line("grid", x, TOP, x, HIGH - BOTTOM))
        parts.append(_label(x, HIGH - BOTTOM + 13, power, "middle"))
    for power in range(ys[0], ys[1] + 1):
        y = _up(10.0**power, ys)
        parts.append(_line("grid", LEFT, y, WIDE - RIGHT, y))
        parts.append(_label(LEFT - 5, y + 4, power, "end"))
    parts.append(_line("axis", LEFT, HIGH - BOTTOM, WIDE - RIGHT, HIGH - BOTTOM))
    parts.append(_line("axis", LEFT, TOP, LEFT, HIGH - BOTTOM))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline class="line" points="{path}"/>')
    parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
    return "".join(parts)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten between which all values lie."""
    low = math.floor(math.log10(max(min(values), 1e-6)))
    return low, max(low + 1, math.ceil(math.log10(max(*values, 1e-6))))


def _across(value: float, decades: tuple[int, int]) -> float:
    return LEFT + _share(value, decades) * (WIDE - LEFT - RIGHT)


def _up(value: float, decades: tuple[int, int]) -> float:
    return HIGH - BOTTOM - _share(value, decades) * (HIGH - TOP - BOTTOM)


def _share(value: float, decades: tuple[int, int]) -> float:
    return (math.log10(max(value, 1e-6)) - decades[0]) / (decades[1] - decades[0])


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(x: float, y: float, power: int, anchor: str) -> str:
    text = f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
