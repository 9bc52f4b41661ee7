"""Tool answers as text for an agent, with the words of subagents quoted line by line.

Every line that a subagent wrote starts with the quoting mark, and no other line does. So a
subagent cannot forge another result or a message from Retinue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from retinue.core.safe_text import reveal_hidden
from retinue.formats.result_json import counts_to_text, usage_to_text

QUOTE = "  | "

Document = Mapping[str, Any]


def quote_lines(text: object) -> str:
    """Mark each line of untrusted text as quoted, and make hidden characters visible."""
    lines = reveal_hidden(str(text).replace("\r\n", "\n")).split("\n")
    return "\n".join(QUOTE + line for line in lines)


def quote_on_one_line(text: object) -> str:
    """Reduce untrusted text to one line without marks, for use inside a line of our own."""
    return reveal_hidden(" ".join(str(text).split()))


def format_result(result: Document, *, elsewhere: bool = False) -> str:
    """Return the text of a result view; `elsewhere`: its workspace is named for the batch."""
    status = quote_on_one_line(result.get("status"))
    facts = [f"[{quote_on_one_line(result.get('subagent_id'))}] {status}"]
    if "completion_percentage" in result:
        facts.append(f"{result['completion_percentage']:g} %")
    facts.append(f"{result.get('execution_time_seconds', 0):.1f} s")
    facts += filter(None, [usage_to_text(result.get("token_usage") or {})])
    if agent := result.get("agent"):
        facts.append(quote_on_one_line(f"{agent.get('name', '')} {agent.get('version') or ''}"))
    parts = [", ".join(facts)]
    parts += [f"next: {result['next']}"] if result.get("next") else []
    gone = ", which was removed since" if result.get("workspace_removed") else ""
    if gone or not elsewhere:
        parts.append(f"workspace: {quote_on_one_line(result.get('workspace'))}{gone}")
    if files := result.get("workspace_files"):
        parts += ["files it left there:", quote_lines("\n".join(files))]
    parts += _format_integration(result.get("integration") or {})
    for name in ("error", "error_output", "warning"):
        parts += [f"{name}:", quote_lines(result[name])] if result.get(name) else []
    for question in result.get("questions") or ():
        parts += ["question:", quote_lines(question)]
    if result.get("answer") is not None:
        parts += ["answer:", quote_lines(result["answer"])]
    if result.get("answer_rest"):
        parts.append(quote_on_one_line(result["answer_rest"]))
    if result.get("log_path"):
        parts.append(f"logs: {quote_on_one_line(result['log_path'])}")
    return "\n".join(parts)


def _format_integration(joined: Document) -> list[str]:
    """Return what became of the output in the repository."""
    parts = []
    if joined.get("mode") == "merge":
        words = [str(joined[key]) for key in ("reason", "commit", "branch") if joined.get(key)]
        parts.append(f"integration: {quote_on_one_line(' '.join(words))}")
        parts += [quote_lines("\n".join(joined["diffstat"]))] if joined.get("diffstat") else []
        conflict = joined.get("files")
        if isinstance(conflict, list) and conflict:
            parts += ["in conflict:", quote_lines("\n".join(map(str, conflict)))]
        if joined.get("patch"):
            parts.append(f"patch: {quote_on_one_line(joined['patch'])}")
    if note := joined.get("workspace_note"):
        parts.append(quote_on_one_line(note))
    if ignored := joined.get("ignored"):
        parts += ["not joined, because git ignores it:", quote_lines("\n".join(ignored))]
    return parts


def format_batch(batch: Document) -> str:
    counts = counts_to_text([each["status"] for each in batch["results"]])
    outcome = "all succeeded" if batch["success"] else "not all succeeded"
    head = f"{outcome}, {quote_on_one_line(counts)}"
    shared = _find_workspace_pattern(batch["results"]) if len(batch["results"]) > 1 else ""
    where = [f"workspaces: {quote_on_one_line(shared)}"] if shared else []
    head = "\n".join([head, *format_warnings(batch), *where])
    texts = [format_result(each, elsewhere=bool(shared)) for each in batch["results"]]
    return "\n\n".join([head, *texts])


def _find_workspace_pattern(rows: Sequence[Document]) -> str:
    """Return the path of all workspaces, with <id> for the subagent; empty if they differ."""
    places = {str(row["workspace"]).replace(f"/{row['subagent_id']}/", "/<id>/", 1) for row in rows}
    pattern = places.pop()
    return pattern if not places and "/<id>/" in pattern else ""


def format_spawned(answer: Document) -> str:
    """Return the text of a background spawn, with everything its document holds."""
    lines = [f"mode: {quote_on_one_line(answer['mode'])}", *format_warnings(answer)]
    for each in answer["subagents"]:
        lines += [
            f"[{quote_on_one_line(each['subagent_id'])}] {quote_on_one_line(each['status'])}",
            f"workspace: {quote_on_one_line(each['workspace'])}",
            f"status_file: {quote_on_one_line(each['status_file'])}",
        ]
        lines += ["warning:", quote_lines(each["warning"])] if each.get("warning") else []
    return "\n".join([*lines, answer["note"]])


def format_run_end(end: Document) -> str:
    """Return the lines about the end of a plan."""
    lines = []
    if "plan" in end:
        outcome = "succeeded" if end["success"] else "did not succeed"
        lines.append(f"plan {quote_on_one_line(end['plan'])} ended and {outcome}")
    lines += [
        f"{key}: {quote_on_one_line(end[key])}" for key in ("branch", "applied") if key in end
    ]
    for name, why in end.get("not_started", {}).items():
        lines.append(f"[{quote_on_one_line(name)}] not started: {quote_on_one_line(why)}")
    return "\n".join(lines)


def format_warnings(answer: Document) -> list[str]:
    """Return the warnings about the call as a whole, one line each."""
    return [f"warning: {quote_on_one_line(each)}" for each in answer.get("warnings", ())]


def format_row(row: Document) -> str:
    """Return one line about a subagent; its title is at the end, where it can forge nothing."""
    facts = [f"[{quote_on_one_line(row['subagent_id'])}] {quote_on_one_line(row['status'])}"]
    facts += [quote_on_one_line(row["phase"])] if row.get("phase") else []
    if row.get("completion_percentage") is not None:
        facts.append(f"{row['completion_percentage']:g} %")
    facts += (
        [f"waiting for {quote_on_one_line(row['waiting_for'])}"] if "waiting_for" in row else []
    )
    facts.append(f"{row.get('elapsed_seconds', 0):.1f} s")
    facts += filter(None, [usage_to_text(row.get("token_usage") or {})])
    if "continues" in row:
        facts.append(f"continues {quote_on_one_line(row['continues'])}")
    return f"{', '.join(facts)}: {quote_on_one_line(row.get('task', ''))}"


def format_status(row: Document) -> str:
    """Return the text of one subagent's status."""
    started = [f"started at {row['started_at']}"] if row.get("started_at") else []
    return "\n".join(
        [format_row(row), f"workspace: {quote_on_one_line(row['workspace'])}", *started]
    )


def format_rows(rows: Sequence[Document], none: str) -> str:
    """Return a line for each row, and where their workspaces are."""
    if not rows:
        return none
    lines = [format_row(row) for row in rows]
    # A continued subagent works in the workspace of the first of its line.
    pattern = _find_workspace_pattern([row for row in rows if "continues" not in row] or rows)
    return "\n".join([*lines, *([f"workspaces: {quote_on_one_line(pattern)}"] if pattern else [])])


def format_running(rows: Iterable[Document]) -> str:
    """List the running subagents on one line."""
    words = []
    for row in rows:
        percentage = row.get("completion_percentage")
        tail = "" if percentage is None else f" {percentage:g} %"
        words.append(
            f"{quote_on_one_line(row['subagent_id'])} {quote_on_one_line(row['status'])}{tail}"
        )
    return ", ".join(words) or "nothing is running"


def format_background_results(results: Iterable[Document]) -> str:
    return "\n\n".join(["Background results, delivered once:", *map(format_result, results)])
