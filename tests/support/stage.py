"""A whole Service over a fake machine, a real database and a clock that only tests move."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from retinue.core.brief import Brief
from retinue.core.budget import AttemptSpending, Budget, ModelAccess
from retinue.core.errors import BadInput
from retinue.core.events import Recorded
from retinue.core.ids import TaskId
from retinue.core.join_result import REFUSED, JoinFailed, Source
from retinue.core.result import Result
from retinue.core.subagent import Subagent
from retinue.core.subagent_type import Catalogue
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.ports import Runtime, Stop, Tasks
from retinue.steward.agent_staffing import AgentSelector
from retinue.steward.contract_factory import ContractFactory, SpawnRequest
from retinue.steward.delivery import Delivery
from retinue.steward.journal import Journal
from retinue.steward.plan_service import PlanService
from retinue.steward.scheduler import Supervisor
from retinue.steward.spawning import SpawnService
from retinue.steward.task_service import SubagentService, TaskService
from retinue.steward.team_run import TeamRunService
from retinue.steward.team_staffing import WorkerSelector
from retinue.store.database import Database
from retinue.store.reads import Records
from retinue.store.sqlite_store import SqliteStore
from retinue.workspaces.python_environment import find_interpreter
from support.fakes import FakeMachine, FakeRuntime, FakeTasks, FakeWorkspaces

Answer = TypeVar("Answer")
TURNS = 60  # of the event loop: more than any chain of wake-ups is long
POINTS = (
    "created",
    "committed",
    "exported",
    "workspace_made",
    "launched",
    "running",
    "released",
    "exited",
    "published",
    "recorded",
)


def no_crew() -> WorkerSelector:
    """No types, and nothing that keeps teams from working."""
    return WorkerSelector(
        load_catalogue=lambda: Catalogue(types=()),
        find_missing_local_model=lambda: None,
        find_missing_key=lambda _: "",
        require_server_ready=lambda server: server,
        agents=AgentSelector("", lambda _: "", Path("/nonexistent")),
    )


async def no_source() -> Source:
    raise BadInput("nothing can be merged here", code="unknown_integration")


def make_contract_factory(
    tasks: Tasks, runtime: Runtime, left: Callable[[Subagent], Budget]
) -> ContractFactory:
    return ContractFactory(
        tasks,
        runtime,
        no_crew(),
        in_container=False,
        get_remaining_budget=left,
        find_source=no_source,
        require_secrets=lambda secrets, redact: None,
        find_interpreter=find_interpreter,
    )


class NoGateway:
    """Implements `Gateway` where there are no models."""

    async def grant_access(self, subagent: Subagent, attempt: int) -> ModelAccess:
        return ModelAccess()

    async def admit(
        self, subagent: Subagent, attempt: int, listener: socket.socket | None, stop: Stop
    ) -> None:
        """Nobody asks."""

    async def revoke_access(self, subagent: Subagent, attempt: int) -> AttemptSpending:
        return AttemptSpending()


class NoEdits:
    """Watch on task.yaml where it is never edited."""

    def __init__(self) -> None:
        self.look: Callable[[TaskId], bool] = lambda task: False

    def watch(self, task: TaskId) -> bool:
        return False


class NoJoining:
    """The part of `GitJoining` and `GitChecking` that is needed where nothing is joined."""

    async def lay_out(self, subagent: Subagent) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        return (), ()

    async def make_whole(self, subagent: Subagent) -> None:
        """It is."""

    def __getattr__(self, name: str) -> Any:
        raise JoinFailed("nothing can be joined here", reason=REFUSED)


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of an App that verbs call."""

    tasks: TaskService
    spawning: SpawnService
    subagents: SubagentService
    delivery: Delivery
    plans: PlanService
    team_runs: TeamRunService
    supervisor: Supervisor


class Crash(KeyboardInterrupt):
    """The supervisor's process is dead; asyncio lets this one out of the loop at once."""


class SteppedLoop(asyncio.SelectorEventLoop):
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        super().__init__()
        self.set_exception_handler(lambda loop, context: stage.complaints.append(str(context)))

    def time(self) -> float:
        return self._stage.seconds


