"""Schema of a plan file, and its variables and matrices, which are expanded before it is checked.

`{{name}}` stands for a variable of `vars` or of the step's `matrix`. A step with a matrix becomes
one step for each combination of its values. The expanded plan is what is stored and run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from retinue.core.command_variables import parse_secrets, require_variables
from retinue.core.contract import MAX_RETRIES, READ, REPORT_PATTERN
from retinue.core.errors import BadInput
from retinue.core.ids import make_slug
from retinue.core.plan import MAX_STEPS, MERGE, NONE, Plan, PlanStep, require_sound_plan
from retinue.core.plan_review import APPROVE, VERDICT, requires_approval
from retinue.core.safe_text import shorten
from retinue.formats.schemas.validation_errors import (
    Amount,
    Duration,
    Name,
    Word,
    make_value_error,
    require_answer_schema,
    validate_document,
)
from retinue.formats.yaml_document import Place, load_yaml

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
    expanded = _fill_placeholders(top, variables, "the plan")
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
        yield _fill_placeholders(step, variables, where)
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
        made = _fill_placeholders(rest, here, where)
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


def _fill_placeholders(value: Any, variables: Values, where: str) -> Any:
    """Return the value with the placeholders in all of its texts replaced; keys stay as they are.

    Values are not looked at again: a variable whose value is `{{name}}` gives these characters.
    """
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: _look_up(found[1], variables, where), value)
    if isinstance(value, list):
        return [_fill_placeholders(each, variables, where) for each in value]
    if isinstance(value, dict):
        return {name: _fill_placeholders(each, variables, where) for name, each in value.items()}
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


MAX_TEXT = 1024 * 1024
NO_VARIABLES: Mapping[str, str] = {}


def _check_retries(value: object) -> object:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 0 <= value <= MAX_RETRIES:  # type: ignore[operator]
        raise make_value_error(f"a whole number from 0 to {MAX_RETRIES}")
    return value


def _check_argument(value: object) -> object:
    if not isinstance(value, str) or "\0" in value:
        raise make_value_error("a text without NUL")
    return value


_Text = Annotated[str, Field(max_length=MAX_TEXT)]
_Argument = Annotated[str, BeforeValidator(_check_argument)]
_Retries = Annotated[int, BeforeValidator(_check_retries)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Base(_Section):
    repository: Word = "."
    ref: Word = "HEAD"


class StepSection(_Section):
    id: Name | None = None
    title: _Text = ""
    description: _Text = ""
    success_criteria: list[Word] = []
    owns: list[Word] = []
    depends_on: list[Name] = []
    tools: list[Word] | None = None
    command: list[_Argument] = []
    type: Word | None = None
    refine: bool = True
    verify: list[_Argument] = []
    integration: Literal["merge", "copy", "none"] | None = None
    destination: Word | None = None
    timeout_seconds: Duration | None = None
    retries: _Retries | None = None
    allow: list[Literal["links", "submodules", "secrets"]] = []
    agent: Word | None = None
    model: Word | None = None
    access: Literal["read", "write"] | None = None
    answer_schema: dict[str, Any] | None = None
    on: Word | None = None
    env: dict[str, str] | None = None
    secrets: list[Word] = []
    redact: bool = False
    approve: bool = False
    reviews: Name | None = None
    candidate_of: Name | None = None
    votes_on: Name | None = None


class PlanModel(_Section):
    """A plan file."""

    goal: Word
    base: Base | None = None
    on_failure: Literal["stop", "continue"] = "stop"
    inspect: list[_Argument] = []
    max_file_mb: Amount | None = None
    report_path_pattern: Word = REPORT_PATTERN
    steps: list[StepSection]


def parse_plan(text: str, *, where: str, variables: Mapping[str, str] = NO_VARIABLES) -> Plan:
    """Parse and check a plan file.

    Args:
        variables: values that replace those of its `vars`.

    Raises:
        BadInput: names the key or the steps, and the line if known.
    """
    lines: dict[Place, int] = {}
    document = load_yaml(text, where=where, lines=lines)
    try:
        document, lines = expand_plan(document, variables, lines)
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}", code=error.code, hint=error.hint) from None
    model = validate_document(PlanModel, document, where=where, lines=lines)
    return _check_plan(model, where)


def plan_from_json(document: object) -> Plan:
    """Parse and check a submitted plan."""
    return _check_plan(validate_document(PlanModel, document, where="plan"), "plan")


def read_stored_plan(document: object) -> Plan:
    """Parse the stored plan of a run."""
    # The plan was checked when the run began. Rules of a later version must not stop it.
    return _to_plan(validate_document(PlanModel, document, where="plan"))


def _check_plan(model: PlanModel, where: str) -> Plan:
    try:
        plan = _to_plan(model)
        for number, step in enumerate(plan.steps):
            _require_no_sources(step, number)
        require_sound_plan(plan)
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}", code=error.code, hint=error.hint) from None
    return plan


def _to_plan(model: PlanModel) -> Plan:
    # With a base, steps are merged unless they say otherwise.
    default_integration = MERGE if model.base else NONE
    steps = [
        _to_plan_step(step, place, default_integration) for place, step in enumerate(model.steps)
    ]
    return Plan(
        goal=model.goal,
        repository=model.base.repository if model.base else "",
        ref=model.base.ref if model.base else "HEAD",
        on_failure=model.on_failure,
        inspect=tuple(model.inspect),
        max_file_mb=model.max_file_mb,
        report_path_pattern=model.report_path_pattern,
        steps=tuple(_depend_on_candidates(step, steps) for step in steps),
    )


def _depend_on_candidates(step: PlanStep, steps: Sequence[PlanStep]) -> PlanStep:
    """Return the step; where it depends on a candidate or their common name, on all of them."""
    group_of = {each.id: each.candidate_of for each in steps if each.candidate_of}
    names: dict[str, None] = {}
    for name in step.depends_on:
        group = group_of.get(name, name)
        members = [each for each, known in group_of.items() if known == group]
        names |= dict.fromkeys(members or [name])
    return replace(step, depends_on=tuple(names))


def _to_plan_step(step: StepSection, number: int, default_integration: str) -> PlanStep:
    first = step.description.strip().partition("\n")[0]
    judged = step.reviews or step.votes_on
    if not (step.command or first or step.title.strip() or judged):
        raise BadInput(
            f"steps[{number}] has neither a description nor a command",
            code="invalid_plan",
            hint="add a description for a team, or a command",
        )
    if step.command and (step.agent or step.model):
        raise BadInput(
            f"steps[{number}] has both a command and an agent",
            code="invalid_plan",
            hint="give the agent its work as the description",
        )
    title = step.title or first or " ".join(step.command) or step.id or f"Judge {judged}"
    # A step that judges others may only read, unless the plan grants it more.
    access = step.access or (READ if judged else "")
    return PlanStep(
        id=step.id or make_slug(step.title) or f"step-{number + 1}",
        title=shorten(title, 80),
        description=step.description,
        success_criteria=tuple(step.success_criteria),
        owns=tuple(step.owns),
        depends_on=tuple(step.depends_on),
        tools=None if step.tools is None else tuple(step.tools),
        command=tuple(step.command),
        type=step.type,
        refine=step.refine,
        verify=tuple(step.verify),
        integration=step.integration or (NONE if access == READ or judged else default_integration),
        destination=step.destination or "",
        timeout_seconds=step.timeout_seconds,
        retries=step.retries,
        allow=tuple(step.allow),
        agent=step.agent or "",
        model=step.model or "",
        access=access,
        answer_schema=_check_verdict(step, number),
        on=(step.on,) if step.on else (),
        env=_check_variables(step, number),
        secrets=_check_secrets(step, number),
        redact=step.redact,
        approve=step.approve,
        reviews=step.reviews or "",
        candidate_of=step.candidate_of or "",
        votes_on=step.votes_on or "",
    )


def _check_variables(step: StepSection, number: int) -> dict[str, str] | None:
    if step.env and not step.command:
        raise BadInput(
            f"steps[{number}].env: only commands have variables",
            code="invalid_plan",
            hint="tell the team in the description, or give the step a command",
        )
    require_variables(step.env or {}, f"steps[{number}].env")
    return step.env or None


def _check_secrets(step: StepSection, number: int) -> tuple[str, ...]:
    parse_secrets(step.secrets, step.env or {}, f"steps[{number}].secrets")
    if step.secrets and not step.command:
        raise BadInput(
            f"steps[{number}].secrets: only commands have secrets",
            code="invalid_plan",
            hint="give the step a command",
        )
    if step.redact and not step.secrets:
        raise BadInput(
            f"steps[{number}].redact: there is nothing to redact without secrets",
            code="invalid_plan",
            hint="name the secrets, or leave redact out",
        )
    return tuple(step.secrets)


def _require_no_sources(step: PlanStep, number: int) -> None:
    # Security: a plan comes from a repository. Which files and variables of the user it may read
    # is decided by the user who starts it.
    if any("=" in name for name in step.secrets):
        raise BadInput(
            f"steps[{number}].secrets: a plan only names its secrets",
            code="invalid_plan",
            hint="give the source to 'retinue run --plan FILE --secret NAME=file:PATH'",
        )


def _check_verdict(step: StepSection, number: int) -> dict[str, Any] | None:
    schema = step.answer_schema
    if schema is not None:
        require_answer_schema(schema, f"steps[{number}].answer_schema")
    if step.votes_on and schema is not None:
        raise BadInput(
            f"steps[{number}].answer_schema: a vote has a schema of its own", code="invalid_plan"
        )
    if not step.reviews:
        return schema
    if schema is not None and not requires_approval(schema):
        raise BadInput(
            f"steps[{number}].answer_schema: a review has to require the boolean '{APPROVE}'",
            code="invalid_plan",
            hint="leave answer_schema out for the usual verdict",
        )
    return schema or VERDICT
