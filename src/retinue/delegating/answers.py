"""Answers as text that an agent reads: a subagent's words are quoted line by line.

Every line that a subagent wrote starts with the quoting mark, and none of ours does; so nothing
that it writes can pass for another result, or for us.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from retinue.wire.result import counts_to_text, usage_to_text

QUOTE = "  | "
MOST_FILES = 20  # that are named to a parent; the document has more
LONGEST_RIDING = 16_000  # characters of an answer that nobody asked for just now
ADVICE = {
    "completed": "",
    "completed_but_timeout": "complete, though late: use the answer",
    "partial": "no final answer: look into the workspace; finish it yourself or with "
    "continue_subagent, or spawn a smaller task with another subagent_id",
    "timeout": "nothing recovered: look into the workspace; split the task or give it more time, "
    "with another subagent_id or continue_subagent",
    "error": "read the error and mend its cause; then continue_subagent, or spawn it with another "
    "subagent_id: with the same one this result comes again",
    "cancelled": "it was stopped",
    "blocked": "it asks questions: answer them with continue_subagent",
}
# What ends a line somewhere, moves a cursor or turns the direction of text.
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)

Document = Mapping[str, Any]


def quoted(text: object) -> str:
    """What a stranger wrote: each line marked, nothing in it that would act."""
    lines = _ACTIVE.sub("\ufffd", str(text).replace("\r\n", "\n")).split("\n")
    return "\n".join(QUOTE + line for line in lines)


def line(text: object) -> str:
    """The same on a line of ours: one line, without marks."""
    return _ACTIVE.sub("\ufffd", " ".join(str(text).split()))


def result_text(result: Document) -> str:
    status = line(result.get("status"))
    said = [f"[{line(result.get('subagent_id'))}] {status}"]
    if "completion_percentage" in result:
        said.append(f"{result['completion_percentage']:g} %")
    said.append(f"{result.get('execution_time_seconds', 0):.1f} s")
    said += filter(None, [usage_to_text(result.get("token_usage") or {})])
    parts = [", ".join(said)]
    parts += [advice] if (advice := ADVICE.get(status)) else []
    parts.append(f"workspace: {line(result.get('workspace'))}")
    if files := result.get("workspace_files"):
        parts += [f"files it left there: {len(files)}", quoted("\n".join(files[:MOST_FILES]))]
    if ignored := (result.get("integration") or {}).get("ignored"):
        parts += ["not joined, because git ignores it:", quoted("\n".join(ignored))]
    for name in ("error", "warning"):
        parts += [f"{name}:", quoted(result[name])] if result.get(name) else []
    for question in result.get("questions") or ():
        parts += ["question:", quoted(question)]
    if result.get("answer") is not None:
        parts += ["answer:", quoted(result["answer"])]
    return "\n".join(parts)


def batch_text(batch: Document) -> str:
    counts = counts_to_text([each["status"] for each in batch["results"]])
    head = f"{'all succeeded' if batch['success'] else 'not all succeeded'}, {line(counts)}"
    head = "\n".join([head, *warnings(batch)])
    return "\n\n".join([head, *map(result_text, batch["results"])])


def spawned_text(answer: Document) -> str:
    rows = [
        f"[{line(each['subagent_id'])}] {line(each['status'])}, workspace: "
        f"{line(each['workspace'])}"
        + (f"\nwarning:\n{quoted(each['warning'])}" if each.get("warning") else "")
        for each in answer["subagents"]
    ]
    return "\n".join([*warnings(answer), *rows, answer["note"]])


def warnings(answer: Document) -> list[str]:
    """What is said of a call as a whole."""
    return [f"warning: {line(each)}" for each in answer.get("warnings", ())]


def row_text(row: Document) -> str:
    said = [f"[{line(row['subagent_id'])}] {line(row['status'])}"]
    said += [line(row["phase"])] if row.get("phase") else []
    if row.get("completion_percentage") is not None:
        said.append(f"{row['completion_percentage']:g} %")
    said.append(f"{row['elapsed_seconds']:.1f} s")
    said += filter(None, [usage_to_text(row.get("token_usage") or {})])
    session = [f"{name} {line(value)}" for name, value in row["session"].items()]
    return "\n".join(
        [
            ", ".join(said),
            f"workspace: {line(row['workspace'])}",
            f"session: {', '.join(session)}",
            quoted(row["task"]),
        ]
    )


def rows_text(rows: Iterable[Document], none: str) -> str:
    return "\n".join(map(row_text, rows)) or none


def running_text(rows: Iterable[Document]) -> str:
    """What is at work, on one line."""
    said = []
    for row in rows:
        percentage = row.get("completion_percentage")
        tail = "" if percentage is None else f" {percentage:g} %"
        said.append(f"{line(row['subagent_id'])} {line(row['status'])}{tail}")
    return ", ".join(said) or "nothing is running"


def riding(told: Document) -> dict[str, Any]:
    """A background result as it comes with another answer: with its words cut where too many."""
    result = dict(told["result"])
    answer = result.get("answer")
    if isinstance(answer, str) and len(answer) > LONGEST_RIDING:
        result["answer"] = answer[:LONGEST_RIDING]
        note = f"the answer has {len(answer)} characters: fetch it to read them all"
        result["warning"] = "; ".join(filter(None, [result.get("warning"), note]))
    return result


def riding_text(results: Iterable[Document]) -> str:
    return "\n\n".join(["Background results, told once:", *map(result_text, results)])
