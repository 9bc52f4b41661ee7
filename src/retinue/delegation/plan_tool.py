"""The submit_plan tool: its description, its schema and the text of its answer."""

from __future__ import annotations

from retinue.core.contract import REPORT_PATTERN
from retinue.delegation.answer_text import Document, format_batch, quote_on_one_line
from retinue.delegation.result_view import AnswerBudget
from retinue.delegation.tool_definitions import FETCH
from retinue.delegation.tool_schemas import (
    FLAG,
    NUMBER,
    TEXT,
    Schema,
    ToolLimits,
    build_input_schema,
)

SUBMIT = "submit_plan"
SUBMIT_DESCRIPTION = """Have a whole plan carried out: steps that depend on each other, done by \
subagents and joined in order. Use it instead of spawn_subagents when steps build on each other, \
or when what they change belongs into the project's git repository.

Each step without a command is done by a team, which reads its description and nothing else: say \
all it needs. With base, each step works on a private clone of the project that has what it \
depends on; what it changed is merged on a branch of its own, never into what is checked out. \
Steps that could work at once need owns, the paths that each may change, and may not share any. \
Without base nothing is merged; copy puts files into the task's shared output. base.repository is \
the project's own repository. Leave out destination, allow, and a max_file_mb above 50: these are \
for people, and a plan of yours that has them is refused.

The call returns when the plan has ended: the results, the branch, and what was never started. A \
plan with anything wrong in it is refused whole, with what to change; then submit it again."""

_TEXTS: Schema = {"type": "array", "items": TEXT}
_STEP = build_input_schema(
    id=TEXT,
    title=TEXT,
    description=TEXT,
    success_criteria=_TEXTS,
    owns=_TEXTS,
    depends_on=_TEXTS,
    tools=_TEXTS,
    command=_TEXTS,
    type=TEXT,
    refine=FLAG | {"default": True},
    verify=_TEXTS,
    integration=TEXT | {"enum": ["merge", "copy", "none"]},
    destination=TEXT,
    timeout_seconds=NUMBER,
    retries={"type": "integer"},
    allow={"type": "array", "items": TEXT | {"enum": ["links", "submodules", "secrets"]}},
    agent=TEXT,
    model=TEXT,
    access=TEXT | {"enum": ["read", "write"]},
    answer_schema={"type": "object", "additionalProperties": True},
    on=TEXT,
    env={"type": "object", "additionalProperties": TEXT},
    approve=FLAG | {"default": False},
    reviews=TEXT,
    candidate_of=TEXT,
    votes_on=TEXT,
)
# Written out instead of derived from the plan file's model: that would import pydantic into
# every child. A unit test compares the two.
PLAN = build_input_schema(
    required=("goal", "steps"),
    goal=TEXT,
    base=build_input_schema(repository=TEXT | {"default": "."}, ref=TEXT | {"default": "HEAD"}),
    on_failure=TEXT | {"enum": ["stop", "continue"], "default": "stop"},
    inspect=_TEXTS,
    max_file_mb=NUMBER,
    report_path_pattern=TEXT | {"default": REPORT_PATTERN},
    steps={"type": "array", "items": _STEP},
)


def format_plan_end(end: Document) -> str:
    """Return the outcome of a plan as text for the agent that submitted it."""
    parts = []
    if end.get("branch"):
        parts.append(f"joined on the branch {quote_on_one_line(end['branch'])}")
    for name, why in (end.get("not_started") or {}).items():
        parts.append(f"[{quote_on_one_line(name)}] not started: {quote_on_one_line(why)}")
    for result in end["results"]:
        joined = result.get("integration") or {}
        if joined.get("reason"):
            parts.append(
                f"[{quote_on_one_line(result['subagent_id'])}] "
                f"{quote_on_one_line(joined['reason'])}"
            )
    budget = AnswerBudget(ToolLimits().answer_characters, FETCH)
    batch = {**end, "results": budget.shape_results(end["results"])}
    return "\n".join([*parts, "", format_batch(batch)])
