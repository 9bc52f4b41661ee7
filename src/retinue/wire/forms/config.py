"""The configuration as people write it: its keys, and what each accepts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from retinue.domain.boundary import Limits as Bounds
from retinue.domain.budget import Budget as Spendable
from retinue.domain.policy import TaskConfig, Traffic, milliseconds
from retinue.domain.staffing import ModelBackend
from retinue.wire.forms.refusal import disagreement, require_distinct
from retinue.wire.forms.staff import (
    Agent,
    Member,
    Section,
    SubagentOrchestrator,
    require_one_way_each,
    staff_of,
)
from retinue.wire.forms.values import Amount, Count, Duration, Network, Pair, Word


class RoundTimeouts(Section):
    initial_round_timeout_seconds: Duration | None = None
    subsequent_round_timeout_seconds: Duration | None = None
    round_timeout_grace_seconds: Duration | None = None

    def limits_ms(self, inherited: RoundTimeouts | None = None) -> tuple[int, int, int]:
        """For the first round, for later ones, and the grace after each; 0 where none is set.

        What is left out here is as in those inherited.
        """
        own, theirs = self.model_dump(), (inherited or self).model_dump()
        each = (theirs[name] if limit is None else limit for name, limit in own.items())
        initial, subsequent, grace = (milliseconds(limit) if limit else 0 for limit in each)
        return initial, subsequent, grace


class BackgroundSubagents(Section):
    enabled: bool = True


class Budget(Section):
    tokens: Count | None = None
    usd: Amount | None = None
    turns: Count | None = None


class ModelTraffic(Section):
    mode: Literal["live", "record", "replay"] = "live"
    folder: str = ""


class Limits(Section):
    memory_mb: Amount | None = None
    processes: Count | None = None
    file_mb: Amount | None = None
    output_mb: Amount = 16.0

    def bounds(self) -> Bounds:
        """What is given here, and the ordinary where nothing is."""
        usual = Bounds()
        return Bounds(
            memory_mb=max(1, round(self.memory_mb or usual.memory_mb)),
            processes=self.processes or usual.processes,
            file_mb=max(1, round(self.file_mb or usual.file_mb)),
        )


class Coordination(Section):
    enable_subagents: bool = False
    subagent_default_timeout: Duration = 300.0
    subagent_min_timeout: Duration = 60.0
    subagent_max_timeout: Duration = 600.0
    subagent_max_concurrent: Count = 3
    subagent_round_timeouts: RoundTimeouts = RoundTimeouts()
    enable_agent_task_planning: bool = False
    subagent_orchestrator: SubagentOrchestrator = SubagentOrchestrator()
    subagent_types: list[Word] | None = None
    background_subagents: BackgroundSubagents = BackgroundSubagents()
    subagent_runtime_mode: Literal["isolated", "inherited"] = "isolated"
    subagent_runtime_fallback_mode: Literal["inherited"] | None = None
    subagent_host_launch_prefix: list[Word] = Field(default_factory=list)
    subagent_admission: Literal["reject", "queue"] = "reject"
    subagent_cancel_grace_seconds: Pair = (3.0, 2.0)
    subagent_grace_turn_seconds: Duration | None = None
    subagent_budget: Budget = Budget()
    subagent_traffic: ModelTraffic = ModelTraffic()
    subagent_network: Network = "models"
    subagent_workspaces: Literal["shared", "sparse", "whole"] = "shared"
    subagent_limits: Limits = Limits()
    subagent_context_roots: list[Word] = Field(default_factory=list)

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Coordination:
        least, most = self.subagent_min_timeout, self.subagent_max_timeout
        if least > most:
            raise disagreement(
                "subagent_min_timeout",
                f"{least:g} is more than subagent_max_timeout, {most:g}; set both",
            )
        return self


class Orchestrator(Section):
    coordination: Coordination = Coordination()


class Ui(Section):
    display_type: Word | None = None
    logging_enabled: bool = False


class Config(Section):
    """The whole of a configuration file."""

    agents: list[Agent] = Field(default_factory=list)
    orchestrator: Orchestrator = Orchestrator()
    timeout_settings: RoundTimeouts = RoundTimeouts()
    ui: Ui = Ui()

    @model_validator(mode="after")
    def _agents_are_distinct(self) -> Config:
        require_distinct((each.id for each in self.agents), "agents", "members")
        require_one_way_each(self.members())
        return self

    def members(self) -> list[Member]:
        """Everybody who is named anywhere, in the order of the file."""
        named: list[Member] = [m for each in self.agents for m in (each, *each.subagent_agents)]
        return named + self.orchestrator.coordination.subagent_orchestrator.agents


class TaskSection(Config):
    """`config` in task.yaml: the configuration a task was created with, and its two limits."""

    maxConcurrentAgents: Count | None = None
    timeoutSeconds: Duration = 3600.0

    @model_validator(mode="after")
    def _one_limit(self) -> TaskSection:
        here, there = self.maxConcurrentAgents, self._spelled_out
        if here is not None and there is not None and here != there:
            raise disagreement(
                "maxConcurrentAgents", f"{here} here, {there} in subagent_max_concurrent; keep one"
            )
        return self

    @property
    def _spelled_out(self) -> int | None:
        coordination = self.orchestrator.coordination
        named = "subagent_max_concurrent" in coordination.model_fields_set
        return coordination.subagent_max_concurrent if named else None

    def _backends(self) -> tuple[ModelBackend, ...]:
        """Every way to a model that is named anywhere, in the order of the file."""
        found = (member.model_backend() for member in self.members())
        return tuple(dict.fromkeys(filter(None, found)))

    def policy(self) -> TaskConfig:
        """The same, as the domain needs it."""
        coordination = self.orchestrator.coordination
        first, second = coordination.subagent_cancel_grace_seconds
        types = coordination.subagent_types
        return TaskConfig(
            default_timeout_ms=milliseconds(coordination.subagent_default_timeout),
            min_timeout_ms=milliseconds(coordination.subagent_min_timeout),
            max_timeout_ms=milliseconds(coordination.subagent_max_timeout),
            max_concurrent=self.maxConcurrentAgents or self._spelled_out or 3,
            wait_timeout_seconds=self.timeoutSeconds,
            admission=coordination.subagent_admission,
            graces_ms=(milliseconds(first), milliseconds(second)),
            output_limit_bytes=max(1, int(coordination.subagent_limits.output_mb * 1024 * 1024)),
            runtime_mode=coordination.subagent_runtime_mode,
            runtime_fallback=coordination.subagent_runtime_fallback_mode,
            launch_prefix=tuple(coordination.subagent_host_launch_prefix),
            codex=bool(self.agents) and all(agent.backend.is_codex for agent in self.agents),
            background_enabled=coordination.background_subagents.enabled,
            context_roots=tuple(coordination.subagent_context_roots),
            network=coordination.subagent_network,
            workspaces=coordination.subagent_workspaces,
            limits=coordination.subagent_limits.bounds(),
            budget=Spendable(**coordination.subagent_budget.model_dump()),
            grace_turn_ms=milliseconds(coordination.subagent_grace_turn_seconds or 5.0),
            backends=self._backends(),
            staff=staff_of(self.agents, coordination.subagent_orchestrator),
            own_round_limits_ms=self.timeout_settings.limits_ms(),
            round_limits_ms=coordination.subagent_round_timeouts.limits_ms(self.timeout_settings),
            subagents_enabled=coordination.enable_subagents,
            planning_enabled=coordination.enable_agent_task_planning,
            subagent_types=None if types is None else tuple(types),
            traffic=Traffic(**coordination.subagent_traffic.model_dump()),
        )
