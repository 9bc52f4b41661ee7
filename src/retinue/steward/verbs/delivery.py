"""Delivery of results to parents: each result once, with the first response that carries it.

A parent is identified by its consumer name. A delivered result stays delivered on all of its
connections, for the life of the task. The key `tells` in a response lists the results that it
delivers. If the response is lost, exactly these are returned to the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from retinue.core.ids import TaskId
from retinue.core.result import Result
from retinue.core.subagent import Subagent
from retinue.formats.result_json import result_to_json
from retinue.steward.app import App
from retinue.steward.verbs.params import Params
from retinue.steward.waiting import Mine


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

    def should_hear_of(self, other: Subagent) -> bool:
        """Return whether this member, and no other, receives the result."""
        sender = other.contract.sent_by
        return not self.member or not sender or sender in (self.member, *self.absent)

    @property
    def mine(self) -> Mine | None:
        """Return the filter of results for this member; None for all.

        It lets results of other parents through: the caller skips them and they do not return.
        """
        if self.child is None or len(self.child.contract.list_members(self.child.id)) < 2:
            return None
        return lambda each: not self.is_parent_of(each) or self.should_hear_of(each)


async def wait_and_tell(
    app: App, parent: CallingParent, params: Params, subagents: Sequence[Subagent]
) -> tuple[list[Result], dict[str, Any]]:
    """Wait for results and deliver them with this response; return them and `tells`.

    If the parent disconnects, the results are released for its next wait.
    """
    held = app.waiting.reserved
    consumer = parent.consumer
    with ExitStack() as holding:
        # Reserved, so that no other call of this parent delivers them meanwhile.
        held.hold(subagents, consumer)
        holding.callback(held.end_hold, subagents, consumer)
        results = await app.spawning.wait_results(subagents, when_gone=holding.close)
        settled = [app.subagents.get(each.task, each.id) for each in subagents]
        news = tell(app, parent, params, settled)
    return results, news


def tell(
    app: App, parent: CallingParent, params: Params, subagents: Sequence[Subagent]
) -> dict[str, Any]:
    """Mark the results as delivered by this response; return `tells`."""
    news = [each for each in subagents if app.waiting.tell(each, parent.consumer)]
    return mark_told(app, parent, params, news)


def mark_told(
    app: App, parent: CallingParent, params: Params, news: Sequence[Subagent]
) -> dict[str, Any]:
    """Return `tells` for newly delivered results; undo the delivery if the response is lost."""
    params.if_lost = lambda: tell_again(app, parent, news)
    return {"tells": [each.id for each in news]}


def tell_again(app: App, parent: CallingParent, subagents: Sequence[Subagent]) -> None:
    """Return the results to the parent's queue."""
    for subagent in subagents:
        app.waiting.revoke_delivery(subagent, parent.consumer)


def end_to_json(app: App, subagent: Subagent) -> dict[str, Any]:
    outcome = app.subagents.get_result(subagent.task, subagent.id)
    return {
        "agentInstance": subagent.id,
        "status": subagent.standing.status,
        "result": result_to_json(outcome),
    }
