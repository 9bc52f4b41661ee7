"""One subagent's way from where it stands to its end: launch, watch, recover, settle, close."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from retinue.domain.access import Spent
from retinue.domain.ending import Ending, EndKind
from retinue.domain.errors import LaunchFailed, StorageFailed
from retinue.domain.event import Event
from retinue.domain.result import Ends, Evidence, Result, judge
from retinue.domain.subagent import Attempt, Subagent
from retinue.domain.verdict import Next, close_reason, overall, what_next
from retinue.ports import Child, Facts, ProcessIdentity
from retinue.supervisor import entries
from retinue.supervisor.backstop import BACKSTOP_MS, Backstop
from retinue.supervisor.joiner import show_workspace
from retinue.supervisor.orders import order_for
from retinue.supervisor.outside import Outside

STORAGE_RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)


class Life:
    """The only one that moves its subagent, from the start of an attempt to settled.

    Whoever wants its end calls `stop`, then awaits `end`.
    """

    def __init__(self, subagent: Subagent, outside: Outside, *, words: str) -> None:
        self._subagent = subagent
        self._outside = outside
        self._words = words
        self.end: asyncio.Task[None]  # which runs it
        self._child: Child | None = None
        self._backstop: Backstop  # of that child
        self._launched: Child | None = None  # the newest, whatever became of it
        self._asked = ""  # "stop" or "kill", as soon as anyone asked
        self.owed: list[Event] = []  # who asked, where that could not be recorded
        self._ending = False  # the attempt under way is over
        self._number = 0  # of the attempt under way
        self._reaches_models = True  # as far as is known
        self._up = asyncio.Event()

    async def run(self) -> None:
        """The subagent is settled, or blocked."""
        while await self._conclude(await self._attempt()):
            pass

    async def resume(self, child: Child | None, ending: Ending | None, since_ms: int) -> None:
        """The same, from within the attempt that an earlier supervisor had started.

        Args:
            child: its living process, if it lives.
            ending: else how it ended while nobody watched.
            since_ms: the monotonic time of its start.
        """
        self._number = self._subagent.standing.attempt
        if child is not None:
            self._launched = child
            admission = asyncio.create_task(self._admit_again(child))
            try:
                ending = await self._watch(child, since_ms)
                await admission
            finally:
                admission.cancel()
        if ending is not None and await self._conclude(ending):
            await self.run()

    async def abort(self, fault: Exception) -> None:
        """The subagent is settled, although something of ours went wrong on its way."""
        if self._launched is not None:
            self._launched.kill()
            await self._launched.ended()
        error = f"retinue failed: {type(fault).__name__}: {fault}"
        await self._conclude(Ending(kind=EndKind.LOST, error=error))

    def child_of(self) -> tuple[int, Subagent]:
        """The number of its process, or 0, and whose it is."""
        return (self._child.identity.pid if self._child else 0), self._subagent

    async def up(self) -> None:
        """Its command executes, or cannot."""
        await self._up.wait()

    def owe(self, asked: list[Event]) -> bool:
        """Whether what the disk refused is recorded before its end; an end under way goes on."""
        self.owed = self.owed if self._ending else asked
        return bool(self.owed)

    def stop(self, *, kill: bool = False) -> None:
        """The child's end has been asked for; a launch under way is stopped as soon as it is up."""
        self._asked = "kill" if kill else self._asked or "stop"
        if self._child is not None and kill:
            self._child.kill()
        elif self._child is not None:
            self._child.stop()
            self._backstop.within(sum(self._subagent.contract.execution.cancel_grace_ms))

    async def _attempt(self) -> Ending:
        """One launch, from preparing its folder to its end."""
        self._ending = False
        self._number = self._subagent.standing.attempt + 1
        if self._subagent.contract.team is not None:
            self._outside.expect_team()
        async with self._outside.launches:
            since_ms = self._outside.monotonic_ms()
            try:
                child = await self._launch(since_ms)
            except LaunchFailed as error:
                return Ending(kind=EndKind.LAUNCH_FAILED, error=error.message)
            try:
                await child.release()
            except LaunchFailed as error:
                ending = await child.ended()
                return replace(ending, kind=EndKind.LAUNCH_FAILED, error=error.message)
        self._outside.failpoint("released")
        self._up.set()
        return await self._watch(child, since_ms)

    async def _launch(self, since_ms: int) -> Child:
        outside, subagent, number = self._outside, self._subagent, self._number
        started_from, below = await outside.joining.lay_out(subagent)
        prepared = outside.workspaces.prepare(subagent, number, self._words)
        access = await outside.gateway.access(subagent, number)
        self._reaches_models = bool(access.environment)
        outside.failpoint("workspace_made")
        order = replace(
            order_for(subagent, prepared, subagent.contract.command, number),
            environment={**prepared.environment, **access.environment},
            lent=(*prepared.lent, *started_from),
            listens=access.listens,
            team=subagent.contract.team is not None,
            below=below,
            lets_go=True,
        )
        child = self._launched = await outside.runtime.launch(order)
        outside.failpoint("launched")
        attempt = _started(child.identity, number, since_ms)
        await self._record(entries.started(subagent, attempt), Facts(attempt=attempt))
        outside.failpoint("running")
        if access.environment:
            listener = await child.listener() if access.listens else None
            await outside.gateway.admit(subagent, number, listener, self.stop)
        return child

    async def _admit_again(self, child: Child) -> None:
        """A child of an earlier supervisor reaches models as it did, where that can be."""
        gateway = self._outside.gateway
        await self._outside.at_leisure.wait()
        try:
            access = await gateway.access(self._subagent, self._number)
        except LaunchFailed as error:
            self._outside.complain(f"{self._subagent.id}: no models any more: {error.message}")
            return
        if access.environment:
            listener = await child.listener() if access.listens else None
            await gateway.admit(self._subagent, self._number, listener, self.stop)

    async def _watch(self, child: Child, since_ms: int) -> Ending:
        """How the attempt ended. The child keeps its own time; the backstop is for a frozen one."""
        self._child, self._backstop = child, Backstop(child.kill)
        if self._asked:
            self.stop(kill=self._asked == "kill")
        terms = self._subagent.contract.execution
        allowed = terms.attempt_timeout_ms + sum(terms.cancel_grace_ms)
        self._backstop.within(allowed - (self._outside.monotonic_ms() - since_ms))
        try:
            ending = await child.ended()
        finally:
            self._backstop.take_away()
            self._child = None
        self._outside.failpoint("exited")
        if ending.kind is not EndKind.LOST:
            return ending
        spent = self._outside.monotonic_ms() - since_ms
        ending = replace(ending, duration_ms=spent)
        if self._asked:
            return replace(ending, kind=EndKind.STOPPED, signals_sent=("SIGKILL",))
        if spent >= allowed + BACKSTOP_MS:
            return replace(ending, kind=EndKind.DEADLINE, signals_sent=("SIGKILL",))
        return ending

    async def _conclude(self, ending: Ending) -> bool:
        """The attempt's end is recorded with all that follows from it; whether to try again."""
        self._up.set()
        self._ending = True
        spent = Spent()
        if self._reaches_models:
            spent = await self._outside.gateway.dismiss(self._subagent, self._number)
        if self.owed:
            await self._record(self.owed, Facts())
            self.owed = []
        subagent = self._subagent = self._refreshed()
        evidence = self._evidence(ending, spent)
        result = judged(evidence, subagent, self._outside)
        then = what_next(result, ending, subagent.standing, subagent.contract.execution)
        if spent.over_budget:
            then = Next.FINISH
        facts = Facts(ended_attempt=self._number, ended_result=result)
        new = entries.never_launched(subagent, ending.describe())
        new += [entries.refused(subagent, self._number, each) for each in evidence.refusals]
        new += entries.attempt_ended(subagent, self._number, result, ending, then)
        if then is Next.RETRY:
            await self._record_end(new, facts)
            return True
        before = self._outside.attempts(subagent) if self._number > 1 else []
        ends = [*((a.number, a.result) for a in before if a.result), (self._number, result)]
        whole = overall([each for _, each in ends])
        if not (whole.success and then is not Next.BLOCK):
            await show_workspace(self._outside, subagent)
        if then is Next.BLOCK:
            whole = replace(whole, questions=whole.questions or ("What should it do next?",))
            facts = replace(facts, questions=whole.questions)
            new.append(entries.blocked(subagent, self._number, whole))
        else:
            new += self._ending_entries(whole, ending)
        await self._record_end(new, replace(facts, result=whole), ends)
        return False

    def _evidence(self, ending: Ending, spent: Spent) -> Evidence:
        subagent, workspaces = self._subagent, self._outside.workspaces
        evidence = workspaces.evidence(subagent, self._number, ending)
        by, why = subagent.standing.cancel_by, subagent.standing.cancel_reason
        cancelled = f"cancelled by {by}" + (f": {why}" if why else "")
        return replace(
            evidence,
            counted=spent.usage,
            over_budget=spent.over_budget,
            warnings=(*subagent.contract.warnings, *evidence.warnings),
            cancelled=cancelled if by and (evidence.asks or not ending.clean) else "",
        )

    def _ending_entries(self, result: Result, ending: Ending) -> list[Event]:
        subagent = self._subagent
        settled = entries.settled(subagent, result, ending)
        if result.success and subagent.contract.outputs.joined_later:
            return [settled]
        accepted = [entries.accepted(subagent)] if result.success else []
        final = "completed" if result.success else "failed"
        reason = close_reason(result, ending, subagent.standing)
        return [settled, *accepted, *entries.closed_by_itself(subagent, final, reason)]

    def _refreshed(self) -> Subagent:
        return self._outside.records.subagent(self._subagent.task, self._subagent.id)

    async def _record_end(self, new: list[Event], facts: Facts, ends: Ends = ()) -> None:
        """Recorded; only then can nobody take another's process for that of this attempt."""
        await self._record(new, facts, ends)
        if self._launched is not None:
            self._launched.let_go()

    async def _record(self, new: list[Event], facts: Facts, ends: Ends = ()) -> None:
        """Recorded, however long the disk refuses: a finished child's work is never dropped.

        Its files are told from what is recorded, and go without where only they cannot be written.
        """
        publish = facts.result
        tries = 0
        while True:
            try:
                if publish is not None:
                    self._outside.workspaces.publish(self._subagent, publish, ends)
                    publish = None
                    self._outside.failpoint("published")
                await self._outside.journal.record_soon(self._subagent.task, new, facts)
                break
            except StorageFailed as error:
                delay = STORAGE_RETRY_SECONDS[min(tries, len(STORAGE_RETRY_SECONDS) - 1)]
                self._outside.complain(f"{self._subagent.id}: {error.message}; again in {delay} s")
                await asyncio.sleep(delay)
                tries += 1
                if tries >= len(STORAGE_RETRY_SECONDS) and error.code != "disk_full":
                    publish = None
        self._outside.failpoint("recorded")
        self._subagent = self._refreshed()


def _started(identity: ProcessIdentity, number: int, since_ms: int) -> Attempt:
    return Attempt(
        number=number,
        boot_id=identity.boot_id,
        pid=identity.pid,
        start_ticks=identity.start_ticks,
        started_at="",
        started_monotonic_ms=since_ms,
    )


def judged(evidence: Evidence, subagent: Subagent, outside: Outside) -> Result:
    return judge(
        evidence,
        subagent_id=subagent.id,
        workspace=str(outside.workspaces.workspace_of(subagent)),
        log_path=str(outside.workspaces.runtime_folder_of(subagent)),
    )
