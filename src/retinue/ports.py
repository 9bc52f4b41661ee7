"""Protocols of the steward's collaborators, and the values that pass between them.

Each Protocol has two implementations or a fake in the tests, except `Nodes`: its implementation
needs an optional package, which the steward must not import.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from retinue.core.brief import Brief
from retinue.core.budget import AttemptSpending, ModelAccess
from retinue.core.contract import Context
from retinue.core.errors import RetinueError
from retinue.core.events import Event, Recorded
from retinue.core.ids import SubagentId, TaskId
from retinue.core.placement import NodeFacts, Placement
from retinue.core.result import Ending, Ends, Evidence, Result
from retinue.core.subagent import Attempt, Draft, Subagent, Task
from retinue.core.task_config import Boundary, NewConfig, TaskConfig

Stop = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """Everything that a runtime needs to start one attempt."""

    task: TaskId
    subagent: SubagentId
    attempt: int
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str]
    workspace: Path
    runtime_folder: Path
    timeout_ms: int
    graces_ms: tuple[int, int]
    output_limit_bytes: int
    boundary: Boundary = field(default_factory=Boundary)
    writable: tuple[Path, ...] = ()  # besides the workspace
    readable: tuple[Path, ...] = ()  # parts of its own folder
    lent: tuple[Path, ...] = ()  # paths that its parent lets it read
    hidden: tuple[Path, ...] = ()  # never visible, even inside a lent path
    listens: bool = False  # the child opens a loopback socket for the gateway
    # Context paths as the contract recorded them. They are never resolved again: a symlink that
    # appeared later must not be followed.
    contexts: tuple[str, ...] = ()
    views: tuple[tuple[str, str], ...] = ()  # mount point and the path that is visible there
    # Device and inode that each context path must still have, and the owner of its files.
    identities: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    owners: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    team: bool = False  # a team runs instead of a command
    below: tuple[Path, ...] = ()  # lower layers of the workspace, uppermost first
    read_only: bool = False  # the workspace cannot be changed
    base: str = ""  # commit that the workspace starts from
    repository: str = ""  # git directory of the user's repository that the commit is from
    node: str = ""  # id of the node that is reserved for it; empty: this machine
    placement: Placement | None = None  # what another node would need
    # File with the time until which the child may run, in ms of CLOCK_BOOTTIME; see `child.Order`.
    lease: Path | None = None
    # Variables that its brief gives to the command; they replace those of `environment`.
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    redacted: tuple[tuple[str, str], ...] = ()  # texts never logged, and what stands there instead
    stdin: Path | None = None  # file that the command reads as its standard input
    checkpoint_ms: int = 0  # how often a node copies the workspace to the hub; 0: never


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """Identity of a process; a later process with the same pid has another one."""

    boot_id: str
    pid: int
    start_ticks: int
    # NODE/KEY of a child on another machine: its node's name and its key there. Its pid is 0 then.
    place: str = ""


class Child(Protocol):
    """Process of one attempt; it runs the command only after `release`."""

    @property
    def identity(self) -> ProcessIdentity: ...

    async def take_listener(self) -> socket.socket | None:
        """Return the socket for its gateway; None if it was not requested or was lost."""

    async def release(self) -> None:
        """Let the child execute its command; return once it does.

        Raises:
            LaunchFailed: it could not be executed; the process is ending.
        """

    def stop(self) -> None:
        """Begin to stop it: SIGINT, grace, SIGTERM, grace, SIGKILL. Idempotent."""

    def kill(self) -> None:
        """Kill all processes of the child at once. Idempotent."""

    async def wait_ended(self) -> Ending:
        """Wait until no process of the child is left; return how it ended."""

    def retire(self) -> None:
        """Delete what another machine keeps of it; call this after its end is recorded."""


class Runtime(Protocol):
    def find_unavailable_reason(self) -> str | None:
        """Return why this runtime cannot be used here, or None."""

    async def isolation_missing(self, behind: Sequence[str] = ()) -> str | None:
        """Return why children cannot be isolated here, or behind this launcher; else None."""

    async def launch(self, order: LaunchOrder) -> Child:
        """Create the process of an attempt; it does not run the command until released.

        Raises:
            LaunchFailed: no process exists.
        """

    # After a restart, the steward finds the children of its predecessor with these two.
    def adopt(self, identity: ProcessIdentity, runtime_folder: Path) -> Child | None:
        """Return the live process of an earlier supervisor, or None if it is gone."""

    def read_ending(self, runtime_folder: Path, attempt: int) -> Ending:
        """Read how an attempt ended from the exit record of its process."""


class Nodes(Protocol):
    """Other machines that run attempts."""

    async def list_now(self) -> list[NodeFacts]:
        """Return all known nodes; waits shortly for the hub after the steward has started."""

    def find_outage(self) -> str:
        """Return why nodes may not be known now; empty if the hub answers."""

    async def reserve(
        self,
        needs: Placement,
        *,
        isolated: bool,
        memory_mb: int = 0,
        avoid: Sequence[str] = (),
        waiting: Callable[[str], None] = ...,
    ) -> str:
        """Wait for a node with a free slot and reserve that; return the node's id.

        Args:
            avoid: nodes that are taken only if no other fits.
            waiting: called if there is none now, with why orders were refused, if any were.
        """

    def release(self, node: str) -> None:
        """Give a reserved slot back."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """One spawn call; either all its subagents are admitted or none."""

    drafts: tuple[Draft, ...]
    by: str
    limit: int
    queue: bool = False
    max_waiting: int | None = None  # limit of one parent's subagents that wait for a slot
    again: bool = False  # True: an existing id with the same work returns that subagent
    parent: str = ""  # delegating subagent; the key is unique within it
    # Idempotency key, and the hash of the request that first used it.
    key: str = ""
    request_sha256: str = ""
    briefs_sha256: str = ""  # form of request_sha256 in databases of earlier versions
    preface: tuple[Event, ...] = ()  # events recorded before the subagents


@dataclass(frozen=True, kw_only=True)
class EventFacts:
    """Data that is stored in the same transaction as its events."""

    attempt: Attempt | None = None  # an attempt that has started
    ended_attempt: int = 0
    ended_result: Result | None = None  # of that attempt alone
    result: Result | None = None  # that the parent receives
    questions: tuple[str, ...] = ()  # of a subagent that is now blocked
    answer: str | None = None  # to the questions of a gate; it may be empty


# One entry of a group commit, and what became of it: its events, or the error that refused it.
Writing = tuple[TaskId, Sequence[Event], EventFacts]
Outcome = list[Recorded] | RetinueError


class Store(Protocol):
    """Writing side of the database. Each call is one transaction."""

    def create_task(self, task: Task, event: Event) -> list[Recorded]: ...

    def admit(self, task: TaskId, admission: Admission) -> tuple[list[Subagent], list[Recorded]]:
        """Create a subagent for every draft, with its contract, event and step.

        Raises:
            LimitExceeded: there are not enough free slots.
            BadInput: an id is taken, or the key was used for another request.
            Refused: the task is closed, or a subagent cannot start.
        """

    def record(
        self, task: TaskId, events: Sequence[Event], facts: EventFacts = ...
    ) -> list[Recorded]:
        """Append the events and update the rows they affect.

        Raises:
            IllegalTransition: an event is not allowed in its subagent's state.
        """

    def record_all(self, writings: Sequence[Writing]) -> list[Outcome]:
        """Record several writings in one transaction (group commit).

        Each succeeds or is refused on its own. All that succeed reach the disk together.
        """

    def deliver(
        self, task: TaskId, consumer: str, *, peek: bool = False, held: Collection[str] = ()
    ) -> Subagent | None:
        """Return the next settled subagent that this consumer has not received and none holds."""

    def mark_delivered(self, subagent: Subagent, consumer: str) -> bool:
        """Mark the result as delivered; return False if it already was."""

    def revoke_delivery(self, subagent: Subagent, consumer: str) -> None:
        """Undo a delivery, so that the result is delivered again."""

    def is_busy(self, task: TaskId) -> bool:
        """Return whether a subagent is running, waiting for a slot or being joined."""


class Gateway(Protocol):
    """Model proxy of children: it holds the API keys and counts usage."""

    async def grant_access(self, subagent: Subagent, attempt: int) -> ModelAccess:
        """Return the attempt's access to models; empty if its contract allows none.

        Raises:
            LaunchFailed: the contract allows models, but access cannot be provided.
        """

    async def admit(
        self, subagent: Subagent, attempt: int, listener: socket.socket | None, stop: Stop
    ) -> None:
        """Accept requests of the attempt; call `stop` once its budget is used up."""

    async def revoke_access(self, subagent: Subagent, attempt: int) -> AttemptSpending:
        """End all requests of the attempt; return its recorded spending."""


class Workspace(Protocol):
    """Folders of subagents: workspace, runtime folder, logs and results."""

    def prepare(self, subagent: Subagent, attempt: int, words: str) -> LaunchOrder:
        """Create the folders of an attempt; files of an earlier attempt are moved aside.

        Returns:
            The order to launch it here, without access to models.

        Raises:
            LaunchFailed: the disk reported an error.
        """

    def find_workspace(self, subagent: Subagent) -> Path: ...

    def find_runtime_folder(self, subagent: Subagent, attempt: int = 0) -> Path:
        """Return the runtime folder of an attempt; 0 is the newest."""

    def read_evidence(self, subagent: Subagent, attempt: int, ending: Ending) -> Evidence:
        """Read what the attempt left. Never raises because of what a child wrote."""

    def deliver(self, subagent: Subagent, number: int, text: str, *, urgent: bool = False) -> None:
        """Put a message into the child's inbox."""

    def publish(self, subagent: Subagent, result: Result, ends: Ends = ()) -> None:
        """Write result, answer, report and the attempts' ends to the subagent's folder.

        Raises:
            StorageFailed: the disk reported an error.
        """


