"""What the supervisor needs from the outside, as Protocols."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from retinue.domain.access import ModelAccess, Spent
from retinue.domain.boundary import Boundary
from retinue.domain.brief import Brief
from retinue.domain.contract import Context
from retinue.domain.ending import Ending
from retinue.domain.errors import RetinueError
from retinue.domain.event import Event, Recorded
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.policy import NewConfig, TaskConfig
from retinue.domain.result import Ends, Evidence, Result
from retinue.domain.subagent import Attempt, Counts, Draft, Gate, Subagent, Task

Stop = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """All that a runtime needs to start one attempt."""

    task: TaskId
    subagent: SubagentId
    attempt: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    workspace: Path
    runtime_folder: Path
    timeout_ms: int
    graces_ms: tuple[int, int]
    output_limit_bytes: int
    boundary: Boundary = field(default_factory=Boundary)
    writable: tuple[Path, ...] = ()  # besides the workspace
    readable: tuple[Path, ...] = ()  # of its own folder
    lent: tuple[Path, ...] = ()  # what its parent gave it to read
    hidden: tuple[Path, ...] = ()  # what nobody sees, even where it lies within what is lent
    listens: bool = False  # for its gateway, on a loopback that is its own
    team: bool = False  # instead of a command
    below: tuple[Path, ...] = ()  # seen through the workspace, the uppermost first
    lets_go: bool = False  # its launcher says when its end is recorded; see `Child.let_go`


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same number."""

    boot_id: str
    pid: int
    start_ticks: int


class Child(Protocol):
    """One attempt's process, held at its gate until it is released."""

    @property
    def identity(self) -> ProcessIdentity: ...

    async def listener(self) -> socket.socket | None:
        """Where its command will find its gateway; None where it was not asked for, or is lost."""

    async def release(self) -> None:
        """The command is executing.

        Raises:
            LaunchFailed: it could not be executed; the process is ending.
        """

    def stop(self) -> None:
        """The stop ladder has begun: SIGINT, grace, SIGTERM, grace, SIGKILL. Idempotent."""

    def kill(self) -> None:
        """Everything the child started is being killed at once. Idempotent."""

    async def ended(self) -> Ending:
        """No process of the child is left; how it ended."""

    def let_go(self) -> None: ...  # its end is recorded: what it ran in may serve another


class Runtime(Protocol):
    def unavailable(self) -> str | None: ...  # why this runtime cannot be used here, or None

    async def isolation_missing(self, behind: Sequence[str] = ()) -> str | None:
        """Why children cannot be isolated here, or behind this launcher; else None."""

    async def launch(self, order: LaunchOrder) -> Child:
        """A process exists for this attempt; it runs nothing of the task until released.

        Raises:
            LaunchFailed: no process exists.
        """

    def adopt(self, identity: ProcessIdentity, runtime_folder: Path) -> Child | None:
        """The living process of an earlier supervisor, or None when it is gone."""

    def ending(self, runtime_folder: Path, attempt: int) -> Ending:
        """How an attempt whose process is gone ended, from the record it left."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """A whole call to spawn: all of it is admitted, or nothing exists."""

    drafts: tuple[Draft, ...]
    by: str
    limit: int
    queue: bool = False
    again: bool = False  # an id that exists, with the same work, is that subagent
    key: str = ""
    request_sha256: str = ""
    preface: tuple[Event, ...] = ()  # recorded before the subagents are


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is stored together with events, beyond where they lead."""

    attempt: Attempt | None = None  # has started
    ended_attempt: int = 0
    ended_result: Result | None = None  # what that attempt alone gave
    result: Result | None = None  # what the parent receives
    questions: tuple[str, ...] = ()  # of a subagent that is now blocked
    answer: str = ""  # to the questions of a blocked one


Writing = tuple[TaskId, Sequence[Event], Facts]
Outcome = list[Recorded] | RetinueError


class Store(Protocol):
    """The truth. Each call is one transaction: it holds whole, or nothing happened."""

    def create_task(self, task: Task, event: Event) -> list[Recorded]: ...

    def admit(self, task: TaskId, admission: Admission) -> tuple[list[Subagent], list[Recorded]]:
        """Every draft is `created`, with its contract, its event and its place in the order.

        Raises:
            LimitExceeded: not enough free slots.
            BadInput: an id is taken, or the key was used for another request.
            Refused: the task is closed, or one of them cannot begin.
        """

    def record(self, task: TaskId, events: Sequence[Event], facts: Facts = ...) -> list[Recorded]:
        """The events are appended and every row they touch has moved with them.

        Raises:
            IllegalTransition: an event does not fit where its subagent stands.
        """

    def record_all(self, writings: Sequence[Writing]) -> list[Outcome]:
        """Each as if it were alone, or refused for a reason of its own; on disk all, or none."""

    def deliver(
        self, task: TaskId, consumer: str, *, peek: bool = False, held: Collection[str] = ()
    ) -> Subagent | None:
        """The next settled subagent, not held, that this consumer has not been given."""

    def mark_delivered(self, subagent: Subagent, consumer: str) -> bool: ...  # it had not been

    def undeliver(self, subagent: Subagent, consumer: str) -> None: ...  # as if never made

    def is_busy(self, task: TaskId) -> bool: ...  # somebody works, waits to, or is being joined


