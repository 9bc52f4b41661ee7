"""The `retinue plan` commands: check a plan and draw it, without a steward."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from retinue.cli import render
from retinue.cli.options import CliGroup, read_text
from retinue.cli.plan_drawing import draw_dot, draw_mermaid, draw_svg, draw_tree
from retinue.cli.steward_session import CliSession

if TYPE_CHECKING:
    from retinue.core.plan import Plan

FILE = click.argument("file", metavar="FILE")


def _parse_variables(
    ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    lacking = [each for each in given if "=" not in each]
    if lacking:
        raise click.BadParameter(f"{lacking[0]!r} is not NAME=VALUE", ctx, parameter)
    return dict(each.split("=", 1) for each in given)


VARIABLES = click.option(
    "--var",
    "vars",
    multiple=True,
    callback=_parse_variables,
    metavar="NAME=VALUE",
    help="Replace the value of a variable in the plan's 'vars'. Can be repeated.",
)


@click.group(cls=CliGroup, example="retinue plan check plan.yaml")
def plan() -> None:
    """Check a plan, or draw its steps. Nothing is started."""


@plan.command(
    example="retinue plan check plan.yaml",
    exits="0 the plan is sound\n2 it is not; the message names the step or the line",
)
@FILE
@VARIABLES
@click.pass_obj
def check(session: CliSession, file: str, vars: dict[str, str]) -> None:
    """Check keys, dependencies and owned paths, and show in which order the steps run.

    Models, types and the repository are checked when the plan runs.
    """
    found = _describe(_load(file, vars))
    render.warn(found)
    session.answer(found, lambda it: "\n".join([*_format_waves(it), f"{file}: the plan is sound"]))


@plan.command(
    example="retinue plan graph plan.yaml\nretinue plan graph plan.yaml --format svg > plan.svg"
)
@FILE
@click.option(
    "--format",
    "kind",
    type=click.Choice(["text", "svg", "mermaid", "dot"]),
    default="text",
    help="Text, an SVG image, Mermaid for Markdown, or DOT for Graphviz. Default: text.",
)
@VARIABLES
@click.pass_obj
def graph(session: CliSession, file: str, kind: str, vars: dict[str, str]) -> None:
    """Draw the steps of a plan and what each waits for."""
    found = _describe(_load(file, vars))
    draw = {"text": draw_tree, "svg": draw_svg, "mermaid": draw_mermaid, "dot": draw_dot}[kind]
    session.answer(found, lambda it: "\n".join(draw(it)))


def _load(file: str, variables: dict[str, str]) -> Plan:
    from retinue.formats.plan_document import parse_plan

    return parse_plan(read_text(file, "plan"), where=file, variables=variables)


def _describe(plan: Plan) -> dict[str, Any]:
    """Return the steps in the order of their integration, each with its wave.

    Steps of one wave can run at the same time.
    """
    from retinue.core.plan import find_prerequisites, list_unenforced, order_for_integration

    order = order_for_integration(plan)
    before = find_prerequisites(order)
    waves: dict[str, int] = {}
    judged: dict[str, list[str]] = {}
    ends: dict[str, int] = {}  # the last wave of steps that are joined as one
    for _, group in groupby(order, key=lambda step: step.unit):
        unit = list(group)
        work = [step for step in unit if not step.judges]
        for step in work:
            judged[step.id] = []
            waves[step.id] = 1 + max((ends[name] for name in before[step.id]), default=0)
        last = max(waves[step.id] for step in work)
        for step in unit[: -len(work)]:
            judged[step.id] = [each.id for each in work]
            last = waves[step.id] = max(waves[each.id] for each in work) + 1
        ends |= {step.id: last for step in unit}
    steps = [
        {
            "id": step.id,
            "title": step.title,
            "wave": waves[step.id],
            "depends_on": list(step.depends_on),
            "judges": judged[step.id],
            "waits_for": [each.id for each in order if each.id in before[step.id]],
            "integration": step.integration,
            "owns": list(step.owns),
            "alone": step.alone,
            "approve": step.approve,
        }
        for step in order
    ]
    return {"goal": plan.goal, "steps": steps, "warnings": list(list_unenforced(plan))}


def _format_waves(found: dict[str, Any]) -> list[str]:
    lines = [render.to_one_line(found["goal"])]
    # Sorted by wave: this is the order of their start, not that of their integration.
    for step in sorted(found["steps"], key=lambda each: each["wave"]):
        after = f"  after {', '.join(step['depends_on'])}" if step["depends_on"] else ""
        after += f"  judges {', '.join(step['judges'])}" if step["judges"] else ""
        alone = "  alone" if step["alone"] else ""
        asks = ", after approval" if step["approve"] else ""
        how = f"({step['integration']}{asks})"
        lines.append(f"  {step['wave']}  {step['id']}  {how}{after}{alone}")
    return lines
