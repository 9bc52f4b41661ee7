"""Schema of the configuration file and of `config` in task.yaml."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from retinue.core.budget import Budget
from retinue.core.ids import is_id
from retinue.core.placement import Placement
from retinue.core.staffing import (
    Candidate,
    CodingAgent,
    ModelBackend,
    Spawner,
    Staff,
)
from retinue.core.task_config import Limits as Bounds
from retinue.core.task_config import ModelTerms, TaskConfig, Traffic, to_milliseconds
from retinue.core.tool_servers import BETWEEN, LONGEST_SERVER, ToolServer, is_valid_header
from retinue.core.voting import SNAPSHOTS, TEMPORARY
from retinue.formats.schemas.validation_errors import (
    Address,
    Amount,
    Count,
    Duration,
    Feature,
    Name,
    Network,
    Pair,
    Variable,
    Word,
    make_conflict_error,
    make_value_error,
    require_distinct,
)

_DEFAULT = TaskConfig()  # applies to keys that a configuration does not set
_HEADER = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def _check_server_name(value: object) -> object:
    # A tool's name is mcp__<server>__<tool>: a server's name must not contain or end the separator.
    fits = isinstance(value, str) and is_id(value) and len(value) <= LONGEST_SERVER
    if not fits or BETWEEN in str(value) or str(value).endswith("_"):
        raise make_value_error(
            f"a name of at most {LONGEST_SERVER} letters, digits, '-' or '_', no '__', no '_' last"
        )
    return value


def _check_text(value: object) -> object:
    if not isinstance(value, str) or "\0" in value:
        raise make_value_error("a text")
    return value


def _check_header(value: object) -> object:
    if not isinstance(value, str) or not value or not _HEADER.issuperset(value):
        raise make_value_error("the name of a header")
    return value


def _check_header_value(value: object) -> object:
    if not isinstance(value, str) or not is_valid_header(value):
        raise make_value_error("printable ASCII text on one line")
    return value


_Text = Annotated[str, BeforeValidator(_check_text)]
_Header = Annotated[str, BeforeValidator(_check_header)]
_HeaderValue = Annotated[str, BeforeValidator(_check_header_value)]


class McpServer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, BeforeValidator(_check_server_name)]
    type: Literal["stdio", "streamable-http"] = "stdio"
    command: Word | None = None
    args: list[_Text] = []
    env: dict[Variable, _Text] = {}
    paths: list[Word] = []
    url: Address | None = None
    headers: dict[_Header, _HeaderValue] = {}
    allowed_tools: list[Word] | None = None
    exclude_tools: list[Word] = []
    timeout_seconds: Duration = 60.0

    # A program has command, args, env and paths; a URL has headers. The other keys are refused.
    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> McpServer:
        runs = self.type == "stdio"
        for key, needed in (("command", runs), ("url", not runs)):
            if (getattr(self, key) is not None) != needed:
                owner = "stdio" if key == "command" else "streamable-http"
                raise make_conflict_error(
                    key, f"is required for type {owner} and not allowed for other types"
                )
        for key in ("headers",) if runs else ("args", "env", "paths"):
            if getattr(self, key):
                raise make_conflict_error(key, f"is not allowed for type {self.type}")
        return self

    def to_tool_server(self) -> ToolServer:
        return ToolServer(
            name=self.name,
            argv=(self.command, *self.args) if self.command else (),
            environment=tuple(self.env.items()),
            paths=tuple(self.paths),
            url=self.url or "",
            headers=tuple(self.headers.items()),
            allowed_tools=None if self.allowed_tools is None else tuple(self.allowed_tools),
            exclude_tools=tuple(self.exclude_tools),
            timeout_ms=to_milliseconds(self.timeout_seconds),
        )


def list_servers(value: object) -> object:
    """Return servers as a list; in a mapping, the key is the server's name."""
    if not isinstance(value, dict):
        return [] if value is None else value
    return [
        {"name": name, **each} if isinstance(each, dict) and "name" not in each else each
        for name, each in value.items()
    ]


McpServers = Annotated[list[McpServer], BeforeValidator(list_servers)]


