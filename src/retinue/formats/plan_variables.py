"""Variables and matrices of a plan file: expanded before the plan is checked.

`{{name}}` stands for a variable of `vars` or of the step's `matrix`. A step with a matrix becomes
one step for each combination of its values. The expanded plan is what is stored and run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from retinue.core.errors import BadInput
from retinue.core.ids import make_slug
from retinue.core.plan import MAX_STEPS
from retinue.formats.yaml_document import Place

VARS, MATRIX = "vars", "matrix"
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

Values = Mapping[str, str]


def expand_plan(
    document: object, given: Mapping[str, str], lines: dict[Place, int]
) -> tuple[object, dict[Place, int]]:
    """Return the plan with all variables and matrices replaced, and the lines of its parts.

    A plan without `vars` and `matrix` is returned as it is: `{{...}}` means nothing in it.

    Args:
        given: values that replace those of `vars`.

    Raises:
        BadInput: a variable is unknown, or has no text as its value.
    """
    if not isinstance(document, dict):
        return document, lines
    steps = document.get("steps")
    known = steps if isinstance(steps, list) else []
    if VARS not in document and not given and not any(_has_matrix(each) for each in known):
        return document, lines
    variables = _read_variables(document.get(VARS, {}), given)
    top = {name: value for name, value in document.items() if name not in (VARS, "steps")}
    expanded = _fill(top, variables, "the plan")
    if not isinstance(steps, list):
        return {**expanded, "steps": steps}, lines
    made: list[object] = []
    origins: list[int] = []
    groups: dict[str, list[str]] = {}
    for number, step in enumerate(steps):
        found = list(_expand_step(step, number, variables, groups))
        made += found
        origins += [number] * len(found)
        if len(made) > MAX_STEPS:
            raise _make_error(f"a plan has 1 to {MAX_STEPS} steps; its matrices make more")
    made = [_name_instances(each, groups) for each in made]
    return {**expanded, "steps": made}, _move_lines(lines, origins)


def _has_matrix(step: object) -> bool:
    return isinstance(step, dict) and MATRIX in step


def _read_variables(found: object, given: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(found, dict):
        raise _make_error("vars is not a mapping", "write names and values: vars: {lang: de}")
    variables = {name: _to_text(value, f"vars.{name}") for name, value in found.items()}
    for name in variables:
        _require_name(name, "vars")
    unknown = [name for name in given if name not in variables]
    if unknown:
        raise _make_error(
            f"the plan has no variable {unknown[0][:64]!a}",
            f"its vars: {', '.join(variables) or 'none'}",
        )
    return variables | dict(given)


def _expand_step(
    step: object, number: int, variables: Values, groups: dict[str, list[str]]
) -> Iterator[object]:
    """Yield the steps that this one stands for; add their ids to `groups` under its own id."""
    where = f"steps[{number}]"
    if not isinstance(step, dict) or MATRIX not in step:
        yield _fill(step, variables, where)
        return
    matrix = _read_matrix(step[MATRIX], f"{where}.matrix", variables)
    rest = {name: value for name, value in step.items() if name != MATRIX}
    own = rest.get("id")
    if own is not None and not isinstance(own, str):
        yield rest  # the schema names the error
        return
    base = own or make_slug(str(rest.get("title", ""))) or f"step-{number + 1}"
    for values in product(*matrix.values()):
        here = {**variables, **dict(zip(matrix, values, strict=True))}
        made = _fill(rest, here, where)
        if not _PLACEHOLDER.search(base):
            parts = (make_slug(value) or "x" for value in values)
            made["id"] = "-".join((base, *parts))
            groups.setdefault(base, []).append(made["id"])
        yield made


def _read_matrix(found: object, where: str, variables: Values) -> dict[str, list[str]]:
    example = "write each variable with its values: matrix: {lang: [de, fr]}"
    if not isinstance(found, dict) or not found:
        raise _make_error(f"{where} is not a mapping", example)
    matrix: dict[str, list[str]] = {}
    for name, values in found.items():
        _require_name(name, where)
        if name in variables:
            raise _make_error(f"{where}: {name} is a variable of the plan", "rename one of them")
        if not isinstance(values, list) or not values:
            raise _make_error(f"{where}.{name} is not a list of values", example)
        matrix[name] = [_to_text(value, f"{where}.{name}") for value in values]
    if prod(map(len, matrix.values())) > MAX_STEPS:
        raise _make_error(f"{where} makes more than {MAX_STEPS} steps")
    return matrix


def _fill(value: Any, variables: Values, where: str) -> Any:
    """Return the value with the placeholders in all of its texts replaced; keys stay as they are.

    Values are not looked at again: a variable whose value is `{{name}}` gives these characters.
    """
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: _look_up(found[1], variables, where), value)
    if isinstance(value, list):
        return [_fill(each, variables, where) for each in value]
    if isinstance(value, dict):
        return {name: _fill(each, variables, where) for name, each in value.items()}
    return value


def _look_up(name: str, variables: Values, where: str) -> str:
    if name not in variables:
        raise _make_error(
            f"{where}: unknown variable {name[:64]}",
            f"known here: {', '.join(variables) or 'none'}",
        )
    return variables[name]


def _name_instances(step: object, groups: Mapping[str, list[str]]) -> object:
    """Return the step depending on all steps of a matrix where it names the matrix."""
    if not isinstance(step, dict) or not isinstance(step.get("depends_on"), list):
        return step
    names: list[object] = []
    for name in step["depends_on"]:
        names += groups.get(name, [name]) if isinstance(name, str) else [name]
    return {**step, "depends_on": names}


def _move_lines(lines: Mapping[Place, int], origins: list[int]) -> dict[Place, int]:
    """Return the lines under the numbers that the steps have after the expansion."""
    below: dict[int, list[tuple[Place, int]]] = {}
    moved: dict[Place, int] = {}
    for place, line in lines.items():
        if len(place) > 1 and place[0] == "steps" and isinstance(place[1], int):
            below.setdefault(place[1], []).append((place[2:], line))
        else:
            moved[place] = line
    for number, origin in enumerate(origins):
        moved |= {("steps", number, *rest): line for rest, line in below.get(origin, ())}
    return moved


def _to_text(value: object, where: str) -> str:
    # A float or a bool has lost how it was written: 1.10 is 1.1, yes is true.
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise _make_error(f"{where} is not a text", "put the value in quotes")


def _require_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise _make_error(
            f"{where}: {name[:64]!a} is not the name of a variable",
            "letters, digits and _, not starting with a digit",
        )


def _make_error(sentence: str, hint: str = "") -> BadInput:
    return BadInput(sentence, code="invalid_plan", hint=hint)
