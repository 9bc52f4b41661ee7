"""A plan, as a file has it and as the run keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from retinue.domain.contract import MAX_RETRIES
from retinue.domain.errors import BadInput
from retinue.domain.event import shorten
from retinue.domain.ids import slug
from retinue.domain.plan import MERGE, NONE, Plan, PlanStep, require_sound_plan
from retinue.wire.refusal import Place, expected, fit
from retinue.wire.values import Amount, Duration, Name, Word

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
    tools: list[Word] = []
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
    steps: list[Step]


def plan_from_json(
    document: object, *, where: str = "plan", lines: Mapping[Place, int] | None = None
) -> Plan:
    """A plan of these keys, sound as a whole: one that a run kept, or a file's.

    Raises:
        BadInput: names the key or the steps, and the line where there is one.
    """
    return _sound(fit(PlanModel, document, where=where, lines=lines), where)


def plan_schema() -> dict[str, Any]:
    """The keys of a plan as JSON Schema, without references; nothing beyond them is taken."""
    schema = PlanModel.model_json_schema()
    parts = schema.pop("$defs")

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return whole(parts[value["$ref"].rpartition("/")[2]])
        kept = {key: whole(each) for key, each in value.items()}
        if isinstance(kept.get("title"), str):
            del kept["title"]  # of the schema itself; a property of that name is an object
        return kept

    return dict(whole(schema))


def plan_to_json(plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = {"goal": plan.goal, "on_failure": plan.on_failure}
    if plan.repository:
        document["base"] = {"repository": plan.repository, "ref": plan.ref}
    if plan.inspect:
        document["inspect"] = list(plan.inspect)
    if plan.max_file_mb is not None:
        document["max_file_mb"] = plan.max_file_mb
    return document | {"steps": [_step_to_json(step) for step in plan.steps]}


def _step_to_json(step: PlanStep) -> dict[str, Any]:
    known = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(step).items()
    }
    return {name: value for name, value in known.items() if value not in (None, "", [])}


def _sound(model: PlanModel, where: str) -> Plan:
    usual = MERGE if model.base else NONE
    try:
        plan = Plan(
            goal=model.goal,
            repository=model.base.repository if model.base else "",
            ref=model.base.ref if model.base else "HEAD",
            on_failure=model.on_failure,
            inspect=tuple(model.inspect),
            max_file_mb=model.max_file_mb,
            steps=tuple(_step(step, place, usual) for place, step in enumerate(model.steps)),
        )
        require_sound_plan(plan)
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}", code=error.code, hint=error.hint) from None
    return plan


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
        tools=tuple(step.tools),
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
