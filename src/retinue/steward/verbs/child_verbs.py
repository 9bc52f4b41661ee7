"""Verbs that a child may call. Calls that its contract does not allow are refused and recorded."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar

from retinue.core.errors import BadInput, Refused
from retinue.core.plan import list_unenforced
from retinue.core.subagent import Subagent
from retinue.formats.plan_document import plan_from_json, plan_to_json
from retinue.formats.result_json import batch_to_json, result_to_json
from retinue.formats.views_json import warnings_to_json
from retinue.steward.app import App
from retinue.steward.verbs.core_verbs import take_closed_limit
from retinue.steward.verbs.delivery import CallingParent
from retinue.steward.verbs.params import Params, take_texts
from retinue.steward.verbs.parent_verbs import PARENTS, ParentVerb, spawn, take_subagent
from retinue.steward.verbs.spawn_requests import list_rows, make_subagent_row

MAY = (
    "for its own subagents a subagent may use spawn --wait, list, result, cancel; or 'retinue mcp'"
)
# Verbs that read a workspace in a thread; a child may run one at a time
OF_FILES = ("parent.file", "parent.files")
MOST_LISTED = 1000
# Longest child id in a consumer's name, after the prefix
LONG = 57

Value = TypeVar("Value")


async def call(app: App, caller: Subagent, verb: str, params: Params) -> Any:
    """Call a verb for a child.

    Raises:
        Refused: children may not use this verb, or this child may not. The attempt is recorded.
    """
    known = FOR_CHILDREN.get(verb)
    # A child cannot act for another task or consumer: these parameters are dropped.
    for name in ("task", "consumer"):
        params.take_raw(name)
    if known is None:
        why = f"subagents may not call {verb[:40]}"
        app.spawning.deny(caller, why)
        raise Refused(why, code="delegation_disabled", hint=MAY)
    return await known(app, _parse_parent(caller, params), params)


def _parse_parent(child: Subagent, params: Params) -> CallingParent:
    """Raises:
    BadInput: a named member is not on the child's team.
    """
    member = params.take_text("member", "")
    absent = take_texts(params, "absent")
    team = [name for name, _ in child.contract.list_members(child.id)]
    for name in (*filter(None, [member]), *absent):
        if name not in team:
            raise BadInput(f"{child.id} has no member {name[:80]!a}", code="invalid_request")
    return CallingParent(
        task=child.task,
        consumer=_name_consumer(child),
        by="parent",
        child=child,
        member=member,
        absent=frozenset(absent),
    )


def _name_consumer(child: Subagent) -> str:
    """Return the consumer name under which a child's results are delivered."""
    name = str(child.id)
    # Long ids are cut; the hash keeps ids with a common beginning apart.
    if len(name) > LONG:
        name = f"{name[: LONG - 17]}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
    return f"parent-{name}"


async def _list(app: App, parent: CallingParent, params: Params) -> Any:
    limit = take_closed_limit(params, most=MOST_LISTED)
    page = params.take_flag("page")
    params.refuse_unknown()
    assert parent.child is not None, "only children have this verb"
    if page or limit is None:
        roll = app.subagents.list_delegates(parent.child, limit=limit, mine=parent.should_hear_of)
        return list_rows(app, roll, page=page)
    everyone = app.subagents.list_subagents(parent.task, limit=limit).subagents
    own = [each for each in everyone if parent.is_parent_of(each) and parent.should_hear_of(each)]
    return [make_subagent_row(app, each) for each in own]


async def _get_result(app: App, parent: CallingParent, params: Params) -> Any:
    subagent = take_subagent(app, parent, params)
    return result_to_json(app.subagents.get_result(parent.task, subagent.id))


async def _cancel(app: App, parent: CallingParent, params: Params) -> Any:
    reason = params.take_text("reason", "")
    kill = params.take_flag("kill")
    subagent = take_subagent(app, parent, params)
    result = await app.subagents.cancel(
        parent.task, subagent.id, by=parent.by, reason=reason, kill=kill
    )
    return {"agentInstance": subagent.id, "cancelled": True, "result": result_to_json(result)}


async def _read_file(app: App, parent: CallingParent, params: Params) -> Any:
    """Return one file from the workspace of the child's own subagent."""
    path = params.take_text("path")
    subagent = take_subagent(app, parent, params)

    def read() -> str:
        return base64.b64encode(app.taking.read_file(subagent, path)).decode()

    return {"content": await _run_in_thread(read)}


async def _list_files(app: App, parent: CallingParent, params: Params) -> Any:
    inside = params.take_text("path", "")
    subagent = take_subagent(app, parent, params)
    return await _run_in_thread(lambda: app.taking.list_files(subagent, inside))


async def _run_in_thread(read: Callable[[], Value]) -> Value:
    """Run a read in a thread; if cancelled, wait until the thread has ended."""
    work = asyncio.create_task(asyncio.to_thread(read))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # A thread cannot be stopped, and a child may have only one at a time.
        await asyncio.wait({work})
        # Mark the exception as retrieved, so that asyncio does not log it.
        work.exception()
        raise


async def _run_plan(app: App, parent: CallingParent, params: Params) -> Any:
    """Execute a plan in the child's task and return its outcome."""
    given = params.take_raw("plan")
    child = parent.child
    params.refuse_unknown()
    assert child is not None, "only children have this verb"
    plans = app.plans
    policy = app.folders.read_config(parent.task)
    try:
        plan = plan_from_json(given)
        document = plan_to_json(plan)
        end = await plans.submit(child, plan, document, policy, parent.member)
    except (BadInput, Refused) as error:
        app.spawning.deny(child, error.message)
        raise
    # This response delivers all results: later waits must not return them again.
    for subagent, _ in end.parts:
        app.waiting.tell(subagent, parent.consumer)
    batch = batch_to_json([result for _, result in end.parts if result is not None])
    whole = end.details.get("outcome") == "succeeded"
    return batch | end.details | {"success": whole} | warnings_to_json(list_unenforced(plan))


FOR_CHILDREN: dict[str, ParentVerb] = {
    **PARENTS,
    "parent.file": _read_file,
    "parent.files": _list_files,
    "parent.plan": _run_plan,
    "subagent.spawn": spawn,
    "subagent.list": _list,
    "subagent.result": _get_result,
    "subagent.cancel": _cancel,
}
