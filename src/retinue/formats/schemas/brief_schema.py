"""Schema of a brief; a request with one invalid brief is refused as a whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retinue.core.brief import Brief, Integration
from retinue.core.command_variables import parse_secrets, require_variables
from retinue.core.contract import REPORT_PATTERN
from retinue.core.errors import AGENT, PYTHON, BadInput
from retinue.core.ids import require_id
from retinue.core.safe_text import clean_text
from retinue.core.task_config import require_duration
from retinue.formats.schemas.validation_errors import require_answer_schema

MAX_TEXT = 1024 * 1024
MAX_ARGV = 8 * 1024 * 1024

_Text = Annotated[str, Field(max_length=MAX_TEXT)]
_Word = Annotated[str, Field(max_length=4096)]
_Words = Annotated[list[_Word], Field(max_length=256)]


class BriefModel(BaseModel):
    """One brief of a spawn request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: _Text = ""
    subagent_id: str | None = None
    argv: Annotated[list[str], Field(max_length=100_000)] = []
    subagent_type: _Word | None = None
    context_paths: _Words
    context_files: _Words = []
    timeout_seconds: Any = None
    allowed_tools: _Words | None = None
    refine: bool = True
    max_retries: int | None = None
    retry_on_timeout: bool = False
    close_on_completion: bool = True
    integration: _Word = "none"
    owns: _Words = []
    max_delegation_depth: int = 0
    title: _Word = ""
    success_criteria: _Words = []
    report_path_pattern: _Word = REPORT_PATTERN
    agent: _Word = ""
    model: _Word = ""
    access: Literal["read", "write"] = "write"
    answer_schema: dict[str, Any] | None = None
    turns: Annotated[int, Field(gt=0)] | None = None
    on: _Words | _Word = []
    env: dict[str, str] = {}
    stdin: _Text = ""
    limits: dict[str, int | float] = {}
    secrets: _Words = []
    redact: bool = False
    python: _Text = ""


def parse_briefs(items: Any) -> list[Brief]:
    """Parse every item as a brief.

    Raises:
        BadInput: names the first invalid item and the problem.
    """
    if not isinstance(items, list) or not items:
        raise BadInput("tasks must be a non-empty list", code="invalid_request")
    return [_parse_brief(item, index) for index, item in enumerate(items)]


def _parse_brief(item: Any, index: int) -> Brief:
    try:
        model = BriefModel.model_validate(_mark_surrogates(item))
    except ValidationError as error:
        raise BadInput(_find_first_problem(error, index), code="invalid_request") from None
    if not model.task.strip() and not model.argv:
        raise BadInput(
            f"tasks[{index}]: nothing to do",
            code="invalid_request",
            hint="give a brief, or a command after '--'",
            hints={
                AGENT: "describe in task what the subagent should do",
                PYTHON: 'for example Brief("words"), or Brief(argv=["date"])',
            },
        )
    _require_passable(model.argv, index)
    if model.argv and (model.agent or model.model):
        raise BadInput(
            f"tasks[{index}]: a command after '--' and an agent exclude each other",
            code="invalid_request",
            hint="give the agent its task as the brief",
        )
    if model.env:
        require_variables(model.env, f"tasks[{index}].env")
    if model.secrets:
        parse_secrets(model.secrets, model.env, f"tasks[{index}].secrets")
    if clean_text(model.stdin) != model.stdin:
        raise BadInput(f"tasks[{index}].stdin: not Unicode text", code="invalid_request")
    if model.subagent_id is not None:
        require_id(model.subagent_id, "subagent id")
    timeout = model.timeout_seconds
    if timeout is not None:
        timeout = require_duration(timeout, f"tasks[{index}].timeout_seconds")
    if model.answer_schema is not None:
        require_answer_schema(model.answer_schema, f"tasks[{index}].answer_schema")
    return Brief(
        model.task,
        id=model.subagent_id,
        argv=tuple(model.argv),
        type=model.subagent_type,
        context_paths=tuple(model.context_paths),
        context_files=tuple(model.context_files),
        timeout_seconds=timeout,
        tools=None if model.allowed_tools is None else tuple(model.allowed_tools),
        refine=model.refine,
        retries=model.max_retries,
        retry_on_timeout=model.retry_on_timeout,
        close_on_completion=model.close_on_completion,
        # An unknown one is refused with its own code when the contract is made.
        integration=cast("Integration", model.integration),
        owns=tuple(model.owns),
        delegation_depth=model.max_delegation_depth,
        title=model.title,
        success_criteria=tuple(model.success_criteria),
        report_path_pattern=model.report_path_pattern,
        agent=model.agent,
        model=model.model,
        access=model.access,
        answer_schema=model.answer_schema,
        turns=model.turns,
        on=(model.on,) if isinstance(model.on, str) else tuple(model.on),
        env=model.env or None,
        stdin=model.stdin,
        limits=model.limits or None,
        secrets=tuple(model.secrets),
        redact=model.redact,
        python=model.python or False,
    )


def _mark_surrogates(item: Any) -> Any:
    """Replace lone surrogates in prose.

    Names and command words are checked later instead: changing them would change their meaning.
    """
    if not isinstance(item, dict):
        return item
    return item | {
        key: _clean(value)
        for key, value in item.items()
        if key in ("task", "title", "success_criteria")
    }


def _clean(value: Any) -> Any:
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return clean_text(value) if isinstance(value, str) else value


def _require_passable(argv: list[str], index: int) -> None:
    # execve() takes no NUL and limits the total size of the arguments.
    if argv and not argv[0]:
        raise BadInput(f"tasks[{index}]: the command has no name", code="invalid_request")
    if any("\0" in word or clean_text(word) != word for word in argv):
        raise BadInput(
            f"tasks[{index}]: a word of the command holds NUL or is not Unicode text",
            code="invalid_request",
            hint="put such bytes in a file of context_files",
        )
    if sum(map(len, argv)) > MAX_ARGV:
        raise BadInput(
            f"tasks[{index}]: the command is longer than {MAX_ARGV} characters",
            code="invalid_request",
            hint="put long text in a file of context_files",
        )


def _find_first_problem(error: ValidationError, index: int) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"tasks[{index}]{'.' + where if where else ''}: {message}"
