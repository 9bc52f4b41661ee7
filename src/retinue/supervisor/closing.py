"""The ends of subagents that have no process: nobody needs to be awaited for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retinue.domain.ending import Ending, EndKind
from retinue.domain.errors import LaunchFailed, Refused, StorageFailed
from retinue.domain.event import Event
from retinue.domain.join import REFUSED, JoinFailed
from retinue.domain.lifecycle import State
from retinue.domain.result import Evidence, Result, Status
from retinue.domain.subagent import Subagent
from retinue.domain.verdict import close_reason
from retinue.ports import Facts
from retinue.supervisor import entries
from retinue.supervisor.life import judged
from retinue.supervisor.outside import Outside


class Closing:
    """What it is asked for is recorded when it returns, or nothing is."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def request(self, subagents: Sequence[Subagent], by: str, reason: str) -> None:
        """That each of them is to end is on record, in one commit, before any is stopped."""
        new = [
            entries.cancel_requested(each, by, reason)
            for each in subagents
            if not each.standing.ended and not each.standing.cancel_by
        ]
        if new:
            self._outside.journal.record(subagents[0].task, new)

    def cancel(self, subagent: Subagent, by: str, reason: str) -> None:
        """One that waited in the queue, or for an answer, has come to its end."""
        asked = bool(subagent.standing.cancel_by)
        request = [] if asked else [entries.cancel_requested(subagent, by, reason)]
        standing = replace(subagent.standing, cancel_by=by, cancel_reason=reason)
        why = f"cancelled by {by}" + (f": {reason}" if reason else "")
        result = self._result(subagent, Status.CANCELLED, why)
        new = [*request, *entries.cancelled_without_process(subagent, by, reason)]
        new.append(entries.settled(replace(subagent, standing=standing), result, None))
        why_closed = close_reason(result, None, standing)
        new += entries.closed_by_itself(subagent, "failed", why_closed)
        self._record(subagent, new, result)

    def accept(self, subagent: Subagent) -> None:
        """Output that awaited its parent is accepted as it is."""
        closed = entries.closed_by_itself(subagent, "completed", "accepted")
        self._record(subagent, [entries.accepted(subagent), *closed])

    def close(self, subagent: Subagent, *, by: str) -> None:
        """The subagent is closed; once is enough.

        Raises:
            Refused: it still works, or waits to.
        """
        standing = subagent.standing
        match standing.state:
            case State.CLOSED:
                return
            case State.COMPLETED:
                how = self._how_it_was_joined(subagent) or "accepted"
                self._record(subagent, [entries.closed(subagent, "completed", how, by)])
            case State.FAILED:
                how = self._how_it_was_joined(subagent)
                reason = how or self._reason_of_failure(subagent)
                self._record(subagent, [entries.closed(subagent, "failed", reason, by)])
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
        """The end of a blocked one that nobody answered."""
        result = self._result(subagent, Status.ERROR, "blocked, and never answered")
        reason = close_reason(result, None, subagent.standing)
        closed = entries.closed(subagent, "failed", reason, by)
        self._record(subagent, [entries.settled(subagent, result, None), closed], result)

    def _leave_out(self, subagent: Subagent, by: str) -> None:
        """The end of one whose output nobody joined; all of it is kept where it is."""
        failure = JoinFailed("closed before it was joined", reason=REFUSED)
        result = self._result(subagent, Status.ERROR, failure.message)
        left_out = entries.not_joined(subagent, failure, {"workspace": result.workspace}, by)
        closed = entries.closed(subagent, "failed", failure.code, by)
        self._outside.joining.publish(subagent, result)
        self._outside.journal.record(subagent.task, [left_out, closed], Facts(result=result))

    def _how_it_was_joined(self, subagent: Subagent) -> str:
        result = self._outside.records.result(subagent)
        joined = result.integration if result else None
        return str(joined.get("reason", "")) if joined else ""

    def _reason_of_failure(self, subagent: Subagent) -> str:
        """Why one that failed and was left open is closed: its failing said so."""
        seq = subagent.standing.settled_seq
        (failed,) = self._outside.records.events(subagent.task, after=seq - 1, limit=1)
        return str(failed.event.payload.get("close_reason", "execution_failed"))

    def _result(self, subagent: Subagent, status: Status, error: str) -> Result:
        known = self._outside.records.result(subagent)
        if known is None:
            try:
                self._outside.workspaces.prepare(subagent, 1, subagent.contract.words)
            except LaunchFailed as fault:  # its folder is for whoever looks for what it left
                why = f"{subagent.id} cannot be ended yet: {fault.message}"
                raise StorageFailed(why) from fault
            known = judged(Evidence(ending=Ending(kind=EndKind.STOPPED)), subagent, self._outside)
        return replace(known, status=status, error=error)

    def _record(self, subagent: Subagent, new: list[Event], result: Result | None = None) -> None:
        if result is not None:
            self._outside.workspaces.publish(subagent, result)
        self._outside.journal.record(subagent.task, new, Facts(result=result))
