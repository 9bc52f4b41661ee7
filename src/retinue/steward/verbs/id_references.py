"""Short forms of ids in requests of users: a unique prefix, and `@last` for the newest.

They are resolved before a verb runs, so every verb that names an existing task or subagent accepts
them. An id that exists is never taken for a prefix. Ids of new tasks and subagents have other
parameters and are never resolved; requests of subagents and of programs that may create the task
they name are not resolved either.
"""

from __future__ import annotations

from retinue.core.errors import BadInput, NotFound
from retinue.core.ids import LAST, TaskId, is_id
from retinue.steward.verbs.params import Params
from retinue.store.reads import SqliteRecords

MOST_NAMED = 5


def resolve_ids(records: SqliteRecords, params: Params) -> None:
    """Replace short forms of `task` and `subagent` by the ids they stand for.

    A text that is no short form of anything stays as it is: the verb reports it.

    Raises:
        BadInput: a prefix fits several ids.
    """
    task = params.peek("task")
    if not isinstance(task, str) or not task:
        return
    found = _resolve_task(records, task)
    if found != task:
        params.replace_text("task", found)
    subagent = params.peek("subagent")
    if isinstance(subagent, str) and subagent:
        named = _resolve_subagent(records, TaskId(found), subagent)
        if named != subagent:
            params.replace_text("subagent", named)


def _resolve_task(records: SqliteRecords, text: str) -> str:
    if text == LAST:
        newest = records.list_tasks(1)
        return newest[0].id if newest else text
    if not is_id(text):
        return text
    try:
        records.get_task(TaskId(text))
        return text
    except NotFound:
        return _choose(text, records.list_task_ids(text, MOST_NAMED + 1), "task")


def _resolve_subagent(records: SqliteRecords, task: TaskId, text: str) -> str:
    if text == LAST:
        newest = records.list_newest(task, 1)
        return newest[0].id if newest else text
    if not is_id(text):
        return text
    try:
        records.get_subagent(task, text)
        return text
    except NotFound:
        return _choose(text, records.list_subagent_ids(task, text, MOST_NAMED + 1), "subagent")


def _choose(text: str, found: list[str], what: str) -> str:
    """Return the only id found; the text itself if there is none.

    Raises:
        BadInput: there are several.
    """
    if len(found) > 1:
        more = ", ..." if len(found) > MOST_NAMED else ""
        raise BadInput(
            f"several {what} ids begin with {text[:80]!a}: {', '.join(found[:MOST_NAMED])}{more}",
            code="ambiguous_id",
            hint="give more of the id",
        )
    return found[0] if found else text
