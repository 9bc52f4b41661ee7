"""What the tools take and give, as JSON Schema."""

from __future__ import annotations

from typing import Any

from retinue.delegating.terms import Terms
from retinue.domain.policy import MAX_SECONDS
from retinue.domain.result import Status

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}


def given(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """Arguments: nothing beyond these."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(required)} if required else {})


def spawn_schema(terms: Terms) -> Schema:
    """The arguments of spawn_subagents."""
    return given(
        required=("tasks",),
        tasks={
            "type": "array",
            "minItems": 1,
            "maxItems": terms.most,
            "items": _task_schema(terms),
            "description": "Independent tasks, one subagent each.",
        },
        background={
            "type": "boolean",
            "default": False,
            "description": "Return at once instead of when all have come to their end.",
        },
        refine={
            "type": "boolean",
            "default": True,
            "description": "false: the first answer counts.",
        },
        idempotency_key={
            "type": "string",
            "minLength": 1,
            "description": "The same key with the same tasks gives the same subagents.",
        },
    )


def _task_schema(terms: Terms) -> Schema:
    """One task of spawn_subagents."""
    paths = {"type": "array", "items": TEXT}
    kind: Schema = {"type": "string", "description": "The specialised type to use, if any."}
    if terms.type_names:
        kind["enum"] = list(terms.type_names)
    return given(
        required=("task", "context_paths"),
        task={
            "type": "string",
            "minLength": 1,
            "description": "What the subagent is to do, complete in itself.",
        },
        subagent_id={
            "type": "string",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
            "description": "A telling name, never used before; else one is made.",
        },
        context_paths=paths
        | {"description": 'Files and folders it may read: [], ["./"], or single paths. Required.'},
        context_files=paths | {"description": "Further single files, copied for it to read."},
        subagent_type=kind,
        timeout_seconds={
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": MAX_SECONDS,
            "description": f"How long it may take; {terms.default_seconds:g} without it.",
        },
    )


def _gives(required: tuple[str, ...], **properties: Schema) -> Schema:
    """Structured output: these at least, and what background work brought meanwhile."""
    riding: Schema = {
        "type": "array",
        "items": _RESULT,
        "description": "Background results that were not seen yet; each comes once.",
    }
    return {
        "type": "object",
        "properties": {**properties, "background_results": riding},
        "required": list(required),
    }


_STANDS = ("pending", "running", "blocked", "completed", "failed", "cancelled")
_STATUS: Schema = {
    "enum": list(_STANDS),
    "description": "Where the subagent stands; its result has a status of its own.",
}
_RESULT_FIELDS: dict[str, Schema] = {
    "subagent_id": TEXT,
    "status": {
        "enum": [each.value for each in Status],
        "description": "What the answer is worth.",
    },
    "success": FLAG,
    "answer": {"type": ["string", "null"]},
    "workspace": TEXT,
    "workspace_path": TEXT,
    "execution_time_seconds": NUMBER,
    "token_usage": {"type": "object"},
    "log_path": TEXT,
    "error": TEXT,
    "completion_percentage": NUMBER,
    "warning": TEXT,
    "questions": {"type": "array", "items": TEXT},
    "workspace_files": {"type": "array", "items": TEXT},
}
_RESULT_ALWAYS = ("subagent_id", "status", "success", "answer", "workspace", "token_usage")
_RESULT: Schema = {
    "type": "object",
    "properties": _RESULT_FIELDS,
    "required": list(_RESULT_ALWAYS),
}
_MAYBE_RESULT: Schema = {"anyOf": [_RESULT, {"type": "null"}]}
_ROW_FIELDS: dict[str, Schema] = {
    "subagent_id": TEXT,
    "status": _STATUS,
    "phase": TEXT,
    "completion_percentage": NUMBER,
    "task": TEXT,
    "workspace": TEXT,
    "session": {"type": "object"},
    "started_at": {"type": ["string", "null"]},
    "elapsed_seconds": NUMBER,
    "token_usage": {"type": "object"},
}
_ROW_ALWAYS = ("subagent_id", "status", "task", "workspace", "elapsed_seconds")


def _listed(*names: str) -> Schema:
    """Rows, of which only what tells them apart is described: clients check each of its values."""
    row: Schema = {
        "type": "object",
        "properties": dict.fromkeys(names, TEXT) | {"status": _STATUS},
        "required": list(dict.fromkeys([*names, *_ROW_ALWAYS])),
        "description": f"With {', '.join(_ROW_FIELDS)}, as far as they are known.",
    }
    return {"type": "array", "items": row}


RESULT = _gives(_RESULT_ALWAYS, **_RESULT_FIELDS)
ROW = _gives(("job_id", *_ROW_ALWAYS), job_id=TEXT, **_ROW_FIELDS)
ROWS = _gives(("subagents",), subagents=_listed("subagent_id"))
JOB = _gives(("job_id", "status", "result"), job_id=TEXT, status=_STATUS, result=_MAYBE_RESULT)
SETTLED = _gives(
    ("job_id", "status", "cancelled", "result"),
    job_id=TEXT,
    status=_STATUS,
    cancelled=FLAG,
    result=_RESULT,
)
WAITED = _gives(
    ("job_id", "status", "result"),
    job_id={"type": ["string", "null"]},
    status=_STATUS
    | {
        "enum": [*_STANDS, "timed_out", "idle"],
        "description": "Where the subagent stands. timed_out: none settled in time; idle: none is "
        "at work, and every result has been told.",
    },
    result=_MAYBE_RESULT,
    interrupted=FLAG,
    injected_content=TEXT,
    running={"type": "integer"},
)
JOBS = _gives(("jobs",), jobs=_listed("job_id", "tool"))
BATCH_OR_BACKGROUND = _gives(
    ("success",),
    success=FLAG,
    results={"type": "array", "items": _RESULT},
    summary={"type": "object"},
    mode={"enum": ["background"]},
    subagents={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "subagent_id": TEXT,
                "status": _STATUS,
                "workspace": TEXT,
                "status_file": TEXT,
                "warning": TEXT,
            },
            "required": ["subagent_id", "status", "workspace", "status_file"],
        },
    },
    note=TEXT,
    warnings={
        "type": "array",
        "items": TEXT,
        "description": "What to know of the call as a whole.",
    },
)
