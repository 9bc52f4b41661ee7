"""Formatters of the steward's documents for the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from retinue.cli import render
from retinue.core.errors import add_hint_to_error
from retinue.core.join_result import NO_GIT_THERE

if TYPE_CHECKING:
    from retinue.cli.steward_session import CliSession

MOST_FILES = 12
GONE = "removed since, by 'retinue gc' or by hand"
# The last lines of a failed command's output
MOST_OUTPUT_LINES = 12
LONGEST_OUTPUT_LINE = 400
# How a coding agent remembers an earlier conversation.
RESUMED = {
    "native": "in the same session",
    "transcript": "in a new session that was told the earlier one",
}
# Statuses of subagents that a table shows first
AT_WORK = ("pending", "running", "blocked", "waiting_for_merge")
# States that a subagent leaves only by being closed
LEFT_OPEN = ("completed", "failed")

Document = dict[str, Any]


def format_tasks(found: list[Document]) -> str:
    if not found:
        return "no tasks yet: retinue task create --title T"
    return render.format_table(
        ("TASK", "STATE", "OUTCOME", "SUBAGENTS", "TITLE"),
        [
            (each["task_id"], each["state"], each["outcome"], each["subagents"], each["title"])
            for each in found
        ],
        right=(3,),
    )


def format_task(whole: Document) -> str:
    config = whole.get("config")
    limit = config.get("maxConcurrentAgents") if isinstance(config, dict) else None
    about = render.format_facts(
        [
            ("task", whole["task_id"]),
            ("title", whole["title"]),
            ("about", whole.get("description")),
            ("state", whole["state"]),
            ("run", whole["run_id"]),
            ("outcome", whole["outcome"]),
            ("created", whole["created_at"]),
            ("at once", None if "problem" in whole else limit),
            ("problem", whole.get("problem")),
            ("spent", format_spent(whole["metrics"]["totals"])),
            ("folder", whole["path"]),
        ]
    )
    rows = format_subagents(whole["subagents"])
    cut = format_left_out(whole["subagents_total"], whole["subagents_shown"])
    header = [cut] if cut else []
    return "\n".join(
        [about, "", *header, rows, *format_not_started(whole), *_format_questions(whole)]
    )


def answer_task(session: CliSession, whole: Document) -> None:
    """Print a task, and note if the list of its subagents is not complete."""
    session.answer(whole, format_task)
    _note_left_out(session, whole["subagents_total"], whole["subagents_shown"])


def answer_list(session: CliSession, found: Document, *, page: bool = False) -> None:
    """Print a list of subagents, and note if it is not complete.

    Args:
        page: in JSON, print an object with the totals instead of a note.
    """
    cut = format_left_out(found["total"], found["shown"])
    header = f"{cut}\n" if cut else ""
    document = found if page and session.json else found["subagents"]
    session.answer(document, lambda _: header + format_subagents(found["subagents"]))
    if not (page and session.json):
        _note_left_out(session, found["total"], found["shown"])


def format_left_out(total: int, shown: int) -> str:
    """Return a line about the subagents that are not listed; empty if all are."""
    return f"{shown} of {total} subagents; --all shows the older closed ones" * (shown < total)


def _note_left_out(session: CliSession, total: int, shown: int) -> None:
    """Note missing subagents on standard error if a program reads standard output."""
    if shown < total and (session.json or not render.is_read_by_a_person()):
        render.note(format_left_out(total, shown))


def format_question(
    task: str, gate: object, subagent: object, questions: Iterable[object], *, review: bool = False
) -> str:
    """Return the questions of a gate on one line, and the command that answers them.

    Args:
        review: the gate is about output to approve.
    """
    asked = render.to_one_line("; ".join(map(str, questions)) or "an answer")
    who = render.to_one_line(subagent)
    command = f"retinue gate approve {task} {render.to_one_line(gate)}"
    if review:
        return f"{who}: {asked} ({command}, or gate reject)"
    return f"{who} asks: {asked} ({command} --answer TEXT)"


def format_how_to_answer(task: str = "TASK") -> str:
    """Return how to answer a blocked subagent whose gate is not known here."""
    return f"to answer: retinue gate approve {task} GATE --answer TEXT ('retinue gate list')"


def _format_questions(whole: Document) -> list[str]:
    """Return a line for each open gate."""
    return [
        format_question(whole["task_id"], gate["gate_id"], gate["agentInstance"], gate["questions"])
        for gate in whole["gates"]
    ]


def format_progress(row: Document) -> tuple[str, str, str, str]:
    """Return phase, percentage, tokens and cost of a subagent, for a table that is redrawn."""
    usage = row.get("token_usage") or {}
    tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    percentage = row.get("completion_percentage")
    return (
        render.to_one_line(row.get("phase") or ""),
        "" if percentage is None else f"{percentage:.0f}%",
        f"{tokens:,}",
        f"${usage.get('estimated_cost') or 0.0:.4f}",
    )


def format_spent(usage: Document | None) -> str:
    """Return tokens and cost in words; empty if no model was used."""
    from retinue.formats.result_json import usage_to_text

    # Escaped, because the names of models come from the child.
    return render.to_one_line(usage_to_text(usage or {}))


def format_cancelled(ended: Document) -> str:
    """Return the ids of the cancelled subagents, and the command that shows their results."""
    if not ended["cancelled"]:
        return "cancelled: none"
    names = ", ".join(ended["cancelled"])
    task = ended["task_id"]
    return f"cancelled: {names}\nshow their results with: retinue task join {task}"


def format_closed(task: Document) -> str:
    said = [f"{task['task_id']}  {task['state']}  {render.to_one_line(task['outcome'])}"]
    return "\n".join([*said, *map(render.to_one_line, task.get("warnings", ()))])


def format_joined(whole: Document) -> str:
    parts = [render.format_strong(render.to_one_line(whole["title"])) + f"  {whole['outcome']}"]
    for each in whole["subagents"]:
        result = each["result"] or {}
        parts += ["", f"{each['agentInstance']}  {render.format_status(each['status'])}"]
        asks = [f"asks: {each}" for each in result.get("questions", [])]
        error = f"error: {add_hint_to_error(result['error'])}" if result.get("error") else ""
        where = format_files_left(result) if result and not result["success"] else []
        said = list(
            filter(None, [error, *format_output(result), result.get("answer"), *asks, *where])
        )
        words = "\n".join(said or ["nothing yet"])
        parts += [f"  {line}" for line in render.escape_text(words).split("\n")]
    from retinue.formats.result_json import counts_to_text

    counts = counts_to_text([each["status"] for each in whole["subagents"]])
    never = format_not_started(whole)
    return "\n".join([*parts, *(["", *never] if never else []), "", counts])


def format_not_started(whole: Document) -> list[str]:
    """Return a line for each planned step that was not started."""
    never = (whole.get("not_started") or {}).items()
    return [f"{name}  not started: {render.to_one_line(why)}" for name, why in never]


def format_subagents(found: list[Document]) -> str:
    """Return a table of subagents, and what the parent still has to do."""
    if not found:
        return "no subagents yet: retinue subagent spawn TASK -- COMMAND"
    joins = [each["agentInstance"] for each in found if _must_be_joined(each)]
    closes = [each["agentInstance"] for each in found if each.get("state") in LEFT_OPEN]
    rows = render.format_table(
        ("ID", "STATUS", "ATTEMPT", "ELAPSED", "TOKENS", "TITLE"),
        [
            (
                each["agentInstance"],
                each["status"],
                each.get("attempt", "-"),
                render.format_seconds(each.get("elapsed_seconds")),
                render.format_tokens(each.get("token_usage")),
                each.get("task", ""),
            )
            for each in found
        ],
        paint=1,
        right=(2, 3, 4),
    )
    lines = [rows, *_format_waiting(found)]
    if joins:
        lines.append(f"to be joined: {', '.join(joins)} (retinue subagent integrate TASK ID)")
    if closes:
        lines.append(f"to be closed: {', '.join(closes)} (retinue subagent close TASK ID)")
    return "\n".join(lines)


def _format_waiting(found: list[Document]) -> list[str]:
    """Return a line for each thing that subagents wait for."""
    names: dict[str, list[str]] = {}
    for each in found:
        if each.get("waiting_for"):
            names.setdefault(each["waiting_for"], []).append(each["agentInstance"])
    return [
        f"{render.format_names(who)} {'waits' if len(who) == 1 else 'wait'} "
        f"for {render.to_one_line(what)}"
        for what, who in names.items()
    ]


def _must_be_joined(row: Document) -> bool:
    """Return whether the parent has to integrate it; a run joins its own steps."""
    return row["status"] == "waiting_for_merge" and row.get("integrated_by") != "run"


def format_join_outcome(how: Document) -> str:
    """Return how the output was joined, and where it is now."""
    where = str(how.get("commit") or "")[:12] or how.get("destination") or ""
    branch = f" on {how['branch']}" if how.get("branch") else ""
    ignored = how.get("ignored")
    out = f" (git ignores {', '.join(ignored)})" if ignored else ""
    return render.to_one_line(f"{how.get('reason') or ''} {where}{branch}".rstrip() + out)


def format_integrated(row: Document) -> str:
    """Return the state of the subagent, and how its output was joined or why not."""
    how = row["integration"]
    lines = [format_subagents([row])]
    lines.append(f"output: {format_join_outcome(how)}" if how else "there was nothing to join")
    if how.get("message"):
        lines.append(f"error: {render.to_one_line(how['message'])}")
    return "\n".join(lines)


def format_spawned(each: Document) -> str:
    status = render.format_status(each["status"])
    told = f"\n  warning: {render.to_one_line(each['warning'])}" if each.get("warning") else ""
    if each.get("resumes"):
        told += f"\n  continues {each['resumes']}"
    return f"{each['subagent_id']}  {status}  {render.escape_text(each['workspace'])}{told}"


def format_result(ended: Document) -> str:
    """Return the answer, then status, cost, errors and files."""
    lines = [] if ended.get("answer") is None else [render.escape_text(ended["answer"]), ""]
    state = [
        ended["subagent_id"],
        f"result: {render.format_status(ended['status'])}",
        render.format_seconds(ended.get("execution_time_seconds")),
    ]
    if usage := format_spent(ended.get("token_usage")):
        state.append(usage)
    if ended.get("completion_percentage") is not None:
        state.append(f"{ended['completion_percentage']}%")
    lines.append("  ".join(state))
    if ended.get("agent"):
        lines.append(f"agent: {format_agent(ended['agent'])}")
    if ended.get("error"):
        lines.append(f"error: {render.to_one_line(add_hint_to_error(ended['error']))}")
    lines += format_output(ended)
    if ended.get("warning"):
        lines.append(f"warning: {render.to_one_line(ended['warning'])}")
    if ended.get("integration"):
        lines.append(f"output: {format_join_outcome(ended['integration'])}")
    lines += [f"asks: {render.to_one_line(each)}" for each in ended.get("questions", [])]
    if ended["status"] == "blocked":
        lines.append(format_how_to_answer())
    return "\n".join([*lines, *format_files_left(ended)])


def format_agent(agent: Document) -> str:
    """Return which coding agent answered, and whether it remembered an earlier conversation."""
    said = RESUMED.get(agent.get("resumed", ""), "")
    name = " ".join(filter(None, (agent["name"], agent.get("version"))))
    return render.to_one_line(", ".join(filter(None, (name, said))))


def format_output(ended: Document) -> list[str]:
    """Return the last lines of a failed command's output, quoted."""
    printed = str(ended.get("error_output") or "").split("\n")
    if printed == [""]:
        return []
    shown = [
        line if len(line) <= LONGEST_OUTPUT_LINE else f"…{line[-LONGEST_OUTPUT_LINE:]}"
        for line in printed[-MOST_OUTPUT_LINES:]
    ]
    more = len(printed) - len(shown)
    heading = f"output, without the first {more} lines:" if more else "output:"
    return [heading, *(f"  | {render.escape_text(line)}" for line in shown)]