class Section(BaseModel):
    """Base of all sections; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    # In YAML a key without a value is null. An empty section means its defaults.
    @model_validator(mode="before")
    @classmethod
    def _take_defaults_for_null(cls, value: object) -> object:
        return {} if value is None else value


AGENT_TYPES = ("claude_code", "codex", "gemini_cli", "opencode", "goose", "copilot", "acp")
OF_AGENTS = ("provider", "program", "native_tools", "stall_seconds", "login")
OF_ACP = ("wire", "env", "masks")


class Backend(Section):
    type: Literal[
        "openai",
        "anthropic",
        "claude",
        "gemini",
        "chatcompletion",
        "local",
        "command",
        "claude_code",
        "codex",
        "gemini_cli",
        "opencode",
        "goose",
        "copilot",
        "acp",
    ]
    model: Word | None = None
    cwd: Word | None = None
    enable_mcp_command_line: bool = False
    base_url: Address | None = None
    api_key_env: Variable | None = None
    argv: list[Word] = []
    mcp_servers: McpServers = []
    provider: Name | None = None
    program: Word | None = None
    native_tools: bool = False
    stall_seconds: Duration = CodingAgent.stall_seconds
    login: Literal["gateway", "own"] = "gateway"
    wire: Literal["anthropic", "responses", "chat", "gemini"] | None = None
    env: dict[Variable, _Text] = {}
    masks: list[Word] = []

    @property
    def is_agent(self) -> bool:
        return self.type in AGENT_TYPES

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Backend:
        if (self.type in ("command", "acp")) != bool(self.argv):
            raise make_conflict_error(
                "argv", "is required for the types command and acp and not allowed for other types"
            )
        if (self.type == "acp") != (self.wire is not None):
            raise make_conflict_error(
                "wire", "is required for type acp and not allowed for other types"
            )
        for key in OF_AGENTS if not self.is_agent else ("base_url", "api_key_env"):
            if key in self.model_fields_set:
                which = "models" if self.is_agent else "coding agents"
                raise make_conflict_error(key, f"is only allowed for {which}, not type {self.type}")
        for key in OF_ACP:
            if self.type != "acp" and key in self.model_fields_set:
                raise make_conflict_error(key, "is only allowed for type acp")
        if self.type == "acp" and self.program is not None:
            raise make_conflict_error("program", "is the first word of argv for type acp")
        if self.type == "acp" and self.login == "own":
            raise make_conflict_error("login", "own is not known for type acp")
        for mask in self.masks:
            if mask.startswith("/") or ".." in mask.split("/"):
                raise make_conflict_error("masks", f"{mask[:80]!a} is not a path of the workspace")
        if self.type == "chatcompletion" and self.base_url is None:
            raise make_conflict_error("base_url", "is required for type chatcompletion")
        if self.type == "command" and self.mcp_servers:
            raise make_conflict_error("mcp_servers", "is not allowed for type command")
        require_distinct((each.name for each in self.mcp_servers), "mcp_servers", "servers")
        return self

    @property
    def is_codex(self) -> bool:
        return bool(self.argv) and self.argv[0].rpartition("/")[2] == "codex"


class MemberSection(Section):
    id: Name
    backend: Backend
    system_message: str | None = None

    # Members have folders named after their ids, beside those of the team.
    @model_validator(mode="after")
    def _can_have_a_folder(self) -> Self:
        if self.id in (SNAPSHOTS, TEMPORARY):
            raise make_conflict_error("id", f"{self.id!a} is the name of a folder of the team")
        return self

    def to_model_backend(self) -> ModelBackend | None:
        """Return the backend of its model; None for a command or a coding agent."""
        backend = self.backend
        if backend.type == "command" or backend.is_agent:
            return None
        return _to_model_backend(self.id, backend)

    def to_candidate(self) -> Candidate:
        return Candidate(
            id=self.id,
            backend=self.to_model_backend(),
            argv=() if self.backend.is_agent else tuple(self.backend.argv),
            system_message=self.system_message or "",
            servers=tuple(server.to_tool_server() for server in self.backend.mcp_servers),
            agent=self.to_coding_agent(),
        )

    def to_coding_agent(self) -> CodingAgent | None:
        """Return the coding agent; None for a model or a command."""
        backend = self.backend
        if not backend.is_agent:
            return None
        return CodingAgent(
            type=backend.type,
            name=self.id,
            model=backend.model or "",
            provider=backend.provider or "",
            program=backend.program or "",
            native_tools=backend.native_tools,
            stall_seconds=float(backend.stall_seconds),
            login=backend.login,
            argv=tuple(backend.argv),
            wire=backend.wire or "",
            environment=tuple(backend.env.items()),
            masks=tuple(backend.masks),
        )


def require_one_way_each(members: Iterable[MemberSection]) -> None:
    """Check that no two members have the same id and different backends."""
    # The gateway routes a member's requests by its id.
    known: dict[str, Backend] = {}
    for member in members:
        if known.setdefault(member.id, member.backend) != member.backend:
            raise make_conflict_error(
                "agents", f"{member.id!a} has two different backends; use two ids"
            )


class ProviderBackend(Section):
    type: Literal["openai", "anthropic", "claude", "gemini", "chatcompletion"]
    model: Word | None = None
    base_url: Address | None = None
    api_key_env: Variable | None = None

    @model_validator(mode="after")
    def _has_an_address(self) -> ProviderBackend:
        if self.type == "chatcompletion" and self.base_url is None:
            raise make_conflict_error("base_url", "is required for type chatcompletion")
        return self


def _to_model_backend(name: str, backend: Backend | ProviderBackend) -> ModelBackend:
    return ModelBackend(
        name=name,
        type="anthropic" if backend.type == "claude" else backend.type,
        model=backend.model or "",
        base_url=backend.base_url or "",
        api_key_env=backend.api_key_env or "",
    )


class ProviderSection(Section):
    """A model backend that no member uses itself, but coding agents may."""

    id: Name
    backend: ProviderBackend

    def to_model_backend(self) -> ModelBackend:
        return _to_model_backend(self.id, self.backend)


class Agent(MemberSection):
    subagent_agents: list[MemberSection] = []

    @model_validator(mode="after")
    def _check_members_distinct(self) -> Agent:
        require_distinct((each.id for each in self.subagent_agents), "subagent_agents", "members")
        return self

    def to_spawner(self) -> Spawner:
        sent = tuple(member.to_candidate() for member in self.subagent_agents)
        return Spawner(**vars(self.to_candidate()), subagents=sent)


class SubagentOrchestrator(Section):
    enabled: bool = False
    parse_at_references: bool = True
    inherit_spawning_agent_backend: bool = False
    shared_child_team_types: list[Word] = []
    agents: list[MemberSection] = []

    @model_validator(mode="after")
    def _check_members_distinct(self) -> SubagentOrchestrator:
        require_distinct((each.id for each in self.agents), "agents", "members")
        return self


def select_staff(agents: Iterable[Agent], shared: SubagentOrchestrator) -> Staff:
    """Return the staff; the shared pool is empty unless it is enabled."""
    on = shared.enabled
    return Staff(
        spawners=tuple(agent.to_spawner() for agent in agents),
        pool=tuple(member.to_candidate() for member in shared.agents) if on else (),
        pool_types=tuple(shared.shared_child_team_types) if on else (),
        inherit_one=on and shared.inherit_spawning_agent_backend,
    )


class RoundTimeouts(Section):
    initial_round_timeout_seconds: Duration | None = None
    subsequent_round_timeout_seconds: Duration | None = None
    round_timeout_grace_seconds: Duration | None = None

    def to_limits_ms(self, inherited: RoundTimeouts | None = None) -> tuple[int, int, int]:
        """Return the limits of the first round, of later rounds, and the grace; 0 is no limit.

        Values that are not set here come from `inherited`.
        """
        own = self.model_dump()
        theirs = (inherited or self).model_dump()
        each = (theirs[name] if limit is None else limit for name, limit in own.items())
        initial, subsequent, grace = (to_milliseconds(limit) if limit else 0 for limit in each)
        return initial, subsequent, grace


class BackgroundSubagents(Section):
    enabled: bool = True


class BudgetSection(Section):
    tokens: Count | None = None
    usd: Amount | None = None
    turns: Count | None = None


class ModelTraffic(Section):
    mode: Literal["live", "record", "replay"] = "live"
    folder: str = ""


class SubagentModels(Section):
    allow_hosted: list[Feature] = Field(default_factory=list)
    models: list[Word] = Field(default_factory=list)


class SubagentLimits(Section):
    memory_mb: Amount | None = None
    processes: Count | None = None
    file_mb: Amount | None = None
    cpus: Amount | None = None
    output_mb: Amount = _DEFAULT.output_limit_bytes / (1024 * 1024)

    def to_bounds(self) -> Bounds:
        """Return the limits, with defaults for those that are not set."""
        default = Bounds()
        return Bounds(
            memory_mb=max(1, round(self.memory_mb or default.memory_mb)),
            processes=self.processes or default.processes,
            file_mb=max(1, round(self.file_mb or default.file_mb)),
            cpus=float(self.cpus or default.cpus),
        )


def _check_losses(value: object) -> object:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10:
        raise make_value_error("a whole number from 0 to 10")
    return value


_Losses = Annotated[int, BeforeValidator(_check_losses)]


def _check_interval(value: object) -> object:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (value == 0 or 1 <= value <= 86_400):  # type: ignore[operator]
        raise make_value_error("0, or a number of seconds from 1 to 86400")
    return value


_Interval = Annotated[float, BeforeValidator(_check_interval)]


class SubagentPlacement(Section):
    labels: list[Word] = []
    host: Word | None = None


class Coordination(Section):
    enable_subagents: bool = False
    subagent_default_timeout: Duration = _DEFAULT.default_timeout_ms / 1000
    subagent_min_timeout: Duration = _DEFAULT.min_timeout_ms / 1000
    subagent_max_timeout: Duration = _DEFAULT.max_timeout_ms / 1000
    subagent_max_concurrent: Count = _DEFAULT.max_concurrent
    subagent_round_timeouts: RoundTimeouts = RoundTimeouts()
    enable_agent_task_planning: bool = False
    subagent_orchestrator: SubagentOrchestrator = SubagentOrchestrator()
    subagent_types: list[Word] | None = None
    background_subagents: BackgroundSubagents = BackgroundSubagents()
    subagent_runtime_mode: Literal["isolated", "inherited"] = "isolated"
    subagent_runtime_fallback_mode: Literal["inherited"] | None = None
    subagent_host_launch_prefix: list[Word] = Field(default_factory=list)
    subagent_admission: Literal["reject", "queue"] = "reject"
    subagent_cancel_grace_seconds: Pair = (
        _DEFAULT.graces_ms[0] / 1000,
        _DEFAULT.graces_ms[1] / 1000,
    )
    subagent_grace_turn_seconds: Duration | None = None
    subagent_budget: BudgetSection = BudgetSection()
    subagent_traffic: ModelTraffic = ModelTraffic()
    subagent_models: SubagentModels = SubagentModels()
    subagent_network: Network = "models"
    subagent_workspaces: Literal["shared", "sparse", "whole"] = "shared"
    subagent_runtime: Literal["here", "nodes"] = "here"
    subagent_placement: SubagentPlacement = SubagentPlacement()
    subagent_retries_on_node_loss: _Losses = _DEFAULT.retries_on_node_loss
    subagent_checkpoint_seconds: _Interval = _DEFAULT.checkpoint_ms / 1000
    subagent_limits: SubagentLimits = SubagentLimits()
    subagent_context_roots: list[Word] = Field(default_factory=list)
    subagent_context_paths: list[Word] = Field(default_factory=list)
    subagent_answer_characters: Count = _DEFAULT.answer_characters

    @model_validator(mode="after")
    def _check_timeout_range(self) -> Coordination:
        least = self.subagent_min_timeout
        most = self.subagent_max_timeout
        if least > most:
            raise make_conflict_error(
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
    """A configuration file."""

    agents: list[Agent] = Field(default_factory=list)
    providers: list[ProviderSection] = Field(default_factory=list)
    orchestrator: Orchestrator = Orchestrator()
    timeout_settings: RoundTimeouts = RoundTimeouts()
    ui: Ui = Ui()

    @model_validator(mode="after")
    def _check_agents_distinct(self) -> Config:
        require_distinct((each.id for each in self.agents), "agents", "members")
        require_distinct((each.id for each in self.providers), "providers", "providers")
        require_one_way_each(self.list_members())
        taken = {each.id for each in self.list_members()}
        if twice := next((each.id for each in self.providers if each.id in taken), ""):
            raise make_conflict_error("providers", f"{twice!a} is the id of a member, too")
        return self

    def list_members(self) -> list[MemberSection]:
        """Return all members in the order of the file."""
        named: list[MemberSection] = [
            m for each in self.agents for m in (each, *each.subagent_agents)
        ]
        return named + self.orchestrator.coordination.subagent_orchestrator.agents


class TaskSection(Config):
    """`config` in task.yaml: the configuration of a task and its two limits."""

    maxConcurrentAgents: Count | None = None
    timeoutSeconds: Duration = _DEFAULT.wait_timeout_seconds

    @model_validator(mode="after")
    def _check_one_limit(self) -> TaskSection:
        here = self.maxConcurrentAgents
        there = self._spelled_out
        if here is not None and there is not None and here != there:
            raise make_conflict_error(
                "maxConcurrentAgents", f"{here} here, {there} in subagent_max_concurrent; keep one"
            )
        return self

    @property
    def _spelled_out(self) -> int | None:
        # Only a value that the file sets counts: the default must not contradict the other key.
        coordination = self.orchestrator.coordination
        named = "subagent_max_concurrent" in coordination.model_fields_set
        return coordination.subagent_max_concurrent if named else None

    def _list_backends(self) -> tuple[ModelBackend, ...]:
        """Return the distinct backends in the order of the file."""
        found = (member.to_model_backend() for member in self.list_members())
        return tuple(dict.fromkeys(filter(None, found)))

    def to_task_config(self) -> TaskConfig:
        coordination = self.orchestrator.coordination
        first, second = coordination.subagent_cancel_grace_seconds
        types = coordination.subagent_types
        return TaskConfig(
            default_timeout_ms=to_milliseconds(coordination.subagent_default_timeout),
            min_timeout_ms=to_milliseconds(coordination.subagent_min_timeout),
            max_timeout_ms=to_milliseconds(coordination.subagent_max_timeout),
            max_concurrent=self.maxConcurrentAgents or self._spelled_out or _DEFAULT.max_concurrent,
            wait_timeout_seconds=self.timeoutSeconds,
            admission=coordination.subagent_admission,
            graces_ms=(to_milliseconds(first), to_milliseconds(second)),
            output_limit_bytes=max(1, int(coordination.subagent_limits.output_mb * 1024 * 1024)),
            runtime_mode=coordination.subagent_runtime_mode,
            runtime_fallback=coordination.subagent_runtime_fallback_mode,
            launch_prefix=tuple(coordination.subagent_host_launch_prefix),
            codex=bool(self.agents) and all(agent.backend.is_codex for agent in self.agents),
            background_enabled=coordination.background_subagents.enabled,
            context_roots=tuple(coordination.subagent_context_roots),
            context_paths=tuple(coordination.subagent_context_paths),
            answer_characters=coordination.subagent_answer_characters,
            network=coordination.subagent_network,
            workspaces=coordination.subagent_workspaces,
            limits=coordination.subagent_limits.to_bounds(),
            budget=Budget(**coordination.subagent_budget.model_dump()),
            grace_turn_ms=to_milliseconds(
                coordination.subagent_grace_turn_seconds or _DEFAULT.grace_turn_ms / 1000
            ),
            backends=self._list_backends(),
            providers=tuple(each.to_model_backend() for each in self.providers),
            staff=select_staff(self.agents, coordination.subagent_orchestrator),
            own_round_limits_ms=self.timeout_settings.to_limits_ms(),
            round_limits_ms=coordination.subagent_round_timeouts.to_limits_ms(
                self.timeout_settings
            ),
            subagents_enabled=coordination.enable_subagents,
            planning_enabled=coordination.enable_agent_task_planning,
            subagent_types=None if types is None else tuple(types),
            placement=Placement(
                labels=tuple(coordination.subagent_placement.labels),
                host=coordination.subagent_placement.host or "",
            )
            if coordination.subagent_runtime == "nodes"
            else None,
            retries_on_node_loss=coordination.subagent_retries_on_node_loss,
            checkpoint_ms=round(coordination.subagent_checkpoint_seconds * 1000),
            traffic=Traffic(**coordination.subagent_traffic.model_dump()),
            model_terms=ModelTerms(
                allow_hosted=tuple(coordination.subagent_models.allow_hosted),
                models=tuple(coordination.subagent_models.models),
            ),
        )
