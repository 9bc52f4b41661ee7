"""A machine without processes and disks: fakes of the ports around a supervisor.

A `FakeMachine` holds what outlives supervisors: processes, the records they leave and what
subagents wrote. `FakeRuntime` and `FakeWorkspaces` are one supervisor's hands on it. To
crash a supervisor, throw them away and call `FakeMachine.crash`; then make new ones.

    machine = FakeMachine()
    runtime, workspaces = FakeRuntime(machine), FakeWorkspaces(machine)
    ...                                        # a supervisor launches "bio"
    machine.leave("bio", final_answer="42")    # the child writes its answer
    machine.end("bio", exited(0))              # and ends; whoever awaits it is woken
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.core.brief import Brief
from retinue.core.contract import Context
from retinue.core.errors import BadInput, LaunchFailed, StorageFailed
from retinue.core.ids import TaskId
from retinue.core.result import Ending, EndKind, Ends, Evidence, Result
from retinue.core.subagent import Subagent, Task
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.ports import (
    Child,
    LaunchOrder,
    ProcessIdentity,
    Runtime,
    Tasks,
    Workspace,
)
from retinue.workspaces.agent_folder import make_launch_order

ROOM = Path("/fake")  # nothing is ever written there
BOOT = "fake-boot"


def exited(code: int) -> Ending:
    return Ending(kind=EndKind.EXITED, exit_code=code)


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


@dataclass(eq=False)
class FakeProcess:
    """One attempt's process: at its gate, then running, then over."""

    order: LaunchOrder
    identity: ProcessIdentity
    released: bool = False
    stop_asked: bool = False
    ending: Ending | None = None
    watchers: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.ending is None


class FakeMachine:
    """Processes and what they wrote. Survives any number of supervisors."""

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.records: dict[Path, tuple[int, Ending]] = {}  # what inits left, by runtime folder
        self.left: dict[tuple[str, int], Evidence] = {}  # by subagent and attempt
        self.published: dict[str, Result] = {}
        self.words: dict[str, str] = {}  # the newest brief of each subagent
        self.refusing_launches = ""  # why no process can be made, while this is not empty
        self.refusing_commands = ""  # why no command can be executed
        self.isolation_missing = ""  # why children cannot be isolated
        self.disk_full = False
        self.slow_launches = False  # launches wait until this is false again; see `proceed`
        self._waiting: list[asyncio.Future[None]] = []

    def living(self, subagent: str) -> FakeProcess | None:
        """The subagent's process, unless it has none that lives."""
        for process in reversed(self.processes):
            if process.alive and process.order.subagent == subagent:
                return process
        return None

    def leave(self, subagent: str, **evidence: Any) -> None:
        """The child has written these parts of `Evidence`, in its present attempt."""
        process = self.living(subagent)
        assert process is not None, f"{subagent} has no process that could write"
        key = subagent, process.order.attempt
        before = self.left.get(key, Evidence(ending=exited(0)))
        self.left[key] = replace(before, **evidence)

    def end(self, subagent: str, ending: Ending, *, record: bool = True) -> None:
        """The child is over. Without a record, nobody will know how."""
        process = self.living(subagent)
        assert process is not None, f"{subagent} has no process that could end"
        self._end(process, ending, record=record)

    def kill(self, process: FakeProcess) -> None:
        """The process is gone at once, and could not write a record."""
        if process.alive:
            lost = Ending(kind=EndKind.LOST, error="killed by SIGKILL")
            self._end(process, lost, record=False)

    def proceed(self) -> None:
        """Every launch that was held back goes on."""
        self.slow_launches = False
        waiting = self._waiting
        self._waiting = []
        _wake(waiting)

    def crash(self, *, gates_linger: bool = False) -> None:
        """The supervisor is gone: whoever waits at its gate for it will never run.

        Args:
            gates_linger: they have not noticed yet, and can still be adopted.
        """
        self._waiting.clear()
        self.slow_launches = False
        for process in self.processes:
            process.watchers.clear()
            if process.alive and not process.released and not gates_linger:
                self._end(process, Ending(kind=EndKind.NEVER_RAN), record=True)

    def _end(self, process: FakeProcess, ending: Ending, *, record: bool) -> None:
        process.ending = ending
        if record:
            self.records[process.order.runtime_folder] = process.order.attempt, ending
        watchers = process.watchers
        process.watchers = []
        _wake(watchers)

    async def held_back(self) -> None:
        while self.slow_launches:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future


class FakeChild:
    """Implements `Child` for one supervisor."""

    def __init__(self, machine: FakeMachine, process: FakeProcess) -> None:
        self._machine = machine
        self._process = process

    @property
    def identity(self) -> ProcessIdentity:
        return self._process.identity

    async def take_listener(self) -> None: ...  # it opens no socket

    async def release(self) -> None:
        if self._machine.refusing_commands:
            why = self._machine.refusing_commands
            failed = Ending(kind=EndKind.LAUNCH_FAILED, error=why)
            self._machine._end(self._process, failed, record=True)
            raise LaunchFailed(why)
        self._process.released = True

    def stop(self) -> None:
        """The child knows that its end was asked for; when it gives in is the test's to say."""
        self._process.stop_asked = True

    def kill(self) -> None:
        self._machine.kill(self._process)

    async def wait_ended(self) -> Ending:
        if self._process.ending is None and not self._process.released:
            # Adopted at its gate: its supervisor is gone, so it ends now.
            self._machine._end(self._process, Ending(kind=EndKind.NEVER_RAN), record=True)
        while self._process.ending is None:
            future = asyncio.get_running_loop().create_future()
            self._process.watchers.append(future)
            await future
        return self._process.ending

    def retire(self) -> None:
        """Nothing is kept for it."""