class Stage:
    """One root whose supervisor can be crashed between any two steps, or at a failpoint."""

    def __init__(
        self,
        path: Path,
        *,
        limit: int = 2,
        joining: NoJoining | None = None,
        sources: Any = None,
    ) -> None:
        self.machine = FakeMachine()
        self.joining = joining or NoJoining()
        self.sources = sources
        self.tasks = FakeTasks(TaskConfig(max_concurrent=limit, min_timeout_ms=1))
        self.seconds = 0.0
        self.armed: dict[str, int] = {}
        self.crashes = 0
        self.complaints: list[str] = []
        self._path = path
        self._graves: list[Any] = []  # what crashed supervisors had in hand, never run again
        self._open()
        self.task = self.service.tasks.create(title="work", config=NewConfig(), name="work").id

    def _open(self) -> None:
        self.database = Database(self._path)
        self.records = Records(self.database)
        self.store = SqliteStore(self.database, self.records, lambda: "2026-01-01T00:00:00.000Z")
        self.journal = Journal(self.store, failpoint=self._pass)
        runtime = FakeRuntime(self.machine)
        joining: Any = self.joining
        edits: Any = NoEdits()
        supervisor = Supervisor(
            journal=self.journal,
            records=self.records,
            runtime=runtime,
            workspaces=FakeWorkspaces(self.machine),
            gateway=NoGateway(),
            joining=joining,
            checking=joining,
            task_file_watch=edits,
            read_config=self.tasks.read_config,
            expect_team=lambda: None,
            monotonic_ms=lambda: int(self.seconds * 1000),
            failpoint=self._pass,
            complain=self.complaints.append,
        )
        contracts = make_contract_factory(
            self.tasks, runtime, lambda parent: parent.contract.budget
        )
        parts: dict[str, Any] = {
            "journal": self.journal,
            "records": self.records,
            "folders": self.tasks,
            "supervisor": supervisor,
        }
        tasks = TaskService(**parts, get_timestamp=lambda: "2026-01-01T00:00:00.000Z")
        parts |= {"contracts": contracts, "tasks": tasks}
        plans = PlanService(
            **parts, sources=self.sources, project=Path("/"), complain=self.complaints.append
        )
        self.service = Services(
            tasks=tasks,
            spawning=SpawnService(**parts),
            subagents=SubagentService(
                records=self.records, supervisor=supervisor, folders=self.tasks
            ),
            delivery=Delivery(
                journal=self.journal,
                store=self.store,
                records=self.records,
                folders=self.tasks,
                plans=plans,
            ),
            plans=plans,
            team_runs=TeamRunService(**parts, plans=plans, complain=self.complaints.append),
            supervisor=supervisor,
        )
        self.loop = SteppedLoop(self)

    def _pass(self, point: str) -> None:
        if point in self.armed:
            self.armed[point] -= 1
            if self.armed[point] <= 0:
                raise Crash(point)

    def settle_down(self) -> None:
        """The loop has nothing left to do but wait."""
        breath = _breathe()
        try:
            self.loop.run_until_complete(breath)
        except Crash:
            breath.close()
            self.crash()
            raise

    def begin(self, coroutine: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
        """The coroutine is under way, as far as it comes without the world's help."""
        task = self.loop.create_task(coroutine)
        self.settle_down()
        return task

    def do(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """What the coroutine gives; it must not have to wait for anything of the world."""
        task = self.begin(coroutine)
        assert task.done(), "it waits"
        return task.result()

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        self.settle_down()

    def crash(self, *, gates_linger: bool = False) -> None:
        """kill -9, and a new supervisor over the same database and the same machine."""
        self.crashes += 1
        self.armed.clear()
        self._graves.append((self.loop, self.service))
        self.database.close()
        self.machine.crash(gates_linger=gates_linger)
        self._open()
        self.do(self._resume())

    async def _resume(self) -> None:
        self.service.supervisor.resume(self.task)
        self.service.supervisor.started.set()

    def close(self) -> None:
        self.database.close()
        for loop, _ in [*self._graves, (self.loop, None)]:
            for task in asyncio.all_tasks(loop):
                course: Any = task.get_coro()
                if inspect.getcoroutinestate(course) == inspect.CORO_CREATED:
                    course.close()  # else it complains in whichever test it is collected
            loop.close()

    # What tests ask of it again and again

    async def spawn(self, *briefs: Brief, queue: bool = False) -> list[Subagent]:
        return await self.spawned(self.request(*briefs, queue=queue))

    async def spawned(self, request: SpawnRequest) -> list[Subagent]:
        spawning = self.service.spawning
        return await spawning.wait_up(await spawning.admit(self.task, request))

    async def attended(self, request: SpawnRequest) -> list[Result]:
        spawning = self.service.spawning
        return await spawning.wait_results(await spawning.admit(self.task, request))

    def request(self, *briefs: Brief, queue: bool = False) -> SpawnRequest:
        return SpawnRequest(briefs=briefs, base=Path("/"), queue=queue)

    def subagents(self) -> list[Subagent]:
        return self.records.list_newest(self.task, 10_000)

    def subagent(self, name: str) -> Subagent:
        return self.records.get_subagent(self.task, name)

    def events(self, name: str | None = None) -> list[Recorded]:
        recorded = self.records.list_events(self.task, after=0, limit=100_000)
        return [each for each in recorded if name is None or each.event.subagent == name]

    def types(self, name: str) -> list[str]:
        return [each.event.type.removeprefix("agent.") for each in self.events(name)]

    def limit(self, limit: int) -> None:
        self.tasks.current = replace(self.tasks.current, max_concurrent=limit)


async def _breathe() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def brief(name: str | None = None, **terms: Any) -> Brief:
    return Brief("do it", id=name, argv=("true",), **terms)
