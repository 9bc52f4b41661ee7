"""Verbs for parents: programs that act for one, and children that delegate.

A parent is identified by its consumer name. Each result is delivered to it once, with the first
response that carries it. The key `tells` in a response lists the results that it delivers. Calls
that the contract of a child does not allow are refused and recorded.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any

from retinue.core.contract import Caller
from retinue.core.errors import BadInput, NotFound, Refused
from retinue.core.ids import TaskId
from retinue.core.plan import list_unenforced
from retinue.core.result import Result
from retinue.core.subagent import Subagent
from retinue.formats.plan_document import plan_from_json, plan_to_json
from retinue.formats.result_json import batch_to_json, result_to_json
from retinue.formats.views_json import warnings_to_json
from retinue.processes import finish_work
from retinue.steward.app import App
from retinue.steward.contract_factory import SpawnRequest
from retinue.steward.delivery import IsWanted
from retinue.steward.task_service import NewTask
from retinue.steward.verbs.params import LARGEST, Params, take_closed_limit, take_texts
from retinue.steward.verbs.subagent_rows import (
    collect_spawn_warnings,
    collect_timeout_warning,
    describe_background_spawn,
    list_rows,
    make_subagent_row,
)
from retinue.steward.verbs.subagent_verbs import parse_request
from retinue.steward.verbs.task_verbs import (
    Verb,
    add_configuration_hint,
    find_stored_configuration,
    parse_new_task,
)

MAX_TAKEN = 100  # results in one response of `parent.take`
# Characters of answers in one response of `parent.take`; the last answer may exceed it
MAX_TAKEN_CHARACTERS = 1 << 20
MAX_LISTED = 1000
MAX_CALLER_NAME = 200
MAX_CHILD_ID = 57  # in a consumer's name, after the prefix
# Verbs that read a workspace in a thread; a child may run one at a time
FILE_VERBS = ("parent.file", "parent.files")
ALLOWED_HINT = (
    "for its own subagents a subagent may use spawn --wait, list, result, cancel; or 'retinue mcp'"
)


@dataclass(frozen=True, kw_only=True)
class CallingParent:
    """Sender of a request: a program that acts for a parent, or a child that delegates.

    A child names the member of its team that asks. The name is only used within that team.
    """

    task: TaskId
    consumer: str
    by: str
    # None: a program, which is the parent of all subagents in the task
    child: Subagent | None = None
    # Empty for a child that is a command and has no members
    member: str = ""
    # Members that have stopped; this one also receives their results
    absent: frozenset[str] = frozenset()

    def is_parent_of(self, other: Subagent) -> bool:
        return self.child is None or other.contract.delegated_by == self.child.id

    def should_receive(self, other: Subagent) -> bool:
        """Return whether this member, and no other, receives the result."""
        sender = other.contract.sent_by
        return not self.member or not sender or sender in (self.member, *self.absent)

    @property
    def is_wanted(self) -> IsWanted | None:
        """Return the filter of results for this member; None for all.

        It lets results of other parents through: the caller skips them and they do not return.
        """
        if self.child is None or len(self.child.contract.list_members(self.child.id)) < 2:
            return None
        return lambda each: not self.is_parent_of(each) or self.should_receive(each)


ParentVerb = Callable[[App, CallingParent, Params], Awaitable[Any]]


async def _wait_and_deliver(
    app: App, parent: CallingParent, params: Params, subagents: Sequence[Subagent]
) -> tuple[list[Result], dict[str, Any]]:
    """Wait for results and deliver them with this response; return them and `tells`.

    If the parent disconnects, the results are released for its next wait.
    """
    # Reserved, so that no other call of this parent delivers them meanwhile.
    with app.delivery.reserved.reserve(subagents, parent.consumer) as end_reservation:
        results = await app.spawning.wait_results(subagents, when_gone=end_reservation)
        settled = [app.records.get_subagent(each.task, each.id) for each in subagents]
        return results, _deliver(app, parent, params, settled)


def _deliver(
    app: App, parent: CallingParent, params: Params, subagents: Sequence[Subagent]
) -> dict[str, Any]:
    """Mark the results as delivered by this response; return `tells`."""
    return _describe_delivered(
        app, parent, params, app.delivery.mark_delivered(subagents, parent.consumer)
    )


def _describe_delivered(
    app: App, parent: CallingParent, params: Params, subagents: Sequence[Subagent]
) -> dict[str, Any]:
    """Return `tells`, the results that this response delivers; they return if it is lost."""
    params.on_lost = lambda: app.delivery.return_results(subagents, parent.consumer)
    return {"tells": [each.id for each in subagents]}


def end_to_json(app: App, subagent: Subagent) -> dict[str, Any]:
    outcome = app.subagents.get_result(subagent.task, subagent.id)
    return {
        "agentInstance": subagent.id,
        "status": subagent.standing.status,
        "result": result_to_json(outcome),
    }


def parse_parent_request(
    app: App, parent: CallingParent, params: Params, *, background: bool
) -> SpawnRequest:
    """Return the spawn request of a parent; repeated ids give the same subagents."""
    request = parse_request(app, params, by=parent.by, background=background, child=parent.child)
    caller = params.take_raw("caller")
    if parent.child is None:
        return replace(request, again=True, caller=_parse_caller(caller))
    # Accepted without effect: for children the configuration decides.
    params.take_flag("queue")
    return replace(request, again=True, member=parent.member)


def _parse_caller(given: Any) -> Caller | None:
    """Return the caller as the program names itself; the texts are untrusted and cut.

    Raises:
        BadInput: the value is not an object of strings.
    """
    if given is None:
        return None
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise BadInput("caller must be an object of strings", code="invalid_request")
    names = ("client", "session", "call", "trace")
    known = {name: given.get(name, "")[:MAX_CALLER_NAME] for name in names}
    return Caller(**known) if any(known.values()) else None


async def spawn(app: App, parent: CallingParent, params: Params) -> Any:
    wait = params.take_flag("wait")
    # handle: the caller collects the results with `parent.collect`.
    handle = params.take_flag("handle")
    request = parse_parent_request(app, parent, params, background=not wait and not handle)
    # A child delegates in its own task; for it, `create` is an unknown parameter.
    created = parse_new_task(app, params.take_raw("create")) if parent.child is None else None
    params.refuse_unknown()
    subagents = await _admit_call(app, parent, request, created)
    warnings = collect_spawn_warnings(app, parent.task, subagents, request.briefs)
    if wait:
        results, delivered = await _wait_and_deliver(app, parent, params, subagents)
        return batch_to_json(results) | delivered | warnings
    # Reserve the results before any of the subagents can end.
    if handle:
        app.delivery.reserved.reserve_for_client(subagents, parent.consumer, client=params.client)
    return describe_background_spawn(app, await app.spawning.wait_up(subagents)) | warnings


async def _admit_call(
    app: App, parent: CallingParent, request: SpawnRequest, created: tuple[NewTask, str] | None
) -> list[Subagent]:
    """Admit the call; for a program, a refusal names the configuration file to change."""
    spawning = app.spawning
    # A child cannot change the configuration, so it gets no such hint.
    if parent.child is not None:
        return await spawning.admit(parent.task, request)
    new, where = (None, "") if created is None else created
    if new is None or spawning.has_task(parent.task):
        where = ""
    with add_configuration_hint(lambda: where or find_stored_configuration(app, parent.task)):
        return await spawning.admit(parent.task, request, new)


async def continue_(app: App, parent: CallingParent, params: Params) -> Any:
    message = params.take_text("message")
    timeout = params.take_number("timeout_seconds")
    again = params.take_flag("again")
    subagent = take_subagent(app, parent, params)
    # A repeated request must not continue the subagent a second time.
    continued = _find_earlier(app, subagent, message) if again else None
    if continued is None:
        continued = await app.spawning.continue_(
            subagent.task, subagent.id, message, by=parent.by, timeout=timeout
        )
    (result,), delivered = await _wait_and_deliver(app, parent, params, [continued])
    return result_to_json(result) | delivered | collect_timeout_warning(continued, message, timeout)


def _find_earlier(app: App, subagent: Subagent, message: str) -> Subagent | None:
    """Return the newest subagent of the lineage that already received this message, if any."""
    answered = {
        gate.subagent for gate in app.records.list_gates(subagent.task) if gate.answer == message
    }
    for other in reversed(app.records.list_lineage(subagent)):
        contract = other.contract
        received = contract.resumes and contract.step.description.endswith(f"\n\n{message}")
        if received or other.id in answered:
            return other
    return None


async def wait(app: App, parent: CallingParent, params: Params) -> Any:
    """Wait for the next of the parent's own subagents; a new message ends the wait early."""
    timeout = params.take_number("timeout_seconds")
    child = parent.child
    read = params.take_count("heard", LARGEST, LARGEST) if child is not None else LARGEST
    params.refuse_unknown()

    def has_message() -> bool:
        return child is not None and app.workspaces.find_newest_message(child) > read

    loop = asyncio.get_running_loop()
    left = timeout
    began = loop.time()
    while True:
        settled = await app.delivery.wait_any(
            parent.task,
            timeout=left,
            consumer=parent.consumer,
            is_wanted=parent.is_wanted,
            has_message=has_message,
        )
        if parent.is_parent_of(settled):
            return end_to_json(app, settled) | _describe_delivered(app, parent, params, [settled])
        # A subagent of another parent was skipped: wait for the rest of the time.
        if timeout is not None:
            left = max(0.0, began + timeout - loop.time())


