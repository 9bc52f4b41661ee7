"""Drawings of a plan: a tree for the terminal, SVG, Mermaid and the DOT language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

from retinue.cli import render
from retinue.core.safe_text import shorten

Step = Mapping[str, Any]

WIDE, HIGH = 190, 46  # of a box, in pixels
GAP_X, GAP_Y = 56, 14
CROSSING = 10  # height that a line takes in a column which it crosses
MARGIN = 12
TITLE_CHARACTERS = 26

STYLE = """\
  text { font: 13px system-ui, sans-serif; fill: #15181d }
  .title { font-size: 11px; fill: #59606c }
  rect { fill: #fff; stroke: #8b93a3 }
  .asks { stroke: #8e44c9; stroke-width: 2 }
  path { fill: none; stroke: #8b93a3; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8eaee } .title { fill: #a0a7b4 } rect { fill: #171a21 }
  }"""


def draw_tree(found: Mapping[str, Any]) -> list[str]:
    """Return each step once, below the last of the steps that it follows."""
    steps: Sequence[Step] = found["steps"]
    waves = {step["id"]: step["wave"] for step in steps}
    below: dict[str, list[Step]] = {}
    also: dict[str, list[str]] = {}
    for step in steps:
        before = _list_followed(step)
        # The last of those that end latest: the others are above it.
        parent = max(reversed(before), key=lambda name: waves[name], default="")
        below.setdefault(parent, []).append(step)
        also[step["id"]] = [name for name in before if name != parent]
    lines = [render.to_one_line(found["goal"])]
    left = [(step, "", at == 0) for at, step in enumerate(reversed(below.get("", [])))]
    while left:
        step, indent, is_last = left.pop()
        name = step["id"]
        title = shorten(render.to_one_line(step["title"]), 60)
        more = f"  (also after {', '.join(also[name])})" if also[name] else ""
        asks = "  [asks for approval]" if step["approve"] else ""
        lines.append(f"{indent}{'└─' if is_last else '├─'} {name}  {title}{asks}{more}")
        under = f"{indent}{'   ' if is_last else '│  '}"
        left += [(each, under, at == 0) for at, each in enumerate(reversed(below.get(name, [])))]
    return lines


def draw_svg(found: Mapping[str, Any]) -> list[str]:
    """Return an SVG image: each step is to the right of the steps that it follows."""
    steps: Sequence[Step] = found["steps"]
    columns: dict[int, list[str]] = {}
    column_of = {step["id"]: int(step["wave"]) - 1 for step in steps}
    for step in steps:
        columns.setdefault(column_of[step["id"]], []).append(step["id"])
    # A line that crosses a column has a place of its own there, below the boxes.
    edges = _list_edges(found)
    for one, other in edges:
        for column in range(column_of[one] + 1, column_of[other]):
            if _name_crossing(one, column) not in columns[column]:
                columns[column].append(_name_crossing(one, column))
    places: dict[str, tuple[int, int]] = {}  # of boxes and crossings: left, middle
    bottom = 0
    for column, names in columns.items():
        y = MARGIN
        for name in names:
            high = HIGH if name in column_of else CROSSING
            places[name] = (MARGIN + column * (WIDE + GAP_X), y + high // 2)
            y += high + GAP_Y
        bottom = max(bottom, y - GAP_Y)
    width, height = len(columns) * (WIDE + GAP_X) - GAP_X + 2 * MARGIN, bottom + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(render.to_one_line(found['goal']))}</title>",
        f"<style>\n{STYLE}\n</style>",
    ]
    for one, other in edges:
        crossed = range(column_of[one] + 1, column_of[other])
        points = [places[_name_crossing(one, column)] for column in crossed]
        lines.append(_draw_line([places[one], *points, places[other]]))
    for step in steps:
        x, y = places[step["id"]]
        style = ' class="asks"' if step["approve"] else ""
        title = shorten(render.to_one_line(step["title"]), TITLE_CHARACTERS)
        top = y - HIGH // 2
        lines.append(f'<rect x="{x}" y="{top}" width="{WIDE}" height="{HIGH}" rx="8"{style}/>')
        lines.append(f'<text x="{x + 12}" y="{top + 20}">{escape(shorten(step["id"], 24))}</text>')
        lines.append(f'<text class="title" x="{x + 12}" y="{top + 36}">{escape(title)}</text>')
    return [*lines, "</svg>"]


def _name_crossing(step: str, column: int) -> str:
    return f"{step} {column}"  # ids have no spaces


def _draw_line(points: Sequence[tuple[int, int]]) -> str:
    """Return a line from box to box that is straight within columns and ends in an arrow."""
    (x, y), half = points[0], GAP_X // 2
    drawn = [f"M{x + WIDE} {y}"]
    for (left, before), (to_x, to_y) in pairwise(points):
        start, end = left + WIDE, to_x - (4 if (to_x, to_y) == points[-1] else 0)
        drawn.append(f"L{start} {before}C{start + half} {before} {end - half} {to_y} {end} {to_y}")
    return f'<path d="{"".join(drawn)}m-5 -4l5 4l-5 4"/>'


def draw_mermaid(found: Mapping[str, Any]) -> list[str]:
    # Ids of steps may be words of Mermaid, such as "end": numbers never are.
    number = {step["id"]: f"s{place}" for place, step in enumerate(found["steps"], start=1)}
    lines = ["graph LR"]
    lines += [f'  {number[step["id"]]}["{step["id"]}"]' for step in found["steps"]]
    return lines + [f"  {number[one]} --> {number[other]}" for one, other in _list_edges(found)]


def draw_dot(found: Mapping[str, Any]) -> list[str]:
    lines = ["digraph plan {", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f'  "{step["id"]}";' for step in found["steps"]]
    return [*lines, *(f'  "{one}" -> "{other}";' for one, other in _list_edges(found)), "}"]


def _list_followed(step: Step) -> list[str]:
    return [*step["depends_on"], *step["judges"]]


def _list_edges(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, step["id"]) for step in found["steps"] for name in _list_followed(step)]
