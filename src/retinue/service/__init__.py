"""The verbs: all that a door may call."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.service.binding import Binder, Request
from retinue.service.crew import Crew
from retinue.service.notes import Notes
from retinue.service.planrun import Hands
from retinue.service.plans import Plans, RunRequest
from retinue.service.rootrun import RootRequest, RootRuns
from retinue.service.spawning import GONE, Spawning
from retinue.service.subagents import SubagentVerbs
from retinue.service.submitted import SubmittedPlans
from retinue.service.tasks import Joined, TaskVerbs
from retinue.service.waiting import Waiting
from retinue.supervisor.supervisor import Supervisor

__all__ = [
    "GONE",
    "Binder",
    "Crew",
    "Hands",
    "Joined",
    "Notes",
    "Plans",
    "Request",
    "RootRequest",
    "RootRuns",
    "RunRequest",
    "Service",
    "Spawning",
    "SubagentVerbs",
    "SubmittedPlans",
    "TaskVerbs",
    "Waiting",
]


@dataclass(frozen=True, kw_only=True)
class Service:
    tasks: TaskVerbs
    spawning: Spawning
    subagents: SubagentVerbs
    waiting: Waiting
    plans: Plans
    roots: RootRuns
    supervisor: Supervisor
