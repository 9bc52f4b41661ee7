"""Documents of the steward as people see them."""

from __future__ import annotations

from typing import Any

from retinue.domain.advice import advised
from retinue.doors.cli import render

MOST_FILES = 12
LEFT_OPEN = ("completed", "failed")  # states that only closing leads out of

Document = dict[str, Any]


def tasks(found: list[Document]) -> str:
    if not found:
        return "no tasks yet: retinue task create --title T"
    return render.table(
        ("TASK", "STATE", "OUTCOME", "SUBAGENTS", "TITLE"),
        [
            (each["task_id"], each["state"], each["outcome"], each["subagents"], each["title"])
            for each in found
        ],
        right=(3,),
    )


def task(whole: Document) -> str:
    config = whole.get("config")
    limit = config.get("maxConcurrentAgents") if isinstance(config, dict) else None
    about = render.facts(
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
            ("spent", spent(whole["metrics"]["totals"])),
            ("folder", whole["path"]),
        ]
    )
    rows = subagents(whole["subagents"])
    return "\n".join([about, "", rows, *not_started(whole), *_questions(whole)])


def _questions(whole: Document) -> list[str]:
    """What waits for a person, a line each, and how to answer."""
    asked = [
        f"{gate['agentInstance']} asks: {render.one_line(question)}"
        for gate in whole["gates"]
        for question in gate["questions"]
    ]
    how = f"to answer: 'retinue gate list {whole['task_id']}', then 'retinue gate approve'"
    return [*asked, how] if asked else []


def spent(usage: Document | None) -> str:
    """What something came to; nothing where no model was asked."""
    from retinue.wire.result import usage_to_text

    return usage_to_text(usage or {})


def cancelled(ended: Document) -> str:
    """Who was ended, and where to see what each had earned."""
    if not ended["cancelled"]:
        return "cancelled: none"
    names = ", ".join(ended["cancelled"])
    task = ended["task_id"]
    return f"cancelled: {names}\nwhat they had, and where: retinue task join {task}"


def closed(task: Document) -> str:
    return f"{task['task_id']}  {task['state']}  {render.one_line(task['outcome'])}"


def joined(whole: Document) -> str:
    parts = [render.strong(render.one_line(whole["title"])) + f"  {whole['outcome']}"]
    for each in whole["subagents"]:
        result = each["result"] or {}
        parts += ["", f"{each['agentInstance']}  {render.status(each['status'])}"]
        asks = [f"asks: {each}" for each in result.get("questions", [])]
        error = f"error: {advised(result['error'])}" if result.get("error") else ""
        where = left(result) if result and not result["success"] else []
        said = list(filter(None, [error, result.get("answer"), *asks, *where]))
        words = "\n".join(said or ["nothing yet"])
        parts += [f"  {line}" for line in render.plain(words).split("\n")]
    from retinue.wire.result import counts_to_text

    counts = counts_to_text([each["status"] for each in whole["subagents"]])
    never = not_started(whole)
    return "\n".join([*parts, *(["", *never] if never else []), "", counts])


def not_started(whole: Document) -> list[str]:
    """A line for each planned step that its run ended without."""
    never = (whole.get("not_started") or {}).items()
    return [f"{name}  not started: {render.one_line(why)}" for name, why in never]


def subagents(found: list[Document]) -> str:
    """Subagents as a table."""
    if not found:
        return "no subagents yet: retinue subagent spawn TASK -- COMMAND"
    joins = [each["agentInstance"] for each in found if _waits_to_be_joined(each)]
    closes = [each["agentInstance"] for each in found if each.get("state") in LEFT_OPEN]
    rows = render.table(
        ("ID", "STATUS", "ATTEMPT", "ELAPSED", "TOKENS", "TITLE"),
        [
            (
                each["agentInstance"],
                each["status"],
                each.get("attempt", "-"),
                render.seconds(each.get("elapsed_seconds")),
                render.tokens(each.get("token_usage")),
                each.get("task", ""),
            )
            for each in found
        ],
        paint=1,
        right=(2, 3, 4),
    )
    lines = [rows, *_waiting(found)]
    if joins:
        lines.append(f"to be joined: {', '.join(joins)} (retinue subagent integrate TASK ID)")
    if closes:
        lines.append(f"to be closed: {', '.join(closes)} (retinue subagent close TASK ID)")
    return "\n".join(lines)


def _waiting(found: list[Document]) -> list[str]:
    """Who waits for what, one line for each reason."""
    names: dict[str, list[str]] = {}
    for each in found:
        if each.get("waiting_for"):
            names.setdefault(each["waiting_for"], []).append(each["agentInstance"])
    return [
        f"{render.several(who)} {'waits' if len(who) == 1 else 'wait'} for {render.one_line(what)}"
        for what, who in names.items()
    ]