class Tasks(Protocol):
    """Task folders with the files that people read and edit."""

    def create(self, task: Task, config: NewConfig) -> None:
        """Create the task's folder and its task.yaml.

        Raises:
            BadInput: the configuration is invalid.
            StorageFailed: the disk reported an error.
        """

    def discard(self, task: TaskId) -> None:
        """Remove the folder of a task that was never recorded."""

    def get_folder(self, task: TaskId) -> Path: ...

    def keep_plan(self, task: TaskId, text: str) -> None:
        """Keep the plan of the task's run in its folder, as it was written.

        Raises:
            StorageFailed: the disk reported an error.
        """

    def read_config(self, task: TaskId) -> TaskConfig:
        """Read the current configuration from task.yaml.

        Raises:
            BadInput: the file is invalid; the message names the line.
            IntegrityBroken: the log and the database disagree.
        """

    def require_writable(self, task: TaskId) -> None:
        """Check that the task's log is intact and that the disk has space for it.

        Raises:
            IntegrityBroken: the log and the database disagree.
            StorageFailed: the disk reported an error.
        """

    def has_workspace(self, task: TaskId, subagent: str) -> bool: ...

    def resolve_contexts(
        self, brief: Brief, base: Path, config: TaskConfig, parent: Subagent | None
    ) -> Context:
        """Check and resolve the brief's context paths, relative to `base`.

        Raises:
            BadInput: a path is missing, of the wrong kind, or not readable for the parent.
        """

    def rescan_context(self, context: Context, folders: Sequence[str]) -> Context:
        """Return the context with what must be hidden in these folders by now, too."""

    def list_unreadable(self, context: Context) -> list[str]:
        """Return the lent paths that an isolated subagent cannot read.

        Without CAP_SYS_ADMIN, root cannot map the owner of a path to the subagent's user.
        """
