"""Tool answers as text for an agent, with the words of subagents quoted line by line.

Every line that a subagent wrote starts with the quoting mark, and no other line does. So a
subagent cannot forge another result or a message from Retinue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from retinue.core.hidden_text import reveal_hidden
from retinue.formats.result_json import counts_to_text, usage_to_text

QUOTE = "  | "
# Limits of the text; the document beside it has the full lists.
MOST_FILES = 20
MOST_OUTPUT_LINES = 40  # the last lines of a failed command's output
MOST_OUTPUT = 4_000  # characters of these lines
# Background results arrive unasked with other answers, so both text and document are cut.
LONGEST_RIDING = 16_000  # characters
ADVICE = {
    "completed": "",
    "completed_but_timeout": "complete, though late: use the answer",
    "partial": "no final answer: look into the workspace, without running git there; finish it "
    "yourself or with continue_subagent, or spawn a smaller task with another subagent_id",
    "timeout": "nothing recovered: look into the workspace, without running git there; split the "
    "task or give it more time, with another subagent_id or continue_subagent",
    "error": "read the error and mend its cause; then continue_subagent, or spawn it with another "
    "subagent_id: with the same one this result comes again",
    "cancelled": "it was stopped",
    "blocked": "it asks questions: answer them with continue_subagent",
}

Document = Mapping[str, Any]


def quote_lines(text: object) -> str:
    """Mark each line of untrusted text as quoted, and make hidden characters visible."""
    lines = reveal_hidden(str(text).replace("\r\n", "\n")).split("\n")
    return "\n".join(QUOTE + line for line in lines)


def quote_on_one_line(text: object) -> str:
    """Reduce untrusted text to one line without marks, for use inside a line of our own."""
    return reveal_hidden(" ".join(str(text).split()))


def format_result(result: Document) -> str:
    status = quote_on_one_line(result.get("status"))
    said = [f"[{quote_on_one_line(result.get('subagent_id'))}] {status}"]
    if "completion_percentage" in result:
        said.append(f"{result['completion_percentage']:g} %")
    said.append(f"{result.get('execution_time_seconds', 0):.1f} s")
    said += filter(None, [usage_to_text(result.get("token_usage") or {})])
    parts = [", ".join(said)]
    parts += [advice] if (advice := ADVICE.get(status)) else []
    gone = ", which was removed since" if result.get("workspace_removed") else ""
    parts.append(f"workspace: {quote_on_one_line(result.get('workspace'))}{gone}")
    if files := result.get("workspace_files"):
        parts += [f"files it left there: {len(files)}", quote_lines("\n".join(files[:MOST_FILES]))]
    if note := (result.get("integration") or {}).get("workspace_note"):
        parts.append(quote_on_one_line(note))
    if ignored := (result.get("integration") or {}).get("ignored"):
        parts += ["not joined, because git ignores it:", quote_lines("\n".join(ignored))]
    for name in ("error", "warning"):
        parts += [f"{name}:", quote_lines(result[name])] if result.get(name) else []
        if name == "error" and result.get("error_output"):
            parts += _format_error_output(str(result["error_output"]))
    for question in result.get("questions") or ():
        parts += ["question:", quote_lines(question)]
    if result.get("answer") is not None:
        parts += ["answer:", quote_lines(result["answer"])]
    return "\n".join(parts)


def _format_error_output(text: str) -> list[str]:
    """Return the last lines that a failed command printed, under a heading."""
    last = "\n".join(text.split("\n")[-MOST_OUTPUT_LINES:])[-MOST_OUTPUT:]
    heading = "output:" if last == text else "the end of its output; error_output has more:"
    return [heading, quote_lines(last)]


def format_batch(batch: Document) -> str:
    counts = counts_to_text([each["status"] for each in batch["results"]])
    outcome = "all succeeded" if batch["success"] else "not all succeeded"
    head = f"{outcome}, {quote_on_one_line(counts)}"
    head = "\n".join([head, *format_warnings(batch)])
    return "\n\n".join([head, *map(format_result, batch["results"])])


def format_spawned(answer: Document) -> str:
    """Return the text of a background spawn, with everything its document holds."""
    said = [f"mode: {quote_on_one_line(answer['mode'])}", *format_warnings(answer)]
    for each in answer["subagents"]:
        said += [
            f"[{quote_on_one_line(each['subagent_id'])}] {quote_on_one_line(each['status'])}",
            f"workspace: {quote_on_one_line(each['workspace'])}",
            f"status_file: {quote_on_one_line(each['status_file'])}",
        ]
        said += ["warning:", quote_lines(each["warning"])] if each.get("warning") else []
    return "\n".join([*said, answer["note"]])


def format_warnings(answer: Document) -> list[str]:
    """Return the warnings about the call as a whole, one line each."""
    return [f"warning: {quote_on_one_line(each)}" for each in answer.get("warnings", ())]


def format_row(row: Document) -> str:
    said = [f"[{quote_on_one_line(row['subagent_id'])}] {quote_on_one_line(row['status'])}"]
    said += [quote_on_one_line(row["phase"])] if row.get("phase") else []
    if row.get("completion_percentage") is not None:
        said.append(f"{row['completion_percentage']:g} %")
    said.append(f"{row['elapsed_seconds']:.1f} s")
    said += filter(None, [usage_to_text(row.get("token_usage") or {})])
    session = [f"{name} {quote_on_one_line(value)}" for name, value in row["session"].items()]
    return "\n".join(
        [
            ", ".join(said),
            f"workspace: {quote_on_one_line(row['workspace'])}",
            f"session: {', '.join(session)}",
            quote_lines(row["task"]),
        ]
    )


def format_rows(rows: Iterable[Document], none: str) -> str:
    return "\n".join(map(format_row, rows)) or none


def format_running(rows: Iterable[Document]) -> str:
    """List the running subagents on one line."""
    said = []
    for row in rows:
        percentage = row.get("completion_percentage")
        tail = "" if percentage is None else f" {percentage:g} %"
        said.append(
            f"{quote_on_one_line(row['subagent_id'])} {quote_on_one_line(row['status'])}{tail}"
        )
    return ", ".join(said) or "nothing is running"


def shorten_background_result(told: Document) -> dict[str, Any]:
    """Return a background result with a long answer or output cut and a warning that says so."""
    result = dict(told["result"])
    answer = result.get("answer")
    if isinstance(answer, str) and len(answer) > LONGEST_RIDING:
        result["answer"] = answer[:LONGEST_RIDING]
        note = f"the answer has {len(answer)} characters: fetch it to read them all"
        result["warning"] = "; ".join(filter(None, [result.get("warning"), note]))
    output = result.get("error_output")
    if isinstance(output, str) and len(output) > LONGEST_RIDING:
        result["error_output"] = output[-LONGEST_RIDING:]
        note = f"error_output has {len(output)} characters: fetch the result to read them all"
        result["warning"] = "; ".join(filter(None, [result.get("warning"), note]))
    return result


def format_background_result(results: Iterable[Document]) -> str:
    return "\n\n".join(["Background results, delivered once:", *map(format_result, results)])
