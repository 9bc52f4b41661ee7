"""Who runs, who waits, and whose end has been asked for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from retinue.domain.briefing import answer_of
from retinue.domain.errors import LaunchFailed, LimitExceeded, Refused, StorageFailed
from retinue.domain.ids import TaskId
from retinue.domain.lifecycle import State
from retinue.domain.subagent import Gate, Subagent, answered
from retinue.ports import Facts, ProcessIdentity
from retinue.supervisor import entries
from retinue.supervisor.closing import Closing
from retinue.supervisor.delegates import Delegates
from retinue.supervisor.joiner import Joiner
from retinue.supervisor.life import Life
from retinue.supervisor.outside import Outside
from retinue.supervisor.turns import Key, Turns

Course = Callable[[Life], Coroutine[None, None, None]]


class Supervisor:
    """Every subagent that may have a process has exactly one Life here."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.closing = Closing(outside)
        self.joiner = Joiner(outside)
        self._lives: dict[Key, Life] = {}
        self.turns = Turns(outside, begun=self._lives)
        outside.edits.look = self._take_edit
        self._running: dict[TaskId, int] = defaultdict(int)
        self._delegates = Delegates(outside, self.closing, self.cancel)
        self._detached = False
        self.errands: set[asyncio.Task[None]] = set()  # what else is under way
        self.attempts = outside.attempts
        self.at_leisure = outside.at_leisure  # set it, and those who were resumed reach models
        self.on_idle: Callable[[], None] = lambda: None

    @property
    def alive(self) -> int:
        """How many subagents are in an attempt or about to be, or are being joined."""
        return len(self._lives) + len(self.errands)

    def children(self) -> dict[int, Subagent]:
        """Whose each living child is, by the number of its first process."""
        alive = [life.child_of() for life in self._lives.values()]
        return {pid: subagent for pid, subagent in alive if pid}

    def pump(self, task: TaskId) -> None:
        """As many waiting subagents have been started as there are free slots, in their order."""
        for name in self.turns.next(task, self._running.get(task, 0)):
            subagent = self._outside.records.subagent(task, name)
            self._begin(subagent, subagent.contract.words)

    def _take_edit(self, task: TaskId) -> bool:
        """Whoever can start by another task.yaml does; whether anybody still waits."""
        self.pump(task)
        self._outside.journal.wake(task)  # a plan has its own who wait
        return self.turns.anybody_waits(task)

    async def up(self, subagent: Subagent) -> None:
        """The subagent's command executes, or cannot; at once for one that waits its turn."""
        life = self._lives.get(_key(subagent))
        if life is not None:
            await life.up()

    async def settled(self, subagent: Subagent) -> None:
        """The subagent's present attempt, if it has one, has led to its settling."""
        life = self._lives.get(_key(subagent))
        if life is not None:
            await asyncio.wait([life.end])

    async def cancel(self, subagent: Subagent, *, by: str, reason: str, kill: bool = False) -> None:
        """The subagent has come to its end, with what it had earned recovered.

        Raises:
            Refused: it had already come to its end, or finished before it could be stopped.
            StorageFailed: it is stopped, and its end recorded as soon as the disk allows.
        """
        subagent = self._now(subagent)
        if subagent.standing.ended:
            raise _already(subagent)
        life = self._lives.get(_key(subagent))
        if life is None or subagent.standing.blocked:  # its life is over, or about to be
            self.closing.cancel(subagent, by, reason)
        else:
            if not subagent.standing.cancel_by:
                asked = life.owed or [entries.cancel_requested(subagent, by, reason)]
                try:
                    self._outside.journal.record(subagent.task, asked)
                    life.owed.clear()  # also where its end is waiting to record it
                except StorageFailed as error:
                    if not life.owe(asked):
                        raise
                    life.stop(kill=kill)
                    raise _unrecorded(subagent, error) from error
            life.stop(kill=kill)
            await self.settled(subagent)
        ended = self._outside.records.subagent(subagent.task, subagent.id)
        if not ended.standing.cancelled:
            raise _already(ended)

    def answer(self, subagent: Subagent, message: str, *, by: str) -> None:
        """A blocked subagent has its answer and is in its next attempt.

        Raises:
            Refused: it is not blocked.
            LimitExceeded: no slot is free.
        """
        if not subagent.standing.blocked:
            raise Refused(
                f"{subagent.id} is {subagent.standing.status}, not blocked", code="not_blocked"
            )
        active = self._running[subagent.task]
        limit = self._outside.policy(subagent.task).max_concurrent
        if active >= limit and not subagent.contract.is_root:
            hint = "it asks on: wait until one ends, or cancel one, then answer again"
            raise LimitExceeded.of(active=active, limit=limit, hint=hint)
        event = entries.answered(subagent, by, message)
        self._outside.journal.record(subagent.task, [event], Facts(answer=message))
        gates = self._outside.records.gates(subagent.task)
        self._begin(subagent, _words(subagent, gates))

    def resume(self, task: TaskId) -> list[Subagent]:
        """Every open subagent of the task goes on from where an earlier supervisor left it: these.

        One whose end the disk refuses to take is left as it is: the others must not wait for it.
        """
        found, gates = self._outside.records.unclosed(task), self._outside.records.gates(task)
        for subagent in found:
            try:
                self._resume(subagent, gates)
            except (LaunchFailed, StorageFailed, OSError) as error:
                self._outside.complain(f"{subagent.id}: not resumed: {error}")
        self._delegates.end_orphans(task)
        self.pump(task)
        return found

    async def detach(self) -> None:
        """Nobody is watched any more. The children go on, and keep their own time."""
        self._detached = True
        self._delegates.detach()
        ends = [life.end for life in self._lives.values()]
        for end in ends:
            end.cancel()
        if ends:
            await asyncio.wait(ends)

    def _resume(self, subagent: Subagent, gates: Sequence[Gate]) -> None:
        standing = subagent.standing
        closing = subagent.contract.execution.close_on_completion
        if standing.cancel_by and not standing.ended and not standing.in_attempt:
            self.closing.cancel(subagent, standing.cancel_by, standing.cancel_reason)
        elif standing.state is State.RUNNING and not standing.blocked:
            self._resume_running(subagent, gates)
        elif standing.state is State.WAITING_FOR_MERGE:
            if not subagent.contract.outputs.joined_later:
                self.closing.accept(subagent)
        elif standing.state in (State.COMPLETED, State.FAILED) and closing:
            self.closing.close(subagent, by="steward")

    def _resume_running(self, subagent: Subagent, gates: Sequence[Gate]) -> None:
        outside, words = self._outside, _words(subagent, gates)
        if not subagent.standing.in_attempt:
            self._begin(subagent, words)
            return
        attempt = outside.records.attempts(subagent)[-1]
        folder = outside.workspaces.runtime_folder_of(subagent)
        identity = ProcessIdentity(
            boot_id=attempt.boot_id, pid=attempt.pid, start_ticks=attempt.start_ticks
        )
        child, ending = outside.runtime.adopt(identity, folder), None
        if child is None:
            ending = replace(outside.runtime.ending(folder, attempt.number), orphaned=True)
        since_ms = attempt.started_monotonic_ms
        life = self._begin(subagent, words, lambda life: life.resume(child, ending, since_ms))
        if subagent.standing.cancel_by:
            life.stop()

    def send(self, subagent: Subagent, message: str, *, by: str) -> None:
        """A running subagent finds the message; that it was sent is on record.

        Raises:
            Refused: it has come to its end.
        """
        subagent = self._now(subagent)
        if subagent.standing.ended:
            raise _already(subagent)
        sent = entries.message_sent(subagent, by, message)
        (recorded,) = self._outside.journal.record(subagent.task, [sent])
        self._outside.workspaces.deliver(subagent, recorded.seq, message)

    def _now(self, subagent: Subagent) -> Subagent:
        """The subagent as it stands, an end that was about to be recorded included."""
        self._outside.journal.settle()
        return self._outside.records.subagent(subagent.task, subagent.id)

    def _begin(self, subagent: Subagent, words: str, course: Course = Life.run) -> Life:
        key = _key(subagent)
        life = self._lives[key] = Life(subagent, self._outside, words=words)
        slots = 0 if subagent.contract.is_root else 1  # it stands above those that are limited
        self._running[subagent.task] += slots
        name = f"life of {subagent.id}"
        live = self._live(key, life, course, slots)
        life.end = asyncio.get_running_loop().create_task(live, name=name)
        may_delegate = subagent.contract.permissions.can_spawn_children
        life.end.add_done_callback(lambda done: self._ended(key, done, may_delegate))
        return life

    async def _live(self, key: Key, life: Life, course: Course, slots: int) -> None:
        """Its slot is free before anyone who awaited its end can act on it."""
        try:
            await course(life)
        except Exception as fault:
            self._outside.complain(f"{key[1]}: {type(fault).__name__}: {fault}")
            await life.abort(fault)
        finally:
            task = key[0]
            if self._lives.get(key) is life:  # else it was answered at once, and has another
                del self._lives[key]
            self._running[task] -= slots
            if not self._running[task]:
                del self._running[task]

    def _ended(self, key: Key, end: asyncio.Task[None], may_delegate: bool) -> None:
        if self._detached or end.cancelled():
            return
        if (error := end.exception()) is not None:
            self._outside.complain(f"{key[1]}: {type(error).__name__}: {error}")
        if may_delegate:
            self._delegates.end_those_of(*key)
        self.pump(key[0])
        if not self._lives:
            self.on_idle()


def _words(subagent: Subagent, gates: Sequence[Gate]) -> str:
    """What an attempt is told: its brief, and the answers to what it had asked.

    A team goes on with its conversation, and needs only the newest; a command knows nothing.
    """
    contract = subagent.contract
    known = answered(gates, subagent.id)
    if contract.team is not None:
        told = [answer_of((), gate.answer) for gate in known[-1:]]
    else:
        told = [answer_of(gate.questions, gate.answer) for gate in known]
    return contract.words + "".join(told)


def _key(subagent: Subagent) -> Key:
    return subagent.task, subagent.id


def _unrecorded(subagent: Subagent, error: StorageFailed) -> StorageFailed:
    return StorageFailed(
        f"{subagent.id} is being stopped, but that cannot be recorded: {error.message}",
        code=error.code,
        hint="free space or repair the disk: then its end is recorded, and its work recovered",
    )


def _already(subagent: Subagent) -> Refused:
    status, hint = subagent.standing.status, "nothing was changed"
    if status == "running":
        said = f"{subagent.id} has already delivered, and waits to be joined"
        return Refused(said, code="already_delivered", hint=hint)
    return Refused(f"{subagent.id} is already {status}", code=f"already_{status}", hint=hint)