class FakeRuntime:
    """Implements `Runtime` on a fake machine."""

    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine

    def find_unavailable_reason(self) -> str | None:
        return None

    async def isolation_missing(self, behind: Sequence[str] = ()) -> str | None:
        return self._machine.isolation_missing or None

    async def launch(self, order: LaunchOrder) -> FakeChild:
        await self._machine.held_back()
        if self._machine.refusing_launches:
            raise LaunchFailed(self._machine.refusing_launches)
        pid = 1000 + len(self._machine.processes)
        identity = ProcessIdentity(boot_id=BOOT, pid=pid, start_ticks=pid)
        process = FakeProcess(order=order, identity=identity)
        self._machine.processes.append(process)
        self._machine.records.pop(order.runtime_folder, None)
        return FakeChild(self._machine, process)

    def adopt(self, identity: ProcessIdentity, runtime_folder: Path) -> FakeChild | None:
        for process in self._machine.processes:
            if process.alive and process.identity == identity:
                return FakeChild(self._machine, process)
        return None

    def read_ending(self, runtime_folder: Path, attempt: int) -> Ending:
        number, ending = self._machine.records.get(runtime_folder, (0, exited(0)))
        if number != attempt:
            return Ending(kind=EndKind.LOST, error="disappeared without a record")
        return ending


class FakeWorkspaces:
    """Implements `Workspace` on a fake machine."""

    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine

    def deliver(self, subagent: Subagent, number: int, text: str, *, urgent: bool = False) -> None:
        self._machine.words[subagent.id] = text

    def prepare(self, subagent: Subagent, attempt: int, words: str) -> LaunchOrder:
        if self._machine.disk_full:
            raise LaunchFailed("its folder could not be made: no space left")
        self._machine.words[subagent.id] = words
        return make_launch_order(
            subagent,
            self.find_workspace(subagent),
            self.find_runtime_folder(subagent),
            environment={},
            attempt=attempt,
        )

    def find_workspace(self, subagent: Subagent) -> Path:
        owner = subagent.contract.continues or subagent.id
        return ROOM / subagent.task / owner / "workspace"

    def find_runtime_folder(self, subagent: Subagent, attempt: int = 0) -> Path:
        return ROOM / subagent.task / subagent.id / "runtime"

    def read_evidence(self, subagent: Subagent, attempt: int, ending: Ending) -> Evidence:
        left = self._machine.left.get((subagent.id, attempt), Evidence(ending=ending))
        return replace(left, ending=ending)

    def publish(self, subagent: Subagent, result: Result, ends: Ends = ()) -> None:
        if self._machine.disk_full:
            raise StorageFailed("cannot write: no space left", code="disk_full")
        self._machine.published[subagent.id] = result


class FakeTasks:
    """Implements `Tasks`: every task has the same configuration, which a test may replace."""

    def __init__(self, config: TaskConfig) -> None:
        self.current = config
        self.broken = ""  # what a person made of task.yaml that cannot be read
        self.disk_full = False

    def create(self, task: Task, config: NewConfig) -> None:
        """Nothing is written."""

    def discard(self, task: TaskId) -> None:
        """Nothing was written."""

    def get_folder(self, task: TaskId) -> Path:
        return ROOM / task

    def keep_plan(self, task: TaskId, text: str) -> None:
        if self.disk_full:
            raise StorageFailed("cannot write: no space left", code="disk_full")

    def read_config(self, task: TaskId) -> TaskConfig:
        if self.broken:
            raise BadInput(self.broken, code="bad_yaml")
        return self.current

    def require_writable(self, task: TaskId) -> None:
        """Nothing is ever written."""

    def has_workspace(self, task: TaskId, subagent: str) -> bool:
        return True

    def resolve_contexts(
        self, brief: Brief, base: Path, config: TaskConfig, parent: Subagent | None
    ) -> Context:
        return Context(
            base=str(base), paths=tuple(brief.context_paths), files=tuple(brief.context_files)
        )

    def rescan_context(self, context: Context, also: Sequence[str] = ()) -> Context:
        return context

    def list_unreadable(self, context: Context) -> list[str]:
        return []


if TYPE_CHECKING:  # a port that changes is noticed here first

    def _conform(machine: FakeMachine, process: FakeProcess) -> None:
        _child: Child = FakeChild(machine, process)
        _runtime: Runtime = FakeRuntime(machine)
        _workspaces: Workspace = FakeWorkspaces(machine)
        _tasks: Tasks = FakeTasks(TaskConfig())
