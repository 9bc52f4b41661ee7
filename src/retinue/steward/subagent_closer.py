"""Ends of subagents that have no process: cancel, accept, close, and reaping of orphans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace

from retinue.core.errors import LaunchFailed, Refused, StorageFailed
from retinue.core.events import Event
from retinue.core.ids import SubagentId, TaskId
from retinue.core.join_result import REFUSED, JoinFailed
from retinue.core.lifecycle import State, close_reason
from retinue.core.result import Ending, EndKind, Evidence, Result, Status
from retinue.core.subagent import Subagent
from retinue.ports import EventFacts, Workspace
from retinue.steward import event_factory
from retinue.steward.attempt import decide_attempt_result
from retinue.steward.journal import Journal, retry_while_storage_fails
from retinue.store.reads import Records
from retinue.workspaces.git.git_join import GitJoining


class SubagentCloser:
    """Ends subagents that have no process. Each call records everything or nothing."""

    def __init__(
        self,
        *,
        journal: Journal,
        records: Records,
        workspaces: Workspace,
        joining: GitJoining,
        on_ended: Callable[[TaskId], None],
    ) -> None:
        """Args: on_ended: called with the task after a subagent has ended."""
        self._journal = journal
        self._records = records
        self._workspaces = workspaces
        self._joining = joining
        self._on_ended = on_ended

    def request(self, subagents: Sequence[Subagent], by: str, reason: str) -> None:
        """Record in one commit, before any child is stopped, that all of them are to end."""
        new = [
            event_factory.make_cancel_requested(each, by, reason)
            for each in subagents
            if not each.standing.ended and not each.standing.cancel_by
        ]
        if new:
            self._journal.record(subagents[0].task, new)

    def cancel(self, subagent: Subagent, by: str, reason: str) -> None:
        """End a subagent that waits in the queue or for an answer."""
        asked = bool(subagent.standing.cancel_by)
        request = [] if asked else [event_factory.make_cancel_requested(subagent, by, reason)]
        standing = replace(subagent.standing, cancel_by=by, cancel_reason=reason)
        why = f"cancelled by {by}" + (f": {reason}" if reason else "")
        result = self._make_result(subagent, Status.CANCELLED, why)
        new = [*request, *event_factory.make_cancelled_without_process(subagent, by, reason)]
        new.append(event_factory.make_settled(replace(subagent, standing=standing), result, None))
        why_closed = close_reason(result, None, standing)
        new += event_factory.make_automatic_close(subagent, "failed", why_closed)
        self._record(subagent, new, result)

    def accept(self, subagent: Subagent) -> None:
        """Accept output that waits for its parent as it is."""
        closed = event_factory.make_automatic_close(subagent, "completed", "accepted")
        self._record(subagent, [event_factory.make_accepted(subagent), *closed])

    def close(self, subagent: Subagent, *, by: str) -> None:
        """Close the subagent; do nothing if it is closed.

        Raises:
            Refused: it is running, queued, or waits to be joined by its run.
        """
        standing = subagent.standing
        match standing.state:
            case State.CLOSED:
                return
            case State.COMPLETED:
                how = self._find_join_reason(subagent) or "accepted"
                self._record(subagent, [event_factory.make_closed(subagent, "completed", how, by)])
            case State.FAILED:
                how = self._find_join_reason(subagent)
                reason = how or self._find_failure_reason(subagent)
                self._record(subagent, [event_factory.make_closed(subagent, "failed", reason, by)])
            case State.RUNNING if standing.blocked:
                self._give_up(subagent, by)
            case State.WAITING_FOR_MERGE if not subagent.contract.outputs.in_order:
                self._leave_out(subagent, by)
            case _:
                raise Refused(
                    f"{subagent.id} is {standing.status}",
                    code="not_settled",
                    hint="wait for it, or cancel it",
                )

    def _give_up(self, subagent: Subagent, by: str) -> None:
        """End a blocked subagent that was never answered."""
        result = self._make_result(subagent, Status.ERROR, "blocked, and never answered")
        reason = close_reason(result, None, subagent.standing)
        closed = event_factory.make_closed(subagent, "failed", reason, by)
        self._record(subagent, [event_factory.make_settled(subagent, result, None), closed], result)

    def _leave_out(self, subagent: Subagent, by: str) -> None:
        """End a subagent whose output was not joined; the workspace keeps all of it."""
        failure = JoinFailed("closed before it was joined", reason=REFUSED)
        result = self._make_result(subagent, Status.ERROR, failure.message)
        left_out = event_factory.make_not_joined(
            subagent, failure, {"workspace": result.workspace}, by
        )
        closed = event_factory.make_closed(subagent, "failed", failure.code, by)
        self._joining.publish(subagent, result)
        self._journal.record(subagent.task, [left_out, closed], EventFacts(result=result))

    def _find_join_reason(self, subagent: Subagent) -> str:
        result = self._records.get_result(subagent)
        joined = result.integration if result else None
        return str(joined.get("reason", "")) if joined else ""

    def _find_failure_reason(self, subagent: Subagent) -> str:
        """Return the close reason that the event of its failure carries."""
        seq = subagent.standing.settled_seq
        (failed,) = self._records.list_events(subagent.task, after=seq - 1, limit=1)
        return str(failed.event.payload.get("close_reason", "execution_failed"))

    def _make_result(self, subagent: Subagent, status: Status, error: str) -> Result:
        result = self._records.get_result(subagent)
        if result is None:
            try:
                self._workspaces.prepare(subagent, 1, subagent.contract.words)
            except LaunchFailed as fault:
                # Every ended subagent has a folder, even one that never ran.
                why = f"{subagent.id} cannot be ended yet: {fault.message}"
                raise StorageFailed(why) from fault
            result = decide_attempt_result(
                Evidence(ending=Ending(kind=EndKind.STOPPED)), subagent, self._workspaces
            )
        return replace(result, status=status, error=error)

    def _record(self, subagent: Subagent, new: list[Event], result: Result | None = None) -> None:
        # Files before the record: a result that is on record can be read from its folder.
        if result is not None:
            self._workspaces.publish(subagent, result)
        self._journal.record(subagent.task, new, EventFacts(result=result))
        self._on_ended(subagent.task)


BY, WHY = "parent", "its parent has ended"

Cancel = Callable[..., Coroutine[None, None, None]]


class OrphanReaper:
    """Cancels the subagents of a parent that has ended, in background tasks."""

    def __init__(
        self,
        *,
        journal: Journal,
        records: Records,
        closing: SubagentCloser,
        cancel: Cancel,
        complain: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._records = records
        self._closing = closing
        self._cancel = cancel
        self._complain = complain
        self._endings: set[asyncio.Task[None]] = set()

    def end_those_of(self, task: TaskId, parent: SubagentId) -> None:
        self._end([each for each in self._open(task) if each.contract.delegated_by == parent])

    def end_orphans(self, task: TaskId) -> None:
        """Cancel all subagents of ended parents that an earlier steward left behind.

        Successors stay: the user may have continued them after the parent's end.
        """
        self._end([each for each in self._open(task) if self._is_orphan(each)])

    def detach(self) -> None:
        """Stop cancelling; the next steward finds the rest with `end_orphans`."""
        for ending in self._endings:
            ending.cancel()

    def _is_orphan(self, subagent: Subagent) -> bool:
        above = subagent.contract.delegated_by
        if not above or subagent.contract.continues:
            return False
        parent = self._records.get_subagent(subagent.task, above).standing
        return parent.ended or parent.blocked

    def _open(self, task: TaskId) -> list[Subagent]:
        # Write pending events first, so that the records are current.
        self._journal.settle()
        return [each for each in self._records.list_unclosed(task) if not each.standing.ended]

    def _end(self, those: Sequence[Subagent]) -> None:
        """Cancel them in the background; from now on, none of them is started."""
        # If the disk fails, each cancel below meets the same error and retries.
        with suppress(StorageFailed):
            self._closing.request(those, BY, WHY)
        for each in those:
            ending = asyncio.get_running_loop().create_task(self._cancel_until_recorded(each))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _cancel_until_recorded(self, subagent: Subagent) -> None:
        """Cancel the subagent; retry while the disk fails."""

        async def cancel(_: int) -> None:
            with suppress(Refused):  # the subagent ended by itself
                await self._cancel(subagent, by=BY, reason=WHY)

        await retry_while_storage_fails(cancel, self._complain, f"{subagent.id} not ended")
