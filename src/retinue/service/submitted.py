"""Plans that a team submits while it works: carried out within its own task and run."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from retinue.domain import event as events
from retinue.domain.errors import BadInput, NotFound, Refused
from retinue.domain.event import Event, shorten
from retinue.domain.ids import TaskId
from retinue.domain.join import Source
from retinue.domain.plan import Plan, integration_order
from retinue.domain.policy import TaskConfig
from retinue.domain.result import Result
from retinue.domain.subagent import Subagent
from retinue.service.planrun import Commission, Hands
from retinue.service.plans import Plans
from retinue.service.sources import branch_of
from retinue.service.tasks import every_event


@dataclass(frozen=True, kw_only=True)
class PlanEnd:
    details: dict[str, Any]
    parts: tuple[tuple[Subagent, Result | None], ...]  # in plan order; only those that started


class SubmittedPlans:
    def __init__(self, hands: Hands, plans: Plans, project: Path) -> None:
        self._hands = hands
        self._plans = plans
        self._project = project
        self._beginning = asyncio.Lock()

    async def carry_out(
        self,
        parent: Subagent,
        plan: Plan,
        document: dict[str, Any],
        policy: TaskConfig,
        member: str,
    ) -> PlanEnd:
        """What became of the plan; the same plan again is awaited, not begun twice.

        Raises:
            BadInput, Refused: why it cannot be; nothing of it exists.
        """
        async with self._beginning:  # or two that are submitted together would both begin
            run = self._plans.under_way(parent.task)
            if run is None and (before := self._ended(parent.task, document)) is not None:
                return self._end(parent.task, plan, before)
            if run is None:
                commission = await self._commission(parent, plan, policy, member)
                self._hands.journal.record(parent.task, [_submitted(commission, document)])
                run = self._plans.begin(parent.task, commission)
            elif run.commission.plan != plan:
                raise Refused(
                    "another plan is under way",
                    code="plan_running",
                    hint="submit it when that ended",
                )
        await run.over.wait()
        return self._end(parent.task, plan, dict(run.details))

    def _end(self, task: TaskId, plan: Plan, details: dict[str, Any]) -> PlanEnd:
        records, never = self._hands.records, details.get("not_started") or {}
        started = [step.id for step in integration_order(plan) if step.id not in never]
        known = [records.subagent(task, name) for name in started]
        return PlanEnd(details=details, parts=tuple((e, records.result(e)) for e in known))

    def _ended(self, task: TaskId, document: dict[str, Any]) -> dict[str, Any] | None:
        """How this very plan ended, for one who lost the steward before it was told."""
        asked = False
        for each in every_event(self._hands.records, task):
            if each.event.type == events.INTEGRATION_ORDER:
                asked = each.event.payload.get("plan") == document
            elif each.event.type == events.PLAN_ENDED and asked:
                return dict(each.event.payload)
        return None

    def is_busy(self, task: TaskId) -> bool:
        return self._plans.under_way(task) is not None

    def last(self, task: TaskId) -> dict[str, Any]:
        """How the newest submitted plan of a task ended; nothing where there was none."""
        found: dict[str, Any] = {}
        for each in every_event(self._hands.records, task):
            if each.event.type == events.PLAN_ENDED:
                found = dict(each.event.payload)
        return found

    async def _commission(
        self, parent: Subagent, plan: Plan, policy: TaskConfig, member: str
    ) -> Commission:
        team = parent.contract.team
        if team is None or team.delegation is None or not team.delegation.planning:
            raise Refused("planning is not granted by the contract", code="delegation_disabled")
        self._plans.require_staffed(plan, policy)
        self._require_own(parent.task, plan)
        source = await self._source(parent.task, plan) if plan.repository else None
        first = self._hands.records.task(parent.task).next_step
        return Commission(
            plan=plan,
            project=self._project,
            source=source,
            parent=parent.id,
            member=member,
            first=first,
        )

    def _require_own(self, task: TaskId, plan: Plan) -> None:
        """Raises:
        BadInput: a step's id is taken, or it would reach beyond what a team may decide.
        """
        place = (self._project / plan.repository).resolve()
        if plan.repository and not place.is_relative_to(self._project.resolve()):
            raise BadInput("base.repository is outside of the project", code="invalid_plan")
        for step in plan.steps:
            if step.destination:
                hint = "leave destination out: it is copied to the task's shared output"
                raise BadInput(
                    f"step {step.id}: only people choose a destination",
                    code="invalid_plan",
                    hint=hint,
                )
            try:
                self._hands.records.subagent(task, step.id)
            except NotFound:
                continue
            hint = "choose ids that no subagent of this run has had"
            raise BadInput(f"step id {step.id} is taken", code="duplicate_id", hint=hint)

    async def _source(self, task: TaskId, plan: Plan) -> Source:
        """What the project has checked out; or what was joined in this run before."""
        sources = self._hands.sources
        place = self._project / plan.repository
        found = await sources.find(place, plan.ref, dirty=False, apply=False)
        source = await sources.open(task, found, dirty=False)
        tip = await sources.tip(task, source.repository, branch_of(task))
        return replace(source, commit=tip or source.commit)


def _submitted(commission: Commission, document: dict[str, Any]) -> Event:
    order = [step.id for step in integration_order(commission.plan)]
    payload: dict[str, object] = {
        "order": order,
        "reserved": commission.first + len(order),
        "plan": document,
        "parent": commission.parent,
        "member": commission.member,
        "first": commission.first,
    }
    if commission.source is not None:
        payload["source"] = asdict(commission.source)
    said = shorten(f"{commission.parent} submits a plan, to be joined as {', '.join(order)}")
    return Event(type=events.INTEGRATION_ORDER, by="child", summary=said, payload=payload)
