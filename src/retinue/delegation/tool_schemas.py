"""JSON Schemas for the input and output of the delegation tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retinue.core.result import Status
from retinue.core.subagent_type import Catalogue, SubagentType
from retinue.core.task_config import MAX_SECONDS, TaskConfig

# Most tasks in one call where the configuration queues them instead of refusing.
MAX_QUEUED = 1000
# Coding agents by their names in briefs, as in the table of `agents/profiles.py`.
AGENTS = ("claude", "codex", "gemini", "opencode", "goose", "copilot")


@dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """Limits that the tool descriptions state."""

    enabled: bool = True
    background: bool = True
    most: int = 3  # tasks in one call
    default_seconds: float = 300.0
    least_seconds: float = 60.0
    most_seconds: float = 600.0
    types: tuple[SubagentType, ...] = ()  # described to the parent
    type_names: tuple[str, ...] = ()  # accepted as subagent_type
    answer_characters: int = 8000  # of one answer in one tool result
    plain_names: bool = False  # list the lifecycle tools by their short names
    nodes: bool = False  # whether a task may name where it runs
    agents: tuple[str, ...] = AGENTS  # coding agents that can be used
    problem: str = ""  # why no subagent can be started
    remedy: str = ""  # what the user can do about that


def read_tool_limits(config: TaskConfig, catalogue: Catalogue, *, enabled: bool) -> ToolLimits:
    """Return the limits of a task with this configuration."""
    return ToolLimits(
        enabled=enabled,
        background=config.background_enabled,
        most=MAX_QUEUED if config.admission == "queue" else config.max_concurrent,
        default_seconds=config.default_timeout_ms / 1000,
        least_seconds=config.min_timeout_ms / 1000,
        most_seconds=config.max_timeout_ms / 1000,
        types=catalogue.list_active(config.subagent_types)[0],
        type_names=catalogue.narrow(config.subagent_types).names,
        answer_characters=config.answer_characters,
    )


Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}


def build_input_schema(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """Return the schema of an object that allows only these properties."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(required)} if required else {})