async def take(app: App, parent: CallingParent, params: Params) -> Any:
    """Return the results that were not delivered yet, as many as fit in one response."""
    most = params.take_count("limit", MAX_TAKEN, MAX_TAKEN)
    skip = take_texts(params, "but")
    params.refuse_unknown()
    results = app.delivery.take_all(
        parent.task, parent.consumer, skip=skip, is_wanted=parent.is_wanted
    )
    taken: list[Subagent] = []
    # Filled below: a lost response returns the results that it had taken so far.
    params.on_lost = lambda: app.delivery.return_results(taken, parent.consumer)
    documents: list[dict[str, Any]] = []
    characters = 0
    for each in islice(filter(parent.is_parent_of, results), most):
        taken.append(each)
        documents.append(end_to_json(app, each))
        result = documents[-1]["result"]
        characters += len(result["answer"] or "") + len(result.get("error_output", ""))
        # The next call returns the rest.
        if characters > MAX_TAKEN_CHARACTERS:
            break
    return documents


async def take_back(app: App, parent: CallingParent, params: Params) -> Any:
    """Return results to the queue whose response the parent did not receive."""
    app.delivery.return_results(_take_subagents(app, parent, params), parent.consumer)


async def get_result(app: App, parent: CallingParent, params: Params) -> Any:
    subagent = take_subagent(app, parent, params)
    if not subagent.standing.settled:
        return make_subagent_row(app, subagent) | {"result": None}
    return _deliver_end(app, parent, params, subagent)