class Records(Protocol):
    """What the store knows, for reading. What is asked for by name and is not there: NotFound."""

    def task(self, task: TaskId) -> Task: ...

    def tasks(self, limit: int) -> list[Task]: ...

    def subagent(self, task: TaskId, subagent: str) -> Subagent: ...

    def unclosed(self, task: TaskId) -> list[Subagent]: ...

    def waiting(self, task: TaskId, limit: int) -> list[SubagentId]: ...  # to start, in order

    def newest(self, task: TaskId, limit: int) -> list[Subagent]: ...

    def attempts(self, subagent: Subagent) -> list[Attempt]: ...

    def result(self, subagent: Subagent) -> Result | None: ...

    def events(self, task: TaskId, *, after: int, limit: int) -> list[Recorded]: ...

    def counts(self, task: TaskId) -> Counts: ...

    def gates(self, task: TaskId) -> list[Gate]: ...


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A folder that is ready for one attempt."""

    workspace: Path
    runtime_folder: Path
    environment: Mapping[str, str]
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    lent: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    below: tuple[Path, ...] = ()


class Gateway(Protocol):
    """The way to models for children: it keeps the keys and counts what passes."""

    async def access(self, subagent: Subagent, attempt: int) -> ModelAccess:
        """What the attempt is given; empty when it is to have no models.

        Raises:
            LaunchFailed: it is to have them, and cannot.
        """

    async def admit(
        self, subagent: Subagent, attempt: int, listener: socket.socket | None, stop: Stop
    ) -> None:
        """The attempt's requests are let through; `stop` is called once its budget is used up."""

    async def dismiss(self, subagent: Subagent, attempt: int) -> Spent:
        """No request of the attempt is under way; what it took, all of it on record."""


class Workspace(Protocol):
    """What subagents may touch, and what they leave behind."""

    def prepare(self, subagent: Subagent, attempt: int, words: str) -> Prepared:
        """Everything the attempt starts from exists; what an earlier one left is kept aside.

        Raises:
            LaunchFailed: the disk said no.
        """

    def workspace_of(self, subagent: Subagent) -> Path: ...

    def runtime_folder_of(self, subagent: Subagent, attempt: int = 0) -> Path: ...  # 0: the newest

    def evidence(self, subagent: Subagent, attempt: int, ending: Ending) -> Evidence:
        """What the attempt left, read as claims. Never raises for what a child wrote."""

    def deliver(self, subagent: Subagent, number: int, text: str) -> None: ...  # to the child

    def publish(self, subagent: Subagent, result: Result, ends: Ends = ()) -> None:
        """Result, answer and report lie in the subagent's folder, and how each attempt ended.

        Raises:
            StorageFailed: the disk said no.
        """


class Tasks(Protocol):
    """The folders of tasks: what people read and edit there."""

    def create(self, task: Task, config: NewConfig) -> None:
        """The task's folder and its task.yaml exist.

        Raises:
            BadInput: the configuration is not one.
            StorageFailed: the disk said no.
        """

    def discard(self, task: TaskId) -> None: ...  # a folder whose task was never recorded

    def folder(self, task: TaskId) -> Path: ...

    def config(self, task: TaskId) -> TaskConfig:
        """The configuration as task.yaml has it at this moment.

        Raises:
            BadInput: someone broke the file; names the line.
            IntegrityBroken: the log and the database disagree.
        """

    def require_writable(self, task: TaskId) -> None:
        """What is about to happen in the task can be told in its log, and has room.

        Raises:
            IntegrityBroken: the log and the database disagree.
            StorageFailed: the disk says no.
        """

    def has_workspace(self, task: TaskId, subagent: str) -> bool: ...  # it is still there

    def contexts(
        self, brief: Brief, base: Path, config: TaskConfig, parent: Subagent | None
    ) -> Context:
        """What the brief gives to read, checked; `base` is where its paths begin.

        Raises:
            BadInput: something is missing, not plain, or not the parent's to give.
        """
