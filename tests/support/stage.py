"""A whole Service over a fake machine, a real database and a clock that only tests move."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from retinue.core.brief import Brief
from retinue.core.budget import Budget, ModelAccess, Spent
from retinue.core.errors import BadInput
from retinue.core.events import Recorded
from retinue.core.ids import TaskId
from retinue.core.join_result import REFUSED, JoinFailed, Source
from retinue.core.policy import NewConfig, TaskConfig
from retinue.core.result import Result
from retinue.core.subagent import Subagent
from retinue.core.subagent_type import Catalogue
from retinue.ports import Runtime, Stop, Tasks
from retinue.steward.journal import Journal
from retinue.steward.run_source import Sources
from retinue.steward.scheduler import Supervisor
from retinue.steward.service import (
    ContractFactory,
    PlanService,
    RunServices,
    Service,
    SpawnRequest,
    SpawnService,
    SubagentService,
    SubmittedPlans,
    TaskService,
    TeamRunService,
    WaitService,
    WorkerSelector,
)
from retinue.steward.supervisor_ports import SupervisorPorts
from retinue.store.database import Database
from retinue.store.reads import SqliteRecords
from retinue.store.sqlite_store import SqliteStore
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
        lambda: Catalogue(types=()), lambda: None, lambda _: "", lambda server: server
    )


async def no_source() -> Source:
    raise BadInput("nothing can be merged here", code="unknown_integration")


def make_binder(
    tasks: Tasks, runtime: Runtime, left: Callable[[Subagent], Budget]
) -> ContractFactory:
    return ContractFactory(
        tasks, runtime, no_crew(), in_container=False, left=left, source=no_source
    )


class NoGateway:
    """Implements `Gateway` where there are no models."""

    async def grant_access(self, subagent: Subagent, attempt: int) -> ModelAccess:
        return ModelAccess()

    async def admit(
        self, subagent: Subagent, attempt: int, listener: socket.socket | None, stop: Stop
    ) -> None:
        """Nobody asks."""

    async def revoke_access(self, subagent: Subagent, attempt: int) -> Spent:
        return Spent()


class NoEdits:
    """Implements `Edits` where nobody saves anything."""

    def __init__(self) -> None:
        self.look: Callable[[TaskId], bool] = lambda task: False

    def watch(self, task: TaskId) -> bool:
        return False


class NoJoining:
    """Implements what of `Joining` is needed where nothing is merged or copied."""

    async def lay_out(self, subagent: Subagent) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        return (), ()

    async def make_whole(self, subagent: Subagent) -> None:
        """It is."""

    def __getattr__(self, name: str) -> Any:
        raise JoinFailed("nothing can be joined here", reason=REFUSED)


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
        sources: Sources | None = None,
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
        self.records = SqliteRecords(self.database)
        self.store = SqliteStore(self.database, self.records, lambda: "2026-01-01T00:00:00.000Z")
        self.journal = Journal(self.store, failpoint=self._pass)
        runtime = FakeRuntime(self.machine)
        outside = SupervisorPorts(
            journal=self.journal,
            records=self.records,
            runtime=runtime,
            workspaces=FakeWorkspaces(self.machine),
            policy=self.tasks.read_config,
            monotonic_ms=lambda: int(self.seconds * 1000),
            failpoint=self._pass,
            complain=self.complaints.append,
            gateway=NoGateway(),
            edits=NoEdits(),
            expect_team=lambda: None,
            joining=self.joining,
            checking=self.joining,
        )
        supervisor = Supervisor(outside)
        binder = make_binder(self.tasks, runtime, lambda parent: parent.contract.budget)
        clock = "2026-01-01T00:00:00.000Z"
        plans, roots = self._runs(outside, supervisor, binder)
        tasks = TaskService(self.journal, self.records, self.tasks, supervisor, lambda: clock)
        spawning = SpawnService(self.journal, self.records, self.tasks, supervisor, binder, tasks)
        self.service = Service(
            tasks=tasks,
            spawning=spawning,
            subagents=SubagentService(self.records, supervisor, self.tasks),
            waiting=WaitService(self.journal, self.store, self.records, self.tasks, plans.get_run),
            plans=plans,
            roots=roots,
            supervisor=supervisor,
        )
        self.loop = SteppedLoop(self)

    def _runs(
        self, outside: SupervisorPorts, supervisor: Supervisor, binder: ContractFactory
    ) -> tuple[PlanService, TeamRunService]:
        """There is no git here, unless it was given."""
        tasks = TaskService(self.journal, self.records, self.tasks, supervisor, lambda: "")
        hands = RunServices(
            journal=self.journal,
            records=self.records,
            supervisor=supervisor,
            binder=binder,
            sources=self.sources,  # type: ignore[arg-type]
            limit=lambda task: self.tasks.read_config(task).max_concurrent,
            complain=self.complaints.append,
        )
        plans = PlanService(hands, tasks, self.tasks, Path("/"))
        return plans, TeamRunService(hands, tasks, self.tasks, SubmittedPlans(hands, plans, Path()))

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
        self.service.supervisor.at_leisure.set()

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
