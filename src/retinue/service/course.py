"""Where a run stands in its plan: what may start, what is joined next, what never will start."""

from __future__ import annotations

from dataclasses import dataclass, field

from retinue.domain.lifecycle import State
from retinue.domain.plan import MERGE, STOP, Plan, PlanStep, foundations, integration_order
from retinue.domain.subagent import Subagent


@dataclass
class Course:
    """The plan, and how far its subagents have come. Told from records, at any moment."""

    plan: Plan
    base: str  # the commit the run starts from; empty where nothing is merged
    over: dict[str, Subagent] = field(default_factory=dict)  # closed, by step
    active: dict[str, Subagent] = field(default_factory=dict)  # not closed yet
    refused: dict[str, str] = field(default_factory=dict)  # could not be started, and why
    commits: dict[str, str] = field(default_factory=dict)  # of the merged ones
    stopped: bool = False  # someone asked for the end

    def __post_init__(self) -> None:
        self.order = integration_order(self.plan)
        self.place = {step.id: number for number, step in enumerate(self.order)}
        self._before = foundations(self.order)

    @property
    def stopping(self) -> bool:
        """Whether nobody new is started."""
        failed = bool(self.refused) or any(_failed(each) for each in self.over.values())
        return self.stopped or (failed and self.plan.on_failure == STOP)

    @property
    def ended(self) -> bool:
        return not self.active and len(self.over) + len(self.never()) == len(self.order)

    @property
    def asks(self) -> bool:
        """Whether nothing goes on by itself before somebody has answered a step."""
        asking = any(each.standing.blocked for each in self.active.values())
        return asking and not self.startable()

    def never(self) -> dict[str, str]:
        """Those that never will be started, each with why."""
        dead: dict[str, str] = {}
        stopping = self.stopping
        for step in self.order:  # none before what it depends on
            if step.id in self.over or step.id in self.active:
                continue
            lacking = [name for name in step.depends_on if name in dead or self._has_failed(name)]
            if step.id in self.refused:
                dead[step.id] = self.refused[step.id]
            elif lacking:
                dead[step.id] = f"{lacking[0]}, which it depends on, did not complete"
            elif stopping:
                dead[step.id] = "the run was stopped before"
        return dead

    def startable(self) -> list[PlanStep]:
        """Those that nothing but a free slot is needed for, in order."""
        dead = self.never()
        gone = self.over.keys() | dead.keys()
        return [
            step
            for step in self.order
            if step.id not in gone and step.id not in self.active and self._before[step.id] <= gone
        ]

    def next_to_join(self) -> Subagent | None:
        """The first in order whose output waits, once everyone before it is over."""
        gone = self.over.keys() | self.never().keys()
        for step in self.order:
            if step.id not in gone:
                subagent = self.active.get(step.id)
                waits = subagent and subagent.standing.state is State.WAITING_FOR_MERGE
                return subagent if waits else None
        return None

    def stuck(self) -> list[Subagent]:
        """Blocked ones that keep a run from its end that is stopping anyway."""
        if not self.stopping:
            return []
        waiting = (State.WAITING_FOR_MERGE, State.COMPLETED, State.FAILED)
        moving = [
            each
            for each in self.active.values()
            if not each.standing.blocked and each.standing.state not in waiting
        ]
        return [] if moving else [e for e in self.active.values() if e.standing.blocked]

    def base_of(self, step: PlanStep) -> str:
        """The commit that a step starts from: all that was joined up to what it builds on.

        Everyone up to there is over when it starts, so it is the same whoever was faster.
        """
        built_on = [
            place
            for name in self._before[step.id]
            if self.order[place := self.place[name]].integration == MERGE
        ]
        for earlier in reversed(self.order[: max(built_on, default=-1) + 1]):
            if earlier.id in self.commits:
                return self.commits[earlier.id]
        return self.base

    def _has_failed(self, name: str) -> bool:
        return name in self.over and _failed(self.over[name])


def _failed(subagent: Subagent) -> bool:
    return subagent.standing.final_status != "completed"