def build_small_schema(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """Return the schema of a tool with few arguments.

    Unknown ones are refused by the call, not by the schema: saying so costs tokens in every tool.
    """
    schema = build_input_schema(required, **properties)
    del schema["additionalProperties"]
    return schema


def spawn_schema(terms: ToolLimits) -> Schema:
    return build_input_schema(
        required=("tasks",),
        tasks={
            "type": "array",
            "minItems": 1,
            "maxItems": terms.most,
            "items": _build_task_schema(terms),
        },
        background=FLAG,
        refine=FLAG,
        apply={"type": "boolean", "description": "Fast-forward a clean checkout."},
        idempotency_key=TEXT,
    )


def _build_task_schema(terms: ToolLimits) -> Schema:
    paths = {"type": "array", "items": TEXT}
    kind: Schema = {"type": "string"}
    if terms.types:
        words = (f"{each.name}: {_get_first_sentence(each.description)}" for each in terms.types)
        kind["description"] = " ".join(words)
    if terms.type_names:
        kind["enum"] = list(terms.type_names)
    # Most roots have no nodes, and each argument costs tokens.
    places = {"on": TEXT | {"description": "Label of its node, or host=NAME."}}
    return build_input_schema(
        required=("task", "context_paths"),
        task={"type": "string", "minLength": 1},
        subagent_id=TEXT,
        context_paths=paths,
        context_files=paths,
        subagent_type=kind,
        timeout_seconds={
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": MAX_SECONDS,
            "description": f"{terms.least_seconds:g} to {terms.most_seconds:g}; "
            f"default {terms.default_seconds:g}.",
        },
        integration={
            "type": "string",
            "enum": ["merge", "none"],
            "description": "merge: its changes go to a branch.",
        },
        owns=paths | {"description": "Globs it may change; else runs alone."},
        depends_on=paths | {"description": "Merged tasks in this call."},
        agent=TEXT | {"description": f"{', '.join(terms.agents) or 'None can be used here'}."},
        model=TEXT,
        access={"type": "string", "enum": ["read", "write"]},
        **(places if terms.nodes else {}),
    )


def _get_first_sentence(text: str) -> str:
    """Return the first sentence of a description; the rest is in the resource about types."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".") + "."


def _build_output_schema(required: tuple[str, ...], **properties: Schema) -> Schema:
    """Return the schema of an answer. Every answer can carry background results.

    Other properties are allowed: an answer may say more than its schema.
    """
    riding: Schema = {
        "type": "array",
        "items": _RESULT,
        "description": "Background results not delivered before; each comes once.",
    }
    plans: Schema = {
        "type": "array",
        "items": {"type": "object"},
        "description": "Plans of tasks with depends_on that ended since: success, branch, "
        "not_started.",
    }
    return {
        "type": "object",
        "properties": {**properties, "background_results": riding, "plans": plans},
        "required": list(required),
    }


_STANDS = (
    "pending",
    "running",
    "blocked",
    "waiting_for_merge",
    "completed",
    "failed",
    "cancelled",
)
_STATUS: Schema = {
    "enum": list(_STANDS),
    "description": "State of the subagent; its result has a status of its own.",
}
_RESULT_FIELDS: dict[str, Schema] = {
    "subagent_id": TEXT,
    "status": {
        "enum": [each.value for each in Status],
        "description": "What the answer is worth.",
    },
    "success": FLAG,
    "next": {"type": "string", "description": "What to do with it."},
    "answer": {"type": ["string", "null"]},
    "answer_rest": {"type": "string", "description": "How to read the rest of a long answer."},
    "workspace": TEXT,
    "workspace_path": TEXT,
    "workspace_removed": FLAG,
    "execution_time_seconds": NUMBER,
    "token_usage": {"type": "object"},
    "log_path": TEXT,
    "error": TEXT,
    "error_output": {
        "type": "string",
        "description": "Of a command that failed: the end of its stdout and stderr.",
    },
    "completion_percentage": NUMBER,
    "warning": TEXT,
    "questions": {"type": "array", "items": TEXT},
    "workspace_files": {"type": "array", "items": TEXT},
    "integration": {
        "type": "object",
        "description": "Of merged output: reason, commit, branch, diffstat; on a conflict files "
        "and the path of the patch.",
    },
    "agent": {"type": "object"},
    "structured_answer": {},
}
_RESULT_ALWAYS = ("subagent_id", "status", "success", "answer", "workspace")
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
    "continues": TEXT,
    "started_at": TEXT,
    "elapsed_seconds": NUMBER,
    "token_usage": {"type": "object"},
}
_ROW_ALWAYS = ("subagent_id", "status", "task", "workspace", "elapsed_seconds")


def _build_rows_schema(*names: str) -> Schema:
    """Return the schema of a list of rows.

    It describes only the identifying fields: clients validate every described value of every row.
    """
    row: Schema = {
        "type": "object",
        "properties": dict.fromkeys(names, TEXT) | {"status": _STATUS},
        "required": list(dict.fromkeys([*names, *_ROW_ALWAYS])),
        "description": f"With {', '.join(_ROW_FIELDS)}, as far as they are known.",
    }
    return {"type": "array", "items": row}


RESULT = _build_output_schema(_RESULT_ALWAYS, **_RESULT_FIELDS)
ROW = _build_output_schema(("job_id", *_ROW_ALWAYS), job_id=TEXT, **_ROW_FIELDS)
_LEFT_OUT: dict[str, Schema] = {
    "total": {"type": "integer", "description": "How many there are, where some are left out."},
    "shown": {"type": "integer"},
}
ROWS = _build_output_schema(
    ("subagents",), subagents=_build_rows_schema("subagent_id"), problem=TEXT, **_LEFT_OUT
)
JOB = _build_output_schema(
    ("job_id", "status", "result"), job_id=TEXT, status=_STATUS, result=_MAYBE_RESULT
)
SETTLED = _build_output_schema(
    ("job_id", "status", "cancelled", "result"),
    job_id=TEXT,
    status=_STATUS,
    cancelled=FLAG,
    result=_RESULT,
)
WAITED = _build_output_schema(
    ("job_id", "status", "result"),
    job_id={"type": ["string", "null"]},
    status=_STATUS
    | {
        "enum": [*_STANDS, "timed_out", "idle"],
        "description": "State of the subagent. timed_out: none settled in time; idle: none is "
        "running, and all results were delivered.",
    },
    result=_MAYBE_RESULT,
    interrupted=FLAG,
    injected_content=TEXT,
    running={"type": "integer"},
)
JOBS = _build_output_schema(("jobs",), jobs=_build_rows_schema("job_id", "tool"), **_LEFT_OUT)
BATCH_OR_BACKGROUND = _build_output_schema(
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
    branch={"type": "string", "description": "Where output was merged."},
    not_started={"type": "object", "description": "Tasks that never started, and why."},
    warnings={
        "type": "array",
        "items": TEXT,
        "description": "Warnings about the call as a whole.",
    },
)
