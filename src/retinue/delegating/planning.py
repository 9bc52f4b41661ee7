"""A plan from an agent: the words of the tool that takes it, and of how it ended."""

from __future__ import annotations

from retinue.delegating.answers import Document, batch_text, line
from retinue.delegating.schemas import FLAG, NUMBER, TEXT, Schema, given
from retinue.domain.contract import REPORT_PATTERN

SUBMIT = "submit_plan"
SUBMIT_DESCRIPTION = """Have a whole plan carried out: steps that depend on each other, done by \
subagents and joined in order. Use it instead of spawn_subagents when steps build on each other, \
or when what they change belongs into the project's git repository.

Each step without a command is done by a team, which reads its description and nothing else: say \
all it needs. With base, each step works on a private clone of the project that has what it \
depends on; what it changed is merged on a branch of its own, never into what is checked out. \
Steps that could work at once need owns, the paths that each may change, and may not share any. \
Without base nothing is merged; copy puts files into the task's shared output.

The call returns when the plan has ended: the results, the branch, and what was never started. A \
plan with anything wrong in it is refused whole, with what to change; then submit it again."""

_TEXTS: Schema = {"type": "array", "items": TEXT}
_STEP = given(
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
    retries={"type": "integer", "default": 1},
    allow={"type": "array", "items": TEXT | {"enum": ["links", "submodules", "secrets"]}},
)
# As the form of a plan file takes it; that form itself would weigh on every child.
PLAN = given(
    required=("goal", "steps"),
    goal=TEXT,
    base=given(repository=TEXT | {"default": "."}, ref=TEXT | {"default": "HEAD"}),
    on_failure=TEXT | {"enum": ["stop", "continue"], "default": "stop"},
    inspect=_TEXTS,
    max_file_mb=NUMBER,
    report_path_pattern=TEXT | {"default": REPORT_PATTERN},
    steps={"type": "array", "items": _STEP},
)


def plan_text(end: Document) -> str:
    """How a plan ended, for whoever submitted it."""
    parts = []
    if end.get("branch"):
        parts.append(f"joined on the branch {line(end['branch'])}")
    for name, why in (end.get("not_started") or {}).items():
        parts.append(f"[{line(name)}] not started: {line(why)}")
    for result in end["results"]:
        joined = result.get("integration") or {}
        if joined.get("reason"):
            parts.append(f"[{line(result['subagent_id'])}] {line(joined['reason'])}")
    return "\n".join([*parts, "", batch_text(end)])
