"""Execution of one subagent's attempts: launch, watch, recover, settle, close."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from retinue.core.answer_schema import Mismatch
from retinue.core.budget import AttemptSpending
from retinue.core.errors import LaunchFailed, NodeUnavailable, RetinueError, StorageFailed
from retinue.core.events import Event
from retinue.core.lifecycle import Next, close_reason, combine_attempts, decide_next_step
from retinue.core.result import (
    AgentSession,
    Ending,
    EndKind,
    Ends,
    Evidence,
    Result,
    Status,
    Testimony,
    decide_result,
)
from retinue.core.subagent import Attempt, Subagent
from retinue.core.task_config import ISOLATED
from retinue.formats.result_json import parse_structured_answer
from retinue.ports import (
    Child,
    EventFacts,
    Gateway,
    Nodes,
    ProcessIdentity,
    Runtime,
    Workspace,
)
from retinue.steward import event_factory
from retinue.steward.journal import Journal, retry_while_storage_fails
from retinue.store.reads import Records
from retinue.workspaces.git.git_join import GitJoining

CHECK_SECONDS = 0.25  # of processor time, to check an answer by its schema
PUBLISH_TRIES = 5  # then the result files are skipped, unless the disk is full


# A child keeps its own deadline; only a frozen one runs longer than its graces plus this.
BACKSTOP_MS = 2_000


class KillTimer:
    """Timer that kills a child once, at the earliest of the armed times."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, allowed_ms: int) -> None:
        """Kill after this time plus `BACKSTOP_MS`, unless an earlier time is armed."""
        loop = asyncio.get_running_loop()
        due = loop.time() + (allowed_ms + BACKSTOP_MS) / 1000
        if self._timer is None or due < self._timer.when():
            self.cancel()
            self._timer = loop.call_at(due, self._kill)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class SubagentRunner:
    """Driver of one subagent from the start of an attempt until it settles or blocks.

    Only the runner moves the subagent's state meanwhile. To end it, call `stop`, then await `end`.
    """

    def __init__(
        self,
        subagent: Subagent,
        words: str,
        *,
        journal: Journal,
        records: Records,
        runtime: Runtime,
        workspaces: Workspace,
        gateway: Gateway,
        joining: GitJoining,
        launches: asyncio.Semaphore,
        started: asyncio.Event,
        expect_team: Callable[[], None],
        monotonic_ms: Callable[[], int],
        failpoint: Callable[[str], None],
        complain: Callable[[str], None],
        nodes: Nodes | None = None,
    ) -> None:
        """Args:
        words: the brief, and the answers to its questions so far.
        launches: bounds the launches at one time.
        started: set once the start-up of the steward is over.
        expect_team: called before a team is launched.
        """
        self._subagent = subagent
        self._words = words
        self._journal = journal
        self._records = records
        self._runtime = runtime
        self._workspaces = workspaces
        self._gateway = gateway
        self._joining = joining
        self._launches = launches
        self._started = started
        self._expect_team = expect_team
        self._monotonic_ms = monotonic_ms
        self._failpoint = failpoint
        self._complain = complain
        self._nodes = nodes  # other machines; None if the root is connected to no hub
        self.waits_for = ""  # what a subagent without a node waits for
        self._reserved = ""  # the node whose slot is reserved and not yet used
        self._stopping = asyncio.Event()
        self.end: asyncio.Task[None]  # the task that executes this runner
        self._child: Child | None = None  # while it is watched
        self._kill_timer: KillTimer  # of that child
        self._newest_child: Child | None = None  # the newest child, alive or not
        self._stop_request = ""  # "stop" or "kill", once requested
        self.unrecorded: list[Event] = []  # a stop request that the disk did not take
        self._ending = False  # the child has ended; its end is being recorded
        self._number = 0  # of the current attempt
        self._reaches_models = True  # assumed until the gateway says otherwise
        self._up = asyncio.Event()

    async def run(self) -> None:
        """Run attempts until the subagent settles or blocks."""
        while await self._finish_attempt(await self._run_attempt()):
            pass

    async def resume(self, child: Child | None, ending: Ending | None, started_ms: int) -> None:
        """Go on with the attempt that an earlier steward had started.

        Args:
            child: its process, if it is alive.
            ending: otherwise, how it ended in between.
            started_ms: the monotonic time of its start.
        """
        self._number = self._subagent.standing.attempt
        if child is not None:
            self._newest_child = child
            # Its start is recorded: a repeated spawn must not wait for its end.
            self._up.set()
            admission = asyncio.create_task(self._admit_again(child))
            try:
                ending = await self._watch(child, started_ms)
                await admission
            finally:
                admission.cancel()
        if ending is not None and await self._finish_attempt(ending):
            await self.run()

    async def settle_after_fault(self, fault: Exception) -> None:
        """Settle the subagent after an internal error of the steward."""
        # The child must be dead before its end is recorded.
        if self._newest_child is not None:
            self._newest_child.kill()
            await self._newest_child.wait_ended()
        error = f"retinue failed: {type(fault).__name__}: {fault}"
        await self._finish_attempt(Ending(kind=EndKind.LOST, error=error))

    def get_process(self) -> tuple[int, Subagent]:
        """Return the pid of the child, or 0, and its subagent."""
        return (self._child.identity.pid if self._child else 0), self._subagent

    async def wait_up(self) -> None:
        """Wait until the command executes or has failed to."""
        await self._up.wait()

    def keep_unrecorded(self, request: list[Event]) -> bool:
        """Keep a stop request that the disk refused, to be recorded with the end.

        Return False if it is too late, because the end is being recorded already.
        """
        self.unrecorded = self.unrecorded if self._ending else request
        return bool(self.unrecorded)

    def stop(self, *, kill: bool = False) -> None:
        """Signal the child to stop; a child that is being launched is stopped once it is up."""
        self._stop_request = "kill" if kill else self._stop_request or "stop"
        self._stopping.set()
        if self._child is not None and kill:
            self._child.kill()
        elif self._child is not None:
            # The child ends itself within its grace periods; the timer kills a frozen one.
            self._child.stop()
            self._kill_timer.arm(sum(self._subagent.contract.execution.cancel_grace_ms))

    async def _run_attempt(self) -> Ending:
        """Launch the child and return how it ended."""
        self._ending = False
        self._number = self._subagent.standing.attempt + 1
        if self._subagent.contract.team is not None:
            self._expect_team()
        while True:
            # An attempt that waits for a node must not keep others from being launched here.
            if self._subagent.contract.placement is not None and not await self._find_node():
                return Ending(kind=EndKind.STOPPED)
            try:
                return await self._launch_and_watch()
            except NodeUnavailable:
                continue  # nothing of it is recorded: wait for a node again
            finally:
                self._release_node()

    async def _launch_and_watch(self) -> Ending:
        """Launch the child and return how it ended.

        Raises:
            NodeUnavailable: the reserved node did not accept it.
        """
        # A semaphore bounds concurrent launches.
        async with self._launches:
            started_ms = self._monotonic_ms()
            try:
                child = await self._launch(started_ms)
            except NodeUnavailable:
                raise
            except LaunchFailed as error:
                return Ending(kind=EndKind.LAUNCH_FAILED, error=error.message)
            # The child waits for GO until its start is recorded; now let it run.
            try:
                await child.release()
            except LaunchFailed as error:
                ending = await child.wait_ended()
                return replace(ending, kind=EndKind.LAUNCH_FAILED, error=error.message)
        self._failpoint("released")
        self._up.set()
        if child.identity.place:
            started_ms = self._monotonic_ms()  # the time to send its files is not the child's
        return await self._watch(child, started_ms)

    async def _find_node(self) -> bool:
        """Reserve a slot of a node; return False if the subagent was stopped meanwhile."""
        contract = self._subagent.contract
        assert contract.placement is not None
        if self._nodes is None:
            self.waits_for = "a hub: this root is connected to none"
            self._up.set()
            await self._stopping.wait()
            return False
        # A node that was lost is avoided: it may fail in the same way again.
        before = self._records.list_attempts(self._subagent)
        keys = [each.place.rpartition("/")[2] for each in before if each.place]
        avoid = [key.partition(".")[0] for key in keys]
        reserving = asyncio.ensure_future(
            self._nodes.reserve(
                contract.placement,
                isolated=contract.boundary.mode == ISOLATED,
                memory_mb=contract.boundary.limits.memory_mb,
                avoid=avoid,
                waiting=self._on_waiting_for_node,
            )
        )
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({reserving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if reserving.done():
                self._reserved = reserving.result()
        finally:
            self.waits_for = ""
            reserving.cancel()
            stopping.cancel()
        if self._stopping.is_set():
            self._release_node()
        return bool(self._reserved)

    def _on_waiting_for_node(self, refusals: str) -> None:
        assert self._subagent.contract.placement is not None
        wanted = self._subagent.contract.placement.describe()
        self.waits_for = f"{wanted} ({refusals})" if refusals else wanted
        self._up.set()  # callers do not wait for it

    def _release_node(self) -> None:
        if self._reserved and self._nodes is not None:
            self._nodes.release(self._reserved)
        self._reserved = ""

    async def _launch(self, started_ms: int) -> Child:
        subagent = self._subagent
        number = self._number
        # 1. Lay out the workspace and open the way to models.
        started_from: tuple[Path, ...] = ()
        below: tuple[Path, ...] = ()
        if subagent.contract.outputs.base:
            started_from, below = await self._joining.lay_out(subagent)
        order = self._workspaces.prepare(subagent, number, self._words)
        access = await self._gateway.grant_access(subagent, number)
        self._reaches_models = bool(access.environment)
        self._failpoint("workspace_made")
        order = replace(
            order,
            environment={**order.environment, **access.environment},
            lent=(*order.lent, *started_from),
            listens=access.listens,
            below=below,
            node=self._reserved,
        )
        # 2. Fork the child, here or on the reserved node. It executes nothing before `release`.
        self._reserved = ""  # the runtime gives it back
        child = self._newest_child = await self._runtime.launch(order)
        self._failpoint("launched")
        # 3. Record its identity, by which the next steward can adopt it after a crash.
        attempt = _make_attempt(child.identity, number, started_ms)
        await self._record(
            event_factory.make_started(subagent, attempt), EventFacts(attempt=attempt)
        )
        self._failpoint("running")
        # 4. Let it use the gateway, which calls `stop` when the budget is spent.
        if access.environment:
            listener = await child.take_listener() if access.listens else None
            await self._gateway.admit(subagent, number, listener, self.stop)
        return child

    async def _admit_again(self, child: Child) -> None:
        """Give an adopted child its access to models again."""
        # A client may be waiting for the steward to start: serve it first.
        await self._started.wait()
        try:
            access = await self._gateway.grant_access(self._subagent, self._number)
        except LaunchFailed as error:
            self._complain(f"{self._subagent.id}: no models any more: {error.message}")
            return
        if access.environment:
            listener = await child.take_listener() if access.listens else None
            await self._gateway.admit(self._subagent, self._number, listener, self.stop)

    async def _watch(self, child: Child, started_ms: int) -> Ending:
        """Wait for the child's end and return it.

        The child keeps its own deadline; the kill timer is for a frozen one.
        """
        self._child = child
        self._kill_timer = KillTimer(child.kill)
        # A stop that was requested during the launch takes effect here.
        if self._stop_request:
            self.stop(kill=self._stop_request == "kill")
        terms = self._subagent.contract.execution
        allowed = terms.attempt_timeout_ms + sum(terms.cancel_grace_ms)
        self._kill_timer.arm(allowed - (self._monotonic_ms() - started_ms))
        try:
            ending = await child.wait_ended()
        finally:
            self._kill_timer.cancel()
            self._child = None
        self._failpoint("exited")
        if ending.kind is not EndKind.LOST:
            return ending
        # The child left no exit record, as after SIGKILL: infer the reason from what was asked
        # and from the time.
        spent = self._monotonic_ms() - started_ms
        ending = replace(ending, duration_ms=spent)
        if self._stop_request:
            return replace(ending, kind=EndKind.STOPPED, signals_sent=("SIGKILL",))
        if spent >= allowed + BACKSTOP_MS:
            return replace(ending, kind=EndKind.DEADLINE, signals_sent=("SIGKILL",))
        return ending

    async def _finish_attempt(self, ending: Ending) -> bool:
        """Record the attempt's end and what follows from it; return whether to retry."""
        self._up.set()
        self._ending = True
        spent = AttemptSpending()
        if self._reaches_models:
            spent = await self._gateway.revoke_access(self._subagent, self._number)
        # A stop request that the disk refused comes first: it decides what the end means.
        if self.unrecorded:
            await self._record(self.unrecorded, EventFacts())
            self.unrecorded = []
        subagent = self._subagent = self._reload_subagent()
        evidence = self._collect_evidence(ending, spent)
        result = decide_attempt_result(evidence, subagent, self._workspaces)
        next_step = decide_next_step(result, ending, subagent.standing, subagent.contract.execution)
        # A retry would have no budget left.
        if spent.over_budget:
            next_step = Next.FINISH
        facts = EventFacts(ended_attempt=self._number, ended_result=result)
        new_events = event_factory.make_never_launched(subagent, ending.describe())
        new_events += [
            event_factory.make_refused(subagent, self._number, each) for each in evidence.refusals
        ]
        new_events += [
            event_factory.make_agent_notice(subagent, self._number, each)
            for each in evidence.notices
        ]
        new_events += event_factory.make_attempt_ended(
            subagent, self._number, result, ending, next_step
        )
        if next_step is Next.RETRY:
            await self._record(new_events, facts)
            self._retire()
            return True
        before = []
        if self._number > 1:
            before = list_attempts(self._records, self._workspaces, subagent)
        ends = [*((a.number, a.result) for a in before if a.result), (self._number, result)]
        combined = combine_attempts([each for _, each in ends])
        if not (combined.success and next_step is not Next.BLOCK):
            await complete_workspace(self._joining, subagent, self._complain)
        if next_step is Next.BLOCK:
            combined = replace(
                combined, questions=combined.questions or ("What should it do next?",)
            )
            facts = replace(facts, questions=combined.questions)
            new_events.append(event_factory.make_blocked(subagent, self._number, combined))
        else:
            new_events += self._build_ending_events(combined, ending)
        await self._record(new_events, replace(facts, result=combined), ends)
        self._retire()
        return False

    def _retire(self) -> None:
        """Let the node delete its copy of the attempt, whose end is recorded."""
        if self._newest_child is not None:
            self._newest_child.retire()
            self._newest_child = None

    def _collect_evidence(self, ending: Ending, spent: AttemptSpending) -> Evidence:
        subagent = self._subagent
        evidence = self._workspaces.read_evidence(subagent, self._number, ending)
        by = subagent.standing.cancel_by
        why = subagent.standing.cancel_reason
        cancelled = f"cancelled by {by}" + (f": {why}" if why else "")
        return replace(
            evidence,
            counted=spent.usage,
            over_budget=spent.over_budget,
            warnings=(*subagent.contract.warnings, *evidence.warnings),
            cancelled=cancelled if by and (evidence.asks or not ending.clean) else "",
        )

    def _build_ending_events(self, result: Result, ending: Ending) -> list[Event]:
        subagent = self._subagent
        settled = [event_factory.make_settled(subagent, result, ending)]
        final = "failed"
        if result.success:
            if subagent.contract.outputs.joined_later:
                return settled
            settled.append(event_factory.make_accepted(subagent))
            final = "completed"
        reason = close_reason(result, ending, subagent.standing)
        return [*settled, *event_factory.make_automatic_close(subagent, final, reason)]

    def _reload_subagent(self) -> Subagent:
        return self._records.get_subagent(self._subagent.task, self._subagent.id)

    async def _record(self, new_events: list[Event], facts: EventFacts, ends: Ends = ()) -> None:
        """Publish the result files and record events; retry as long as the disk refuses.

        The work of a finished child is never dropped. If only the files cannot be written, they
        are skipped: they are derived from the records.
        """
        publish = facts.result

        async def write(failures: int) -> None:
            nonlocal publish
            if publish is not None:
                try:
                    self._workspaces.publish(self._subagent, publish, ends)
                except StorageFailed as error:
                    if failures < PUBLISH_TRIES or error.code == "disk_full":
                        raise
                    self._complain(f"{self._subagent.id}: {error.message}")
                publish = None
                self._failpoint("published")
            await self._journal.record_soon(self._subagent.task, new_events, facts)

        await retry_while_storage_fails(write, self._complain, self._subagent.id)
        self._failpoint("recorded")
        self._subagent = self._reload_subagent()


def _make_attempt(identity: ProcessIdentity, number: int, started_ms: int) -> Attempt:
    return Attempt(
        number=number,
        boot_id=identity.boot_id,
        pid=identity.pid,
        start_ticks=identity.start_ticks,
        place=identity.place,
        started_at="",
        started_monotonic_ms=started_ms,
    )


def list_attempts(records: Records, workspaces: Workspace, subagent: Subagent) -> list[Attempt]:
    """Return the attempts of a subagent, with the paths of their logs."""
    found = records.list_attempts(subagent)
    return [
        each.with_log_path(str(workspaces.find_runtime_folder(subagent, each.number)))
        for each in found
    ]


def decide_attempt_result(evidence: Evidence, subagent: Subagent, workspaces: Workspace) -> Result:
    result = decide_result(
        evidence,
        subagent_id=subagent.id,
        workspace=str(workspaces.find_workspace(subagent)),
        log_path=str(workspaces.find_runtime_folder(subagent)),
    )
    result = replace(result, agent=_describe_agent(subagent, evidence))
    return _check_answer(result, subagent.contract.answer_schema)


def _describe_agent(subagent: Subagent, evidence: Evidence) -> dict[str, str] | None:
    """Return which coding agent answered: the winner, or the only one; None if none did."""
    if subagent.contract.team is None:
        return None
    testimony = evidence.testimony or Testimony()
    members = subagent.contract.list_members(subagent.id)
    for name, member in members:
        if member.agent is not None and (len(members) == 1 or testimony.winner == name):
            told = testimony.sessions.get(name, AgentSession(session="", resumed="fresh"))
            return {
                "name": member.agent.name,
                "version": member.agent.version,
                "session": told.session,
                "resumed": told.resumed,
            }
    return None


def _check_answer(result: Result, schema: str) -> Result:
    """Return the result with its answer as a value; one that does not fit the schema failed."""
    if not schema or result.answer is None:
        return result
    try:
        with _limit_check():
            value = parse_structured_answer(result.answer, schema)
        return replace(result, structured_answer=value)
    except (Mismatch, _TakesTooLong) as why:
        if not result.success:
            return result
        return replace(result, status=Status.ERROR, error=f"invalid_answer: {why}")


class _TakesTooLong(Exception):
    """The check of an answer was ended."""


@contextmanager
def _limit_check() -> Iterator[None]:
    """End the check of an answer that takes more than CHECK_SECONDS of processor time.

    A child chooses the answer, and may choose the schema of its own subagents: for some patterns
    and references a check takes for ever, and the event loop waits. A signal is the only thing that
    interrupts a regular expression, and only the main thread of a process gets one.

    Raises:
        _TakesTooLong: the check was ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise _TakesTooLong(f"its schema takes more than {CHECK_SECONDS:g} seconds to check")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, CHECK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


async def complete_workspace(
    joining: GitJoining, subagent: Subagent, complain: Callable[[str], None]
) -> None:
    """Complete the files of a workspace that will not be joined, so that it can be read."""
    try:
        await joining.make_whole(subagent)
    except RetinueError as error:
        text = f"its workspace shows only what it changed: {error.message}"
        complain(f"{subagent.id}: {text}")
