"""Facade of the steward's services: all that verbs, the API and the page may call."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.steward.contract_factory import ContractFactory, SpawnRequest
from retinue.steward.human_answers import NoteAnswers
from retinue.steward.plan_run import RunServices
from retinue.steward.plan_service import PlanService, RunRequest, SubmittedPlans
from retinue.steward.scheduler import Supervisor
from retinue.steward.spawning import GONE, SpawnService
from retinue.steward.task_service import JoinedTask, NewTask, SubagentService, TaskService
from retinue.steward.team_run import TeamRunRequest, TeamRunService
from retinue.steward.team_staffing import WorkerSelector
from retinue.steward.waiting import WaitService

__all__ = [
    "GONE",
    "ContractFactory",
    "JoinedTask",
    "NewTask",
    "NoteAnswers",
    "PlanService",
    "RunRequest",
    "RunServices",
    "Service",
    "SpawnRequest",
    "SpawnService",
    "SubagentService",
    "SubmittedPlans",
    "TaskService",
    "TeamRunRequest",
    "TeamRunService",
    "WaitService",
    "WorkerSelector",
]


@dataclass(frozen=True, kw_only=True)
class Service:
    """The services of an open root."""

    tasks: TaskService
    spawning: SpawnService
    subagents: SubagentService
    waiting: WaitService
    plans: PlanService
    roots: TeamRunService
    supervisor: Supervisor