def _waits_to_be_joined(row: Document) -> bool:
    """By whoever delegated: what a run joins by itself has not settled yet."""
    return bool(row["status"] == "completed" and row.get("state") == "waiting_for_merge")


def joining(how: Document) -> str:
    """What became of output: how it was joined, and where it is now."""
    where = str(how.get("commit") or "")[:12] or how.get("destination") or ""
    branch = f" on {how['branch']}" if how.get("branch") else ""
    ignored = how.get("ignored")
    out = f" (git ignores {', '.join(ignored)})" if ignored else ""
    return render.one_line(f"{how.get('reason') or ''} {where}{branch}".rstrip() + out)


def integrated(row: Document) -> str:
    """Where the subagent stands, and what became of its output or kept it from being joined."""
    how = row["integration"]
    lines = [subagents([row])]
    lines.append(f"output: {joining(how)}" if how else "there was nothing to join")
    if how.get("message"):
        lines.append(f"error: {render.one_line(how['message'])}")
    return "\n".join(lines)


def spawned(each: Document) -> str:
    status = render.status(each["status"])
    told = f"\n  warning: {render.one_line(each['warning'])}" if each.get("warning") else ""
    return f"{each['subagent_id']}  {status}  {render.plain(each['workspace'])}{told}"


def result(ended: Document) -> str:
    """The answer, then how it came about."""
    lines = [] if ended.get("answer") is None else [render.plain(ended["answer"]), ""]
    state = [
        ended["subagent_id"],
        f"result: {render.status(ended['status'])}",
        render.seconds(ended.get("execution_time_seconds")),
    ]
    if usage := spent(ended.get("token_usage")):
        state.append(usage)
    if ended.get("completion_percentage") is not None:
        state.append(f"{ended['completion_percentage']}%")
    lines.append("  ".join(state))
    if ended.get("error"):
        lines.append(f"error: {render.one_line(advised(ended['error']))}")
    if ended.get("warning"):
        lines.append(f"warning: {render.one_line(ended['warning'])}")
    if ended.get("integration"):
        lines.append(f"output: {joining(ended['integration'])}")
    lines += [f"asks: {render.one_line(each)}" for each in ended.get("questions", [])]
    if ended["status"] == "blocked":
        lines.append("to answer: 'retinue gate list', then 'retinue gate approve'")
    return "\n".join([*lines, *left(ended)])


def left(ended: Document) -> list[str]:
    """Where its files are, and of one that had not finished, which."""
    lines = [f"workspace: {render.one_line(ended['workspace'])}"]
    if files := ended.get("workspace_files"):
        more = f" and {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
        lines.append(f"files: {render.one_line(', '.join(files[:MOST_FILES]))}{more}")
    return lines


def settled(found: list[Document]) -> str:
    return "\n".join(f"{it['agentInstance']}  {render.status(it['status'])}" for it in found)


def subagent(whole: Document) -> str:
    contract = whole.get("contract") or {}
    limit = (contract.get("execution") or {}).get("attempt_timeout_ms")
    about = render.facts(
        [
            ("subagent", whole["agentInstance"]),
            ("work", whole.get("task")),
            ("status", whole["status"]),
            ("state", whole["state"]),
            ("waits for", whole.get("waiting_for")),
            ("closed", whole.get("close_reason")),
            ("phase", whole.get("phase")),
            ("progress", whole.get("completion_percentage")),
            ("started", whole.get("started_at")),
            ("elapsed", render.seconds(whole.get("elapsed_seconds"))),
            ("time limit", render.seconds(limit / 1000) if limit else None),
            ("spent", spent(whole.get("token_usage"))),
            ("workspace", whole["workspace"]),
            ("contract", whole.get("contract_sha256")),
        ]
    )
    parts = [about]
    if whole.get("attempts"):
        parts.append(_attempts(whole["attempts"]))
    if whole.get("result"):
        parts.append(result(whole["result"]))
    return "\n\n".join(parts)


def _attempts(attempts: list[Document]) -> str:
    return render.table(
        ("ATTEMPT", "RESULT", "PID", "STARTED", "ENDED", "ERROR"),
        [
            (
                each["attempt"],
                (each.get("result") or {}).get("status", "running"),
                each.get("pid") or "-",
                each["started_at"],
                each.get("ended_at") or "-",
                (each.get("result") or {}).get("error", ""),
            )
            for each in attempts
        ],
        paint=1,
    )
