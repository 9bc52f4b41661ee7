"""A parent is told of each end once, by whatever answer comes first.

A parent is a consumer by name. What it has been given counts as seen, for all its doors and
for as long as the task exists. An answer names those of whom it is the first to tell (`tells`):
if nobody received it, they are told again, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from retinue.app import App
from retinue.domain.ids import TaskId
from retinue.domain.result import Result
from retinue.domain.subagent import Subagent
from retinue.service.waiting import Mine
from retinue.steward.params import Params
from retinue.wire.result import result_to_json


@dataclass(frozen=True, kw_only=True)
class Parent:
    """Whoever asks: a program that speaks for a parent, or a child that delegates.

    Which of its team does a child says itself, and only its team is concerned.
    """

    task: TaskId
    consumer: str
    by: str
    child: Subagent | None = None  # none: whoever is in the task belongs to the parent
    member: str = ""  # empty: nobody in particular, as of a command
    absent: frozenset[str] = frozenset()  # who will not ask any more, and for whom it does

    def owns(self, other: Subagent) -> bool:
        return self.child is None or other.contract.delegated_by == self.child.id

    def sent(self, other: Subagent) -> bool:
        """Whether it is the one to be told of it, and no other member."""
        sender = other.contract.sent_by
        return not self.member or not sender or sender in (self.member, *self.absent)

    @property
    def mine(self) -> Mine | None:
        """Which ends it is given: those of strangers, too, which it then passes over for good."""
        if self.child is None or len(self.child.contract.named_members(self.child.id)) < 2:
            return None
        return lambda each: not self.owns(each) or self.sent(each)


async def attended(
    app: App, parent: Parent, params: Params, subagents: Sequence[Subagent]
) -> tuple[list[Result], dict[str, Any]]:
    """The results of subagents whose parent blocks on them, told by this very answer, and whose
    are news; a parent that is gone is told of their ends when it waits again, as of any others.
    """
    held, consumer = app.service.waiting.held, parent.consumer
    with ExitStack() as holding:
        held.hold(subagents, consumer)
        holding.callback(held.let_go, subagents, consumer)
        results = await app.service.spawning.attend(subagents, when_gone=holding.close)
        settled = [app.service.subagents.get(each.task, each.id) for each in subagents]
        news = tell(app, parent, params, settled)
    return results, news


def tell(app: App, parent: Parent, params: Params, subagents: Sequence[Subagent]) -> dict[str, Any]:
    """The parent has these results by this answer, and is told of none of them again."""
    news = [each for each in subagents if app.service.waiting.tell(each, parent.consumer)]
    return tells(app, parent, params, news)


def tells(app: App, parent: Parent, params: Params, news: Sequence[Subagent]) -> dict[str, Any]:
    """What the answer says of those who are news to the parent; if it is lost, they still are."""
    params.if_lost = lambda: tell_again(app, parent, news)
    return {"tells": [each.id for each in news]}


def tell_again(app: App, parent: Parent, subagents: Sequence[Subagent]) -> None:
    """The parent was told of these in vain: it will be told again."""
    for subagent in subagents:
        app.service.waiting.undeliver(subagent, parent.consumer)


def end_to_json(app: App, subagent: Subagent) -> dict[str, Any]:
    outcome = app.service.subagents.result(subagent.task, subagent.id)
    return {
        "agentInstance": subagent.id,
        "status": subagent.standing.status,
        "result": result_to_json(outcome),
    }