async def collect(app: App, parent: CallingParent, params: Params) -> Any:
    """Return the results of several subagents; while one is running, only their rows."""
    subagents = _take_subagents(app, parent, params)
    if not subagents:
        raise BadInput("nothing to collect", code="invalid_request")
    found: dict[str, Any] = {
        "created_at": min(each.created_at for each in subagents),
        "updated_at": max(
            each.ended_at or each.started_at or each.created_at for each in subagents
        ),
        "rows": [make_subagent_row(app, each) for each in subagents],
    }
    if not all(each.standing.settled for each in subagents):
        # Reserve the results again: the caller will come back for them.
        app.delivery.reserved.reserve_for_client(subagents, parent.consumer, client=params.client)
        return found | {"batch": None}
    results = [app.subagents.get_result(each.task, each.id) for each in subagents]
    _deliver(app, parent, params, subagents)
    app.delivery.reserved.release(subagents, parent.consumer)
    return found | {"batch": batch_to_json(results)}


async def cancel(app: App, parent: CallingParent, params: Params) -> Any:
    reason = params.take_text("reason", "")
    again = params.take_flag("again")
    subagent = take_subagent(app, parent, params)
    # A repeated request finds that the first one already cancelled the subagent.
    if not (again and subagent.standing.settled):
        await app.subagents.cancel(subagent.task, subagent.id, by=parent.by, reason=reason)
    return _deliver_end(app, parent, params, app.records.get_subagent(subagent.task, subagent.id))


