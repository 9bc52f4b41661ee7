"""Scheduling of subagents: the start queue, running attempts, cancellation and adoption."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Container, Coroutine, Sequence
from dataclasses import replace
from functools import partial

from retinue.core.errors import (
    AGENT,
    BadInput,
    IntegrityBroken,
    LaunchFailed,
    LimitExceeded,
    Refused,
    StorageFailed,
)
from retinue.core.globs import overlap
from retinue.core.ids import SubagentId, TaskId
from retinue.core.lifecycle import State
from retinue.core.plan import MERGE
from retinue.core.prompts import format_answer
from retinue.core.subagent import Attempt, Claim, Gate, Subagent, list_answers
from retinue.core.task_config import TaskConfig
from retinue.ports import (
    EventFacts,
    Gateway,
    Nodes,
    ProcessIdentity,
    Runtime,
    Workspace,
)
from retinue.steward import event_factory
from retinue.steward.attempt import SubagentRunner, list_attempts
from retinue.steward.join import Joiner
from retinue.steward.journal import Journal
from retinue.steward.subagent_closer import OrphanReaper, SubagentCloser
from retinue.store.reads import Records
from retinue.workspaces.file_watch import FileWatch
from retinue.workspaces.git.git_join import GitChecking, GitJoining

# Concurrent launches. Each child must be up within a time limit, however many are wanted.
LAUNCHES = 32
ALL_ROWS = -1  # SQL limit: all rows
Key = tuple[TaskId, SubagentId]


class StartQueue:
    """Subagents that wait for a slot or for the paths of another, per task."""

    def __init__(
        self,
        *,
        records: Records,
        read_config: Callable[[TaskId], TaskConfig],
        task_file_watch: FileWatch,
        begun: Container[Key],
        complain: Callable[[str], None],
    ) -> None:
        """Args: begun: subagents whose start is under way, recorded or not."""
        self._records = records
        self._read_config = read_config
        self._task_file_watch = task_file_watch
        self._begun = begun
        self._complain = complain
        self._reasons: dict[TaskId, str] = {}  # why subagents of the task wait for a slot
        self._overlaps: dict[TaskId, dict[SubagentId, str]] = {}  # why each waits despite a slot

    def select_next(self, task: TaskId, running: int) -> list[Subagent]:
        """Return the subagents that can start now, in step order.

        If any are left waiting, watch task.yaml: an edit may raise the limit or repair the file.
        """
        found = self._select_next(task, running)
        # The watch may be new: repeat, so that an edit just before it is not missed.
        if task in self._reasons and self.watch(task):
            found = self._select_next(task, running)
        return found

    def watch(self, task: TaskId) -> bool:
        """Watch task.yaml, whose edits start waiting subagents.

        Return whether the watch is new; an edit just before it may have been missed.
        """
        return self._task_file_watch.watch(task)

    def has_waiting(self, task: TaskId) -> bool:
        return task in self._reasons

    def describe_wait(self, subagent: Subagent) -> str:
        """Return what a waiting subagent waits for; empty for one that has begun."""
        if (subagent.task, subagent.id) in self._begun:
            return ""
        overlap = self._overlaps.get(subagent.task, {}).get(subagent.id, "")
        return overlap or self._reasons.get(subagent.task, "")

    def has_overlaps(self, task: TaskId) -> bool:
        """Return whether a subagent waits for another's paths although a slot is free."""
        return task in self._overlaps

    def _select_next(self, task: TaskId, running: int) -> list[Subagent]:
        reason = self._reasons.pop(task, "")
        self._overlaps.pop(task, None)
        # Read few rows first: all running ones may still be recorded as created, and two more
        # tell who starts next and whether any are left over.
        waiting = self._list_waiting(task, running + 2)
        if not waiting:
            return []
        try:
            limit = self._read_config(task).max_concurrent
        except (BadInput, IntegrityBroken, StorageFailed) as error:
            # A person's edit broke task.yaml. Log it once per reason.
            self._reasons[task] = f"a usable task.yaml: {error.message}"
            if self._reasons[task] != reason:
                self._complain(f"{task}: no subagent is started: {error.message}")
            return []
        free = max(0, limit - running)
        if free > 1:
            waiting = self._list_waiting(task, running + free + 1)
        chosen, overlaps = self._split_waiting(task, waiting, free)
        # Slots are left because paths overlap: subagents further back may own other paths.
        if overlaps and len(chosen) < free:
            waiting = self._list_waiting(task, ALL_ROWS)
            chosen, overlaps = self._split_waiting(task, waiting, free)
        if overlaps:
            self._overlaps[task] = overlaps
        if len(waiting) > len(chosen) + len(overlaps):
            self._reasons[task] = f"a free slot: {limit} may work at once"
        return chosen

    def _split_waiting(
        self, task: TaskId, waiting: Sequence[SubagentId], free: int
    ) -> tuple[list[Subagent], dict[SubagentId, str]]:
        """Return the subagents that start now, and why each skipped one has to wait.

        Subagents whose output is merged run side by side only if they own different paths. Plan
        steps never wait here, because the plan orders them; other subagents wait for them.
        """
        chosen: list[Subagent] = []
        overlaps: dict[SubagentId, str] = {}
        # Read only if some output is merged: contracts are long.
        claims: list[Claim] | None = None
        for name in waiting:
            if len(chosen) >= free:
                break
            subagent = self._records.get_subagent(task, name)
            outputs = subagent.contract.outputs
            if outputs.integration == MERGE and not outputs.in_order:
                if claims is None:
                    claims = self._records.list_merge_claims(task)
                started = [each.id for each in chosen]
                other = self._find_overlapping(task, name, claims, started)
                if other is not None:
                    overlaps[name] = f"the end of {other}, which may change the same paths"
                    continue
            chosen.append(subagent)
        return chosen, overlaps

    def _find_overlapping(
        self,
        task: TaskId,
        name: SubagentId,
        claims: Sequence[Claim],
        chosen: Container[SubagentId],
    ) -> SubagentId | None:
        """Return the first subagent, begun or earlier in order, whose paths overlap."""
        places = {claim.subagent: at for at, claim in enumerate(claims)}
        place = places[name]
        for at, claim in enumerate(claims):
            begun = (
                claim.working or claim.subagent in chosen or (task, claim.subagent) in self._begun
            )
            if (at < place or (begun and at > place)) and overlap(claim.owns, claims[place].owns):
                return claim.subagent
        return None

    def _list_waiting(self, task: TaskId, most: int) -> list[SubagentId]:
        """Return those of the first `most` created subagents that have not begun."""
        created = self._records.list_waiting(task, most)
        return [name for name in created if (task, name) not in self._begun]


