"""Joining: output is taken in, merged or copied, checked, and only then completed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from retinue.domain import event as events
from retinue.domain.ending import Ending, EndKind
from retinue.domain.errors import LaunchFailed, RetinueError, StorageFailed
from retinue.domain.event import Event, shorten
from retinue.domain.ids import TaskId
from retinue.domain.join import (
    CHECK,
    POLICY,
    REFUSED,
    Change,
    JoinFailed,
    JoinOutcome,
    Merged,
    portions,
)
from retinue.domain.lifecycle import State
from retinue.domain.result import Result, Status, clean_text
from retinue.domain.subagent import Subagent
from retinue.ports import Facts, LaunchOrder, Prepared
from retinue.supervisor import entries
from retinue.supervisor.backstop import Backstop
from retinue.supervisor.orders import order_for
from retinue.supervisor.outside import Outside

TRIES = 10  # of a branch that others keep moving
STORAGE_RETRY_SECONDS = 2.0
SHOWN_FILES = 20


class Joiner:
    """One join at a time in each task. What was recorded is what happened."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._joining = outside.joining
        self._checking = outside.checking
        self._turns: dict[TaskId, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def join(self, subagent: Subagent) -> None:
        """The subagent is completed or failed by its output's end, and closed if it closes itself.

        One that does not wait for it is left as it is.
        """
        async with self._turns[subagent.task]:
            subagent = self._outside.records.subagent(subagent.task, subagent.id)
            if subagent.standing.state is not State.WAITING_FOR_MERGE:
                return
            try:
                outcome = await self._outcome(subagent)
            except RetinueError as error:
                await self._fail(subagent, _as_failure(error))
            else:
                await self._complete(subagent, outcome)

    async def give_up(self, subagent: Subagent, fault: BaseException) -> None:
        """The subagent has failed by a fault that no join foresees, and another might meet again.

        One that was merged before the fault is completed.
        """
        async with self._turns[subagent.task]:
            subagent = self._outside.records.subagent(subagent.task, subagent.id)
            if subagent.standing.state is not State.WAITING_FOR_MERGE:
                return
            words = f"joining {subagent.id} failed: {type(fault).__name__}: {fault}"
            failure = JoinFailed(words, reason=REFUSED)
            merges = subagent.contract.outputs.integration == "merge"
            try:
                merged = await self._joining.find_merged(subagent) if merges else None
            except Exception:
                await self._fail(subagent, failure)
                raise
            if merged is None:
                await self._fail(subagent, failure)
            else:
                await self._complete(subagent, merged)

    @asynccontextmanager
    async def left_out(self, task: TaskId, name: str | None = None) -> AsyncIterator[None]:
        """Nothing of the task is joined meanwhile: whoever is closed now will never be.

        What waits for it, or the one that is named, can be looked at where it is, all of it.
        """
        async with self._turns[task]:
            for subagent in self._outside.records.unclosed(task):
                waits = subagent.standing.state is State.WAITING_FOR_MERGE
                if waits and name in (None, subagent.id):
                    await show_workspace(self._outside, subagent)
            yield

    async def _outcome(self, subagent: Subagent) -> JoinOutcome:
        await self._end_interrupted_check(subagent)
        outputs = subagent.contract.outputs
        if outputs.integration == "merge":
            return await self._merge(subagent)
        if outputs.verify:
            await self._verify(subagent, None)
        if outputs.integration == "copy":
            return await self._joining.copy(subagent)
        return JoinOutcome(reason="accepted")

    async def _merge(self, subagent: Subagent) -> JoinOutcome:
        change: Change | None = None
        for _ in range(TRIES):
            # Looked for each time: the branch may have been moved by what a dead steward began.
            before = await self._joining.find_merged(subagent)
            if before is not None:
                return before
            if change is None:
                change = await self._joining.take_in(subagent)
                await self._inspect(subagent, change)
            outcome = await self._merge_once(subagent, change)
            if outcome is not None:
                return outcome
        raise JoinFailed("its branch keeps being moved by someone else", reason=REFUSED)

    async def _merge_once(self, subagent: Subagent, change: Change) -> JoinOutcome | None:
        merged = await self._joining.merge(subagent, change)
        if subagent.contract.outputs.verify:
            await self._verify(subagent, merged)
        if not change.files:
            ignored = {"ignored": list(change.ignored)} if change.ignored else {}
            return JoinOutcome(reason="no_changes", details=ignored)
        commit = await self._joining.commit(subagent, merged)
        self._outside.failpoint("merge_commit_made")
        outcome = await self._joining.move(subagent, merged, commit)
        self._outside.failpoint("ref_moved")
        if outcome is None:
            return None
        return replace(outcome, details={**outcome.details, "files": change.files})

    async def _inspect(self, subagent: Subagent, change: Change) -> None:
        """Raises:
        JoinFailed: the command that looks at what was changed does not want it.
        """
        inspect = subagent.contract.outputs.inspect
        odd = tuple(clean_text(path) for path in change.brought if clean_text(path) != path)
        if inspect and odd:
            words = "inspect cannot be given a name that is not Unicode text"
            raise JoinFailed(words, reason=POLICY, files=odd[:SHOWN_FILES])
        for paths in portions(change.brought) if inspect else ():
            tree = Merged(tip="", tree=change.tree, known=False)
            prepared = await self._checking.check_out(subagent, tree)
            # No name that a child gave to a file can pass for an option.
            argv = (*inspect, *(f"./{path}" for path in paths))
            if wrong := await self._check(subagent, prepared, argv):
                shown = tuple(paths[:SHOWN_FILES])
                words = f"inspect refused what it changed ({', '.join(shown)}): {wrong}"
                raise JoinFailed(words, reason=POLICY, files=shown)

    async def _verify(self, subagent: Subagent, merged: Merged | None) -> None:
        """Raises:
        JoinFailed: the command that looks at the joined tree did not pass.
        """
        prepared = await self._checking.check_out(subagent, merged)
        verify = subagent.contract.outputs.verify
        if wrong := await self._check(subagent, prepared, verify):
            raise JoinFailed(f"verify failed: {wrong}", reason=CHECK)

    async def _check(self, subagent: Subagent, prepared: Prepared, argv: tuple[str, ...]) -> str:
        """What the command said when it did not pass; empty when it did."""
        try:
            ending = await self._run(order_for(subagent, prepared, argv), prepared)
        except (LaunchFailed, StorageFailed) as error:
            ending = Ending(kind=EndKind.LAUNCH_FAILED, error=error.message)
        await self._checking.discard(prepared)
        if ending.clean:
            return ""
        said = self._checking.said(prepared)
        return ending.describe() + (f"\n{said}" if said else "")

    async def _run(self, order: LaunchOrder, prepared: Prepared) -> Ending:
        child = await self._outside.runtime.launch(order)
        try:
            self._checking.note(prepared, child.identity)
            await child.release()
        except (LaunchFailed, StorageFailed):
            child.kill()
            await child.ended()
            raise
        backstop = Backstop(child.kill)
        backstop.within(order.timeout_ms + sum(order.graces_ms))
        try:
            return await child.ended()
        finally:
            backstop.take_away()

    async def _end_interrupted_check(self, subagent: Subagent) -> None:
        """A check whose supervisor is gone is over before it is begun again."""
        left = self._checking.interrupted(subagent)
        child = self._outside.runtime.adopt(*left) if left else None
        if child is not None:
            child.kill()
            await child.ended()

    async def _complete(self, subagent: Subagent, outcome: JoinOutcome) -> None:
        mode = subagent.contract.outputs.integration
        joined = {"mode": mode, "reason": outcome.reason, **outcome.details}
        result = replace(self._result(subagent), integration=joined)
        kind = {"merged": events.MERGED, "copied": events.COPIED}.get(
            outcome.reason, events.OUTPUT_ACCEPTED
        )
        said = {"no_changes": "nothing was changed", "accepted": "output accepted"}
        what = said.get(outcome.reason, f"output {outcome.reason}")
        if "ignored" in outcome.details:
            what += ", but for what git ignores"
        event = Event(
            type=kind,
            subagent=subagent.id,
            summary=shorten(f"{subagent.id}: {what}"),
            payload={"status": result.status.value, "integration": mode, **outcome.details},
        )
        closed = entries.closed_by_itself(subagent, "completed", outcome.reason)
        await self._record(subagent, [event, *closed], result)

    async def _fail(self, subagent: Subagent, failure: JoinFailed) -> None:
        """It has failed, also where what it left cannot be kept."""
        try:
            kept = dict(await self._joining.keep(subagent, failure))
        except RetinueError as error:
            kept = {"not_kept": error.message}
        except Exception as fault:
            await self._record_failure(subagent, failure, {"not_kept": repr(fault)})
            raise
        await self._record_failure(subagent, failure, kept)

    async def _record_failure(
        self, subagent: Subagent, failure: JoinFailed, kept: dict[str, object]
    ) -> None:
        about: dict[str, object] = {
            "mode": subagent.contract.outputs.integration,
            "reason": failure.code,
            "conflicted_files": list(failure.files),
            "message": failure.message,
            **kept,
        }
        said = failure.in_short
        result = self._result(subagent)
        result = replace(result, status=Status.ERROR, error=said, integration=about)
        event = entries.not_joined(subagent, failure, kept)
        closed = entries.closed_by_itself(subagent, "failed", failure.code)
        await self._record(subagent, [event, *closed], result)

    def _result(self, subagent: Subagent) -> Result:
        known = self._outside.records.result(subagent)
        assert known is not None, "output that waits has its result"
        return known

    async def _record(self, subagent: Subagent, new: list[Event], result: Result) -> None:
        """Recorded, however long the disk refuses: what has moved cannot be moved back."""
        while True:
            try:
                self._joining.publish(subagent, result)
                self._outside.journal.record(subagent.task, new, Facts(result=result))
                break
            except StorageFailed as error:
                self._outside.complain(f"{subagent.id}: {error.message}")
                await asyncio.sleep(STORAGE_RETRY_SECONDS)
        self._outside.failpoint("join_recorded")


async def show_workspace(outside: Outside, subagent: Subagent) -> None:
    """What is not going to be joined can be looked at where it is, all of it."""
    try:
        await outside.joining.make_whole(subagent)
    except RetinueError as error:
        told = f"its workspace shows only what it changed: {error.message}"
        outside.complain(f"{subagent.id}: {told}")


def _as_failure(error: RetinueError) -> JoinFailed:
    if isinstance(error, JoinFailed):
        return error
    return JoinFailed(error.message, reason=REFUSED)