async def look(app: App, parent: CallingParent, params: Params) -> Any:
    return make_subagent_row(app, take_subagent(app, parent, params))


PARENTS: dict[str, ParentVerb] = {
    "parent.spawn": spawn,
    "parent.continue": continue_,
    "parent.wait": wait,
    "parent.take": take,
    "parent.take_back": take_back,
    "parent.result": get_result,
    "parent.collect": collect,
    "parent.cancel": cancel,
    "parent.look": look,
}


async def _call_for_program(verb: ParentVerb, app: App, params: Params) -> Any:
    task = params.take_task()
    consumer = "" if verb is look else params.take_text("consumer")
    return await verb(
        app, CallingParent(task=task, consumer=consumer, by=params.get_actor()), params
    )


FOR_PROGRAMS: dict[str, Verb] = {
    name: partial(_call_for_program, verb) for name, verb in PARENTS.items()
}


def take_subagent(app: App, parent: CallingParent, params: Params) -> Subagent:
    """Return the named subagent of the parent; refuse further parameters."""
    name = params.take_text("subagent")
    params.refuse_unknown()
    return _get_own(app, parent, name)


def _take_subagents(app: App, parent: CallingParent, params: Params) -> list[Subagent]:
    names = take_texts(params, "subagents")
    params.refuse_unknown()
    return [_get_own(app, parent, name) for name in names]


def _get_own(app: App, parent: CallingParent, name: str) -> Subagent:
    """Raises:
    NotFound: the parent has no such subagent.
    """
    found = app.records.get_subagent(parent.task, name)
    child = parent.child
    if child is not None and not parent.is_parent_of(found):
        raise NotFound(f"{child.id} has no subagent {name[:80]!a}", code="unknown_subagent")
    return found


def _deliver_end(
    app: App, parent: CallingParent, params: Params, subagent: Subagent
) -> dict[str, Any]:
    """Return a result; mark it as delivered only if this member is its recipient."""
    wanted = [subagent] if parent.should_receive(subagent) else []
    return end_to_json(app, subagent) | _deliver(app, parent, params, wanted)


async def call_for_child(app: App, caller: Subagent, verb: str, params: Params) -> Any:
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
        raise Refused(why, code="delegation_disabled", hint=ALLOWED_HINT)
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
    if len(name) > MAX_CHILD_ID:
        name = f"{name[: MAX_CHILD_ID - 17]}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
    return f"parent-{name}"


async def _list(app: App, parent: CallingParent, params: Params) -> Any:
    limit = take_closed_limit(params, most=MAX_LISTED)
    page = params.take_flag("page")
    params.refuse_unknown()
    assert parent.child is not None, "only children have this verb"
    if page or limit is None:
        roll = app.subagents.list_delegates(parent.child, limit=limit, mine=parent.should_receive)
        return list_rows(app, roll, page=page)
    everyone = app.subagents.list_subagents(parent.task, limit=limit).subagents
    own = [each for each in everyone if parent.is_parent_of(each) and parent.should_receive(each)]
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
        return base64.b64encode(app.workspace_reader.read_file(subagent, path)).decode()

    # A thread cannot be stopped, and a child may have only one at a time: `finish_work` waits.
    return {"content": await finish_work(asyncio.to_thread(read))}


async def _list_files(app: App, parent: CallingParent, params: Params) -> Any:
    inside = params.take_text("path", "")
    subagent = take_subagent(app, parent, params)
    return await finish_work(asyncio.to_thread(app.workspace_reader.list_files, subagent, inside))


async def _run_plan(app: App, parent: CallingParent, params: Params) -> Any:
    """Execute a plan in the child's task and return its outcome."""
    given = params.take_raw("plan")
    child = parent.child
    params.refuse_unknown()
    assert child is not None, "only children have this verb"
    plans = app.plans
    task_config = app.folders.read_config(parent.task)
    try:
        plan = plan_from_json(given)
        document = plan_to_json(plan)
        end = await plans.submit(child, plan, document, task_config, parent.member)
    except (BadInput, Refused) as error:
        app.spawning.deny(child, error.message)
        raise
    # This response delivers all results: later waits must not return them again.
    app.delivery.mark_delivered([subagent for subagent, _ in end.parts], parent.consumer)
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