RunSubagent = Callable[[SubagentRunner], Coroutine[None, None, None]]


class Supervisor:
    """Owner of all running subagents: each has exactly one SubagentRunner here."""

    def __init__(
        self,
        *,
        journal: Journal,
        records: Records,
        runtime: Runtime,
        workspaces: Workspace,
        gateway: Gateway,
        joining: GitJoining,
        checking: GitChecking,
        task_file_watch: FileWatch,
        read_config: Callable[[TaskId], TaskConfig],
        expect_team: Callable[[], None],
        monotonic_ms: Callable[[], int],
        failpoint: Callable[[str], None],
        complain: Callable[[str], None],
        nodes: Nodes | None = None,
    ) -> None:
        """Args:
        task_file_watch: the watch on task.yaml, whose edits may start waiting subagents.
        expect_team: called before a team is launched.
        """
        self._journal = journal
        self._records = records
        self._runtime = runtime
        self._workspaces = workspaces
        self._read_config = read_config
        self._complain = complain
        self._monotonic_ms = monotonic_ms
        self._runners: dict[Key, SubagentRunner] = {}
        self._running: dict[TaskId, int] = defaultdict(int)  # slots in use
        self._detached = False
        self.joins: set[asyncio.Task[None]] = set()  # joins that plan runs have started
        self.started = asyncio.Event()  # once set, resumed subagents reach models
        self.on_idle: Callable[[], None] = lambda: None
        # Launches on nodes have their own: one may wait for a node or a hub that is silent.
        self._launches = asyncio.Semaphore(LAUNCHES)
        self._launches_on_nodes = asyncio.Semaphore(LAUNCHES)
        self._make_runner = partial(
            SubagentRunner,
            journal=journal,
            records=records,
            runtime=runtime,
            workspaces=workspaces,
            gateway=gateway,
            joining=joining,
            started=self.started,
            expect_team=expect_team,
            monotonic_ms=monotonic_ms,
            failpoint=failpoint,
            complain=complain,
            nodes=nodes,
        )
        self.joiner = Joiner(
            journal=journal,
            records=records,
            runtime=runtime,
            joining=joining,
            checking=checking,
            failpoint=failpoint,
            complain=complain,
        )
        self.closing = SubagentCloser(
            journal=journal,
            records=records,
            workspaces=workspaces,
            joining=joining,
            on_ended=self._on_ended_without_process,
        )
        self._orphans = OrphanReaper(
            journal=journal,
            records=records,
            closing=self.closing,
            cancel=self.cancel,
            complain=complain,
        )
        self.queue = StartQueue(
            records=records,
            read_config=read_config,
            task_file_watch=task_file_watch,
            begun=self._runners,
            complain=complain,
        )
        task_file_watch.look = self._take_edit

    @property
    def alive(self) -> int:
        """Number of subagents that are starting, running or being joined."""
        return len(self._runners) + len(self.joins)

    def map_children(self) -> dict[int, Subagent]:
        """Return the subagent of each living child by the pid of its first process."""
        alive = [runner.get_process() for runner in self._runners.values()]
        return {pid: subagent for pid, subagent in alive if pid}

    def list_attempts(self, subagent: Subagent) -> list[Attempt]:
        """Return the attempts of a subagent, with the paths of their logs."""
        return list_attempts(self._records, self._workspaces, subagent)

    def describe_wait(self, subagent: Subagent) -> str:
        """Return what a subagent waits for before its first attempt: a slot, paths or a node."""
        runner = self._runners.get(_make_key(subagent))
        return runner.waits_for if runner is not None else self.queue.describe_wait(subagent)

    def list_tasks_on_nodes(self) -> list[TaskId]:
        """Return the tasks that have a subagent under way which runs on a node or waits for one."""
        placed = [
            runner.get_process()[1]
            for runner in self._runners.values()
            if runner.get_process()[1].contract.placement is not None
        ]
        return list(dict.fromkeys(subagent.task for subagent in placed))

    def pump(self, task: TaskId) -> None:
        """Start waiting subagents, in order, as far as slots are free."""
        for subagent in self.queue.select_next(task, self._running.get(task, 0)):
            self._begin(subagent, subagent.contract.words)

    def _take_edit(self, task: TaskId) -> bool:
        """Apply an edited task.yaml; return whether subagents still wait."""
        self.pump(task)
        # A plan run keeps its own queue of steps; wake it to look at the new limit.
        self._journal.wake(task)
        return self.queue.has_waiting(task)

    async def wait_up(self, subagent: Subagent) -> None:
        """Wait until the subagent's command executes or fails to; return at once if it queues."""
        runner = self._runners.get(_make_key(subagent))
        if runner is not None:
            await runner.wait_up()

    async def wait_settled(self, subagent: Subagent) -> None:
        """Wait until the subagent settles; return at once if it is not running."""
        runner = self._runners.get(_make_key(subagent))
        if runner is not None:
            await asyncio.wait([runner.end])

    async def cancel(self, subagent: Subagent, *, by: str, reason: str, kill: bool = False) -> None:
        """Stop the subagent, recover its work and wait until it settles.

        Raises:
            Refused: it had already ended, or finished before it could be stopped.
            StorageFailed: it is being stopped; its end is recorded as soon as the disk allows.
        """
        subagent = self._reload_subagent(subagent)
        if subagent.standing.ended:
            raise _make_ended_error(subagent)
        runner = self._runners.get(_make_key(subagent))
        if runner is None or subagent.standing.blocked:
            # It has no process, or its runner is about to end: recording is enough.
            self.closing.cancel(subagent, by, reason)
        else:
            # Record the request before the signal, so that a crash in between cannot lose it.
            if not subagent.standing.cancel_by:
                request = runner.unrecorded or [
                    event_factory.make_cancel_requested(subagent, by, reason)
                ]
                try:
                    self._journal.record(subagent.task, request)
                    # Otherwise the runner would record the same request again at its end.
                    runner.unrecorded.clear()
                except StorageFailed as error:
                    # A full disk must not keep a child alive: stop it, record later.
                    if not runner.keep_unrecorded(request):
                        raise
                    runner.stop(kill=kill)
                    raise _make_unrecorded_error(subagent, error) from error
            runner.stop(kill=kill)
            await self.wait_settled(subagent)
        ended = self._records.get_subagent(subagent.task, subagent.id)
        if not ended.standing.cancelled:
            raise _make_ended_error(ended)

    async def cancel_all(
        self, subagents: Sequence[Subagent], *, by: str, reason: str, kill: bool = False
    ) -> list[Subagent]:
        """Cancel all of them concurrently; return those that had not ended by themselves.

        Raises:
            StorageFailed: a subagent is being stopped, but that could not be recorded.
        """
        # Last first: a freed slot must not start one that is about to be cancelled.
        ends = await asyncio.gather(
            *(self.cancel(each, by=by, reason=reason, kill=kill) for each in reversed(subagents)),
            return_exceptions=True,
        )
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, Refused):
                raise end
        both = zip(subagents, reversed(ends), strict=True)
        return [subagent for subagent, end in both if end is None]

    def answer(self, subagent: Subagent, message: str, *, by: str) -> None:
        """Record the answer to a blocked subagent and start its next attempt.

        Raises:
            Refused: the subagent is not blocked.
            LimitExceeded: no slot is free.
        """
        if not subagent.standing.blocked:
            raise Refused(
                f"{subagent.id} is {subagent.standing.status}, not blocked", code="not_blocked"
            )
        if subagent.standing.in_review:
            raise Refused(
                f"the output of {subagent.id} waits for a person's approval",
                code="in_review",
                hint=f"'retinue gate approve {subagent.task} {subagent.gate}', or reject",
                hints={AGENT: "go on with other work: its result comes after the approval"},
            )
        active = self._running.get(subagent.task, 0)
        limit = self._read_config(subagent.task).max_concurrent
        if active >= limit and not subagent.contract.is_root:
            hint = "it stays blocked: wait until one ends, or cancel one, then answer again"
            raise LimitExceeded.of(active=active, limit=limit, hint=hint)
        event = event_factory.make_answered(subagent, by, message)
        self._journal.record(subagent.task, [event], EventFacts(answer=message))
        gates = self._records.list_gates(subagent.task)
        self._begin(subagent, _build_words(subagent, gates))

    def resume(self, task: TaskId) -> list[Subagent]:
        """Take up every open subagent of the task after a restart; return them.

        A subagent that cannot be resumed is logged and left as it is; the others go on.
        """
        found = self._records.list_unclosed(task)
        gates = self._records.list_gates(task)
        for subagent in found:
            try:
                self._resume(subagent, gates)
            except (LaunchFailed, StorageFailed, OSError) as error:
                self._complain(f"{subagent.id}: not resumed: {error}")
        # Orphans first: subagents whose parent has ended must not take a slot.
        self._orphans.end_orphans(task)
        self.pump(task)
        return found

    async def detach(self) -> None:
        """Stop watching. The children go on and keep their own deadlines."""
        self._detached = True
        self._orphans.detach()
        ends = [runner.end for runner in self._runners.values()]
        for end in ends:
            end.cancel()
        if ends:
            await asyncio.wait(ends)

    def _resume(self, subagent: Subagent, gates: Sequence[Gate]) -> None:
        standing = subagent.standing
        closing = subagent.contract.execution.close_on_completion
        if standing.cancel_by and not standing.ended and not standing.in_attempt:
            # The cancel was recorded, but the steward ended before it was carried out.
            self.closing.cancel(subagent, standing.cancel_by, standing.cancel_reason)
        elif standing.state is State.RUNNING and not standing.blocked:
            self._resume_running(subagent, gates)
        elif standing.state is State.WAITING_FOR_MERGE:
            if not subagent.contract.outputs.joined_later:
                self.closing.accept(subagent)
        elif standing.state in (State.COMPLETED, State.FAILED) and closing:
            self.closing.close(subagent, by="steward")

    def _resume_running(self, subagent: Subagent, gates: Sequence[Gate]) -> None:
        words = _build_words(subagent, gates)
        if not subagent.standing.in_attempt:
            self._begin(subagent, words)
            return
        # Boot id, pid and start time together identify the child; a reused pid does not match.
        attempt = self._records.list_attempts(subagent)[-1]
        folder = self._workspaces.find_runtime_folder(subagent)
        identity = ProcessIdentity(
            boot_id=attempt.boot_id,
            pid=attempt.pid,
            start_ticks=attempt.start_ticks,
            place=attempt.place,
        )
        child = self._runtime.adopt(identity, folder)
        ending = None
        if child is None:
            # The child ended while no steward ran: its exit record says how.
            ending = replace(self._runtime.read_ending(folder, attempt.number), orphaned=True)
        started_ms = attempt.started_monotonic_ms
        if attempt.place:
            # This machine may have been restarted since; the node keeps the deadline.
            started_ms = self._monotonic_ms()
        runner = self._begin(
            subagent, words, lambda runner: runner.resume(child, ending, started_ms)
        )
        if subagent.standing.cancel_by:
            runner.stop()

    def send(self, subagent: Subagent, message: str, *, by: str, urgent: bool = False) -> None:
        """Record a message and deliver it to a running subagent.

        Raises:
            Refused: the subagent has ended.
        """
        subagent = self._reload_subagent(subagent)
        if subagent.standing.ended:
            raise _make_ended_error(subagent)
        sent = event_factory.make_message_sent(subagent, by, message, urgent=urgent)
        (recorded,) = self._journal.record(subagent.task, [sent])
        self._workspaces.deliver(subagent, recorded.seq, message, urgent=urgent)

    def _reload_subagent(self, subagent: Subagent) -> Subagent:
        """Return the current record of the subagent, after pending events are written."""
        self._journal.settle()
        return self._records.get_subagent(subagent.task, subagent.id)

    def _begin(
        self, subagent: Subagent, words: str, run: RunSubagent = SubagentRunner.run
    ) -> SubagentRunner:
        key = _make_key(subagent)
        on_node = subagent.contract.placement is not None
        launches = self._launches_on_nodes if on_node else self._launches
        runner = self._runners[key] = self._make_runner(subagent, words, launches=launches)
        # The root of a team run takes no slot: the limit is for the subagents below it.
        slots = 0 if subagent.contract.is_root else 1
        self._running[subagent.task] += slots
        name = f"subagent {subagent.id}"
        coroutine = self._run_subagent(key, runner, run, slots)
        runner.end = asyncio.get_running_loop().create_task(coroutine, name=name)
        may_delegate = subagent.contract.permissions.can_spawn_children
        runner.end.add_done_callback(lambda done: self._on_ended(key, done, may_delegate))
        return runner

    async def _run_subagent(
        self, key: Key, runner: SubagentRunner, run: RunSubagent, slots: int
    ) -> None:
        """Run the subagent to its end. Its slot is free before a waiter for the end can act."""
        try:
            await run(runner)
        except Exception as fault:
            self._complain(f"{key[1]}: {type(fault).__name__}: {fault}")
            await runner.settle_after_fault(fault)
        finally:
            task = key[0]
            # An answer that came at once may have started the next runner already.
            if self._runners.get(key) is runner:
                del self._runners[key]
            self._running[task] -= slots
            if not self._running[task]:
                del self._running[task]

    def _on_ended_without_process(self, task: TaskId) -> None:
        """Start subagents that waited for the paths of one that ended without a process."""
        if self.queue.has_overlaps(task) and not self._detached:
            # Not now: a caller that closes several in one go must not meet new ones.
            asyncio.get_running_loop().call_soon(self._pump_again, task)

    def _pump_again(self, task: TaskId) -> None:
        if not self._detached:
            self.pump(task)

    def _on_ended(self, key: Key, end: asyncio.Task[None], may_delegate: bool) -> None:
        if self._detached or end.cancelled():
            return
        if (error := end.exception()) is not None:
            self._complain(f"{key[1]}: {type(error).__name__}: {error}")
            # The loop's handler decides whether the process can go on after this error.
            about = {"message": f"runner of {key[1]} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(about)
        if may_delegate:
            self._orphans.end_those_of(*key)
        self.pump(key[0])
        if not self._runners:
            self.on_idle()


def _build_words(subagent: Subagent, gates: Sequence[Gate]) -> str:
    """Return the words for an attempt: the brief and the answers to its questions.

    A team continues its conversation and needs only the newest answer; a command needs all.
    """
    contract = subagent.contract
    known = list_answers(gates, subagent.id)
    if contract.team is not None:
        answers = [format_answer((), gate.answer) for gate in known[-1:]]
    else:
        answers = [format_answer(gate.questions, gate.answer) for gate in known]
    return contract.words + "".join(answers)


def _make_key(subagent: Subagent) -> Key:
    return subagent.task, subagent.id


def _make_unrecorded_error(subagent: Subagent, error: StorageFailed) -> StorageFailed:
    return StorageFailed(
        f"{subagent.id} is being stopped, but that cannot be recorded: {error.message}",
        code=error.code,
        hint="free space or repair the disk; then its end is recorded and its work recovered",
    )


def _make_ended_error(subagent: Subagent) -> Refused:
    status = subagent.standing.status
    hint = "nothing was changed"
    if subagent.standing.state is State.WAITING_FOR_MERGE:
        message = f"{subagent.id} has already delivered, and waits to be joined"
        if not subagent.contract.outputs.in_order:
            hint = "nothing was changed; 'subagent close' leaves its output out"
        return Refused(message, code="already_delivered", hint=hint)
    return Refused(f"{subagent.id} is already {status}", code=f"already_{status}", hint=hint)
