"""A plan as people write it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from retinue.domain.contract import MAX_RETRIES, REPORT_PATTERN
from retinue.domain.errors import BadInput
from retinue.domain.event import shorten
from retinue.domain.ids import slug
from retinue.domain.plan import MERGE, NONE, Plan, PlanStep, require_sound_plan
from retinue.wire.forms.refusal import expected, fit
from retinue.wire.forms.values import Amount, Duration, Name, Word
from retinue.wire.yaml import Place, load_yaml

MAX_TEXT = 1024 * 1024


def _retries(value: object) -> object:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 0 <= value <= MAX_RETRIES:  # type: ignore[operator]
        raise expected(f"a whole number from 0 to {MAX_RETRIES}")
    return value


def _argument(value: object) -> object:
    if not isinstance(value, str) or "\0" in value:
        raise expected("a text without NUL")
    return value


_Text = Annotated[str, Field(max_length=MAX_TEXT)]
_Argument = Annotated[str, BeforeValidator(_argument)]
_Retries = Annotated[int, BeforeValidator(_retries)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Base(_Section):
    repository: Word = "."
    ref: Word = "HEAD"


class Step(_Section):
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
    retries: _Retries = 1
    allow: list[Literal["links", "submodules", "secrets"]] = []


class PlanModel(_Section):
    """The whole of a plan file."""

    goal: Word
    base: Base | None = None
    on_failure: Literal["stop", "continue"] = "stop"
    inspect: list[_Argument] = []
    max_file_mb: Amount | None = None
    report_path_pattern: Word = REPORT_PATTERN
    steps: list[Step]


def parse_plan(text: str, *, where: str) -> Plan:
    """A plan file's content, sound as a whole.

    Raises:
        BadInput: names the key or the steps, and the line where there is one.
    """
    lines: dict[Place, int] = {}
    document = load_yaml(text, where=where, lines=lines)
    model = fit(PlanModel, document, where=where, lines=lines)
    return _sound(model, where)


def plan_from_json(document: object) -> Plan:
    """A plan that was submitted, sound as a whole."""
    return _sound(fit(PlanModel, document, where="plan"), "plan")


def kept_plan(document: object) -> Plan:
    """The plan that a run kept: it was judged when the run began, if by other rules."""
    return _plan(fit(PlanModel, document, where="plan"))


def _sound(model: PlanModel, where: str) -> Plan:
    try:
        plan = _plan(model)
        require_sound_plan(plan)
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}", code=error.code, hint=error.hint) from None
    return plan


def _plan(model: PlanModel) -> Plan:
    usual = MERGE if model.base else NONE
    return Plan(
        goal=model.goal,
        repository=model.base.repository if model.base else "",
        ref=model.base.ref if model.base else "HEAD",
        on_failure=model.on_failure,
        inspect=tuple(model.inspect),
        max_file_mb=model.max_file_mb,
        report_path_pattern=model.report_path_pattern,
        steps=tuple(_step(step, place, usual) for place, step in enumerate(model.steps)),
    )


def _step(step: Step, number: int, usual: str) -> PlanStep:
    first = step.description.strip().partition("\n")[0]
    if not (step.command or first or step.title.strip()):
        raise BadInput(
            f"steps[{number}] says nothing of what to do",
            code="invalid_plan",
            hint="give it a description for a team, or a command",
        )
    title = step.title or first or " ".join(step.command) or step.id or ""
    return PlanStep(
        id=step.id or slug(step.title) or f"step-{number + 1}",
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
        integration=step.integration or usual,
        destination=step.destination or "",
        timeout_seconds=step.timeout_seconds,
        retries=step.retries,
        allow=tuple(step.allow),
    )