def format_files_left(ended: Document) -> list[str]:
    """Return where the files of a subagent are, and the names of those it left unfinished."""
    gone = f" ({GONE})" if ended.get("workspace_removed") else ""
    lines = [f"workspace: {render.to_one_line(ended['workspace'])}{gone}"]
    if os.path.lexists(os.path.join(ended["workspace"], ".git")):
        lines.append(NO_GIT_THERE)
    if files := ended.get("workspace_files"):
        more = f" and {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
        lines.append(f"files: {render.to_one_line(', '.join(files[:MOST_FILES]))}{more}")
    return lines


def format_settled(found: list[Document]) -> str:
    return "\n".join(f"{it['agentInstance']}  {render.format_status(it['status'])}" for it in found)


def format_subagent(whole: Document) -> str:
    contract = whole.get("contract") or {}
    limit = (contract.get("execution") or {}).get("attempt_timeout_ms")
    removed = whole.get("workspace_removed")
    about = render.format_facts(
        [
            ("subagent", whole["agentInstance"]),
            ("work", whole.get("task")),
            ("agent", _name_agent((whole.get("result") or {}).get("agent"))),
            ("status", whole["status"]),
            ("state", whole["state"]),
            ("waits for", whole.get("waiting_for")),
            ("closed", whole.get("close_reason")),
            ("phase", whole.get("phase")),
            ("progress", whole.get("completion_percentage")),
            ("started", whole.get("started_at")),
            ("elapsed", render.format_seconds(whole.get("elapsed_seconds"))),
            ("time limit", render.format_seconds(limit / 1000) if limit else None),
            ("spent", format_spent(whole.get("token_usage"))),
            ("workspace", whole["workspace"] + (f" ({GONE})" if removed else "")),
            ("contract", whole.get("contract_sha256")),
        ]
    )
    parts = [about]
    if whole.get("attempts"):
        parts.append(_format_attempts(whole["attempts"]))
    if whole.get("result"):
        parts.append(format_result(whole["result"]))
    return "\n\n".join(parts)


def _name_agent(agent: Document | None) -> str:
    """Return the coding agent of a result with its version; empty for other subagents."""
    return f"{agent['name']} {agent.get('version') or ''}".rstrip() if agent else ""


def _name_process(attempts: list[Document]) -> str:
    return "NODE" if any(each.get("node") for each in attempts) else "PID"


def _format_attempts(attempts: list[Document]) -> str:
    return render.format_table(
        ("ATTEMPT", "RESULT", _name_process(attempts), "STARTED", "ENDED", "ERROR"),
        [
            (
                each["attempt"],
                (each.get("result") or {}).get("status", "running"),
                each.get("node") or each.get("pid") or "-",
                each["started_at"],
                each.get("ended_at") or "-",
                (each.get("result") or {}).get("error", ""),
            )
            for each in attempts
        ],
        paint=1,
    )
