"""Joining: inspect a subagent's output, verify it, ask for approval, join it, record the end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

from retinue.core import events
from retinue.core.errors import LaunchFailed, Refused, RetinueError, StorageFailed
from retinue.core.events import Event
from retinue.core.ids import TaskId
from retinue.core.join_result import (
    CHECK,
    NOT_CHOSEN,
    POLICY,
    REFUSED,
    REJECTED,
    Change,
    JoinFailed,
    JoinOutcome,
    MergedTree,
    split_paths,
)
from retinue.core.lifecycle import State
from retinue.core.plan_review import CheckedOutput
from retinue.core.result import Ending, EndKind, Result, Status
from retinue.core.safe_text import clean_text, shorten
from retinue.core.subagent import Subagent
from retinue.ports import EventFacts, LaunchOrder, Runtime
from retinue.steward import event_factory
from retinue.steward.attempt import KillTimer, complete_workspace
from retinue.steward.journal import Journal, retry_while_storage_fails
from retinue.store.reads import Records
from retinue.workspaces.git.git_join import GitChecking, GitJoining

TRIES = 10  # merges onto a branch that another process keeps moving
SHOWN_FILES = 20


class _ReviewPending(Exception):
    """The output waits for a person to approve it."""


class Joiner:
    """Joins outputs of subagents, one at a time in each task.

    Every step can be repeated: an interrupted join starts again from its first step.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        records: Records,
        runtime: Runtime,
        joining: GitJoining,
        checking: GitChecking,
        failpoint: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._records = records
        self._runtime = runtime
        self._joining = joining
        self._checking = checking
        self._failpoint = failpoint
        self._complain = complain
        self._locks: dict[TaskId, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def join(self, subagent: Subagent, checked: CheckedOutput | None = None) -> None:
        """Join the output and complete or fail the subagent; close it if its contract says so.

        Do nothing unless it is `waiting_for_merge`. If its contract asks for approval, the first
        call opens the gate, and the call after the approval joins.

        Args:
            checked: what `check` recorded: nothing else is joined, and the same merged tree is not
                verified again.
        """
        async with self._hold_waiting(subagent) as waiting:
            if waiting is None:
                return
            try:
                outcome = await self._join_output(waiting, checked)
            except _ReviewPending:
                return
            except RetinueError as error:
                await self._fail(waiting, _as_failure(error))
            else:
                await self._complete(waiting, outcome)

    async def check(self, subagent: Subagent) -> CheckedOutput | None:
        """Record, and return, output that can be merged and passes its checks; merge nothing.

        Output that cannot be merged fails the subagent, and output without a change completes it,
        as in `join`.
        """
        async with self._hold_waiting(subagent) as waiting:
            if waiting is None:
                return None
            try:
                await self._end_interrupted_check(waiting)
                change = await self._joining.take_in(waiting, self._list_continued(waiting))
                await self._inspect(waiting, change)
                merged = await self._joining.merge(waiting, change)
                if waiting.contract.outputs.verify:
                    await self._verify(waiting, merged)
            except RetinueError as error:
                await self._fail(waiting, _as_failure(error))
                return None
            if not change.files:
                await self._complete(waiting, _make_unchanged(change))
                return None
            patch = str(self._joining.find_patch(waiting))
            checked = CheckedOutput(
                commit=change.commit, content=change.tree, tree=merged.tree, patch=patch
            )
            event = Event(
                type=events.OUTPUT_CHECKED,
                subagent=waiting.id,
                summary=shorten(f"{waiting.id}: output can be merged and passed its checks"),
                payload=asdict(checked),
            )
            self._journal.record(waiting.task, [event])
            return checked

    async def is_merged(self, subagent: Subagent) -> bool:
        """Return whether the branch of the subagent's task has its output."""
        return await self._joining.find_merged(subagent) is not None

    async def decline(self, subagent: Subagent, objection: str) -> None:
        """Fail the subagent because a reviewer does not approve its output, which is kept."""
        async with self._hold_waiting(subagent) as waiting:
            if waiting is not None:
                await self._fail(waiting, JoinFailed(objection, reason=REJECTED))

    async def set_aside(self, subagent: Subagent, chosen: str) -> None:
        """Complete a candidate that was not chosen; its output is kept and not joined."""
        async with self._hold_waiting(subagent) as waiting:
            if waiting is not None:
                failure = JoinFailed(f"{chosen} was chosen", reason=NOT_CHOSEN)
                kept = await self._joining.keep(waiting, failure)
                details = {"chosen": chosen, **kept}
                await self._complete(waiting, JoinOutcome(reason=NOT_CHOSEN, details=details))

    async def approve(self, subagent: Subagent, *, by: str, answer: str) -> None:
        """Record the approval of output in review; the run then joins it.

        Raises:
            Refused: it is no longer in review.
        """
        async with self._locks[subagent.task]:
            subagent = self._require_in_review(subagent)
            event = event_factory.make_answered(subagent, by, answer)
            self._journal.record(subagent.task, [event], EventFacts(answer=answer))

    async def reject(self, subagent: Subagent, *, by: str, reason: str) -> None:
        """Fail the subagent because a person rejected its output, which is kept.

        Raises:
            Refused: it is no longer in review.
        """
        async with self._locks[subagent.task]:
            subagent = self._require_in_review(subagent)
            why = f"rejected by {by}" + (f": {reason}" if reason else "")
            await self._fail(subagent, JoinFailed(why, reason=REJECTED), by)

    def _require_in_review(self, subagent: Subagent) -> Subagent:
        # Read again under the lock: another call may have answered it.
        subagent = self._records.get_subagent(subagent.task, subagent.id)
        if not subagent.standing.in_review:
            status = subagent.standing.status
            raise Refused(f"{subagent.id} is {status}, not in review", code="gate_closed")
        return subagent

    async def give_up(self, subagent: Subagent, fault: BaseException) -> None:
        """Fail the subagent after an unexpected error, which another try might meet again.

        If the error came after its merge, complete it.
        """
        async with self._hold_waiting(subagent) as waiting:
            if waiting is None:
                return
            subagent = waiting
            message = f"joining {subagent.id} failed: {type(fault).__name__}: {fault}"
            failure = JoinFailed(message, reason=REFUSED)
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
    async def _hold_waiting(self, subagent: Subagent) -> AsyncIterator[Subagent | None]:
        """Hold the task's join lock; yield the subagent if its output still waits, else None."""
        async with self._locks[subagent.task]:
            # Read again under the lock: another call may have joined or closed it.
            subagent = self._records.get_subagent(subagent.task, subagent.id)
            yield subagent if subagent.standing.state is State.WAITING_FOR_MERGE else None

    @asynccontextmanager
    async def suspend_joins(self, task: TaskId, name: str | None = None) -> AsyncIterator[None]:
        """Hold the task's join lock, so that subagents can be closed without being joined.

        First make the workspaces of waiting subagents (or of the named one) complete, because
        their output will stay there.
        """
        async with self._locks[task]:
            for subagent in self._records.list_unclosed(task):
                waits = subagent.standing.state is State.WAITING_FOR_MERGE
                if waits and name in (None, subagent.id):
                    await complete_workspace(self._joining, subagent, self._complain)
            yield

    async def _join_output(self, subagent: Subagent, checked: CheckedOutput | None) -> JoinOutcome:
        await self._end_interrupted_check(subagent)
        outputs = subagent.contract.outputs
        if outputs.integration == "merge":
            return await self._merge(subagent, checked)
        if outputs.verify:
            await self._verify(subagent, None)
        if outputs.approve:
            verb = "Copy" if outputs.integration == "copy" else "Accept"
            await self._require_approval(subagent, f"{verb} the output of {subagent.id}?")
        if outputs.integration == "copy":
            return await self._joining.copy(subagent)
        return JoinOutcome(reason="accepted")

    async def _merge(self, subagent: Subagent, checked: CheckedOutput | None) -> JoinOutcome:
        change: Change | None = None
        for _ in range(TRIES):
            # Look each time: an earlier steward may have moved the branch before it was killed.
            # The commit's trailers tell, which makes the merge idempotent.
            before = await self._joining.find_merged(subagent)
            if before is not None:
                return before
            if change is None:
                change = await self._joining.take_in(subagent, self._list_continued(subagent))
                if checked and change.tree != checked.content:
                    raise JoinFailed("its output changed after it was judged", reason=REFUSED)
                await self._inspect(subagent, change)
            outcome = await self._merge_once(subagent, change, checked.tree if checked else "")
            if outcome is not None:
                return outcome
        raise JoinFailed("another process keeps moving its branch", reason=REFUSED)

    async def _merge_once(
        self, subagent: Subagent, change: Change, verified: str
    ) -> JoinOutcome | None:
        # Verify the merged tree before the branch moves: a failed check leaves it untouched.
        merged = await self._joining.merge(subagent, change)
        if subagent.contract.outputs.verify and merged.tree != verified:
            await self._verify(subagent, merged)
        if not change.files:
            return _make_unchanged(change)
        if subagent.contract.outputs.approve:
            await self._require_approval(subagent, _ask_to_merge(subagent, change))
        commit = await self._joining.commit(subagent, merged)
        self._failpoint("merge_commit_made")
        # Compare-and-swap of the branch; None if it was moved since the merge.
        outcome = await self._joining.move(subagent, merged, commit)
        self._failpoint("ref_moved")
        if outcome is None:
            return None
        return replace(outcome, details={**outcome.details, "files": change.files})

    async def _inspect(self, subagent: Subagent, change: Change) -> None:
        """Run the `inspect` command on the changed files.

        Raises:
            JoinFailed: the command refused them.
        """
        inspect = subagent.contract.outputs.inspect
        undecodable = tuple(clean_text(path) for path in change.brought if clean_text(path) != path)
        if inspect and undecodable:
            message = "inspect cannot be given a name that is not Unicode text"
            raise JoinFailed(message, reason=POLICY, files=undecodable[:SHOWN_FILES])
        for paths in split_paths(change.brought) if inspect else ():
            tree = MergedTree(tip="", tree=change.tree, has_branch=False)
            order = await self._checking.check_out(subagent, tree)
            # Security: with "./" in front, no file name of a child is taken for an option.
            argv = (*inspect, *(f"./{path}" for path in paths))
            if failure_text := await self._check(replace(order, argv=argv)):
                shown = tuple(paths[:SHOWN_FILES])
                message = f"inspect refused what it changed ({', '.join(shown)}): {failure_text}"
                raise JoinFailed(message, reason=POLICY, files=shown)

    async def _verify(self, subagent: Subagent, merged: MergedTree | None) -> None:
        """Run the `verify` command in the joined tree.

        Raises:
            JoinFailed: the command failed.
        """
        order = await self._checking.check_out(subagent, merged)
        verify = subagent.contract.outputs.verify
        if failure_text := await self._check(replace(order, argv=verify)):
            output = self._checking.read_error_output(order)
            raise JoinFailed(f"verify failed: {failure_text}", reason=CHECK, output=output)

    async def _require_approval(self, subagent: Subagent, question: str) -> None:
        """Pass if a person approved this very question; open a gate for it at the first time.

        Raises:
            JoinFailed: the output is not the one that was approved.
        """
        gates = self._records.list_gates(subagent.task)
        gate = next((each for each in gates if each.id == subagent.gate), None)
        if gate is None:
            event = event_factory.make_review(subagent, question)

            async def write(_: int) -> None:
                self._journal.record(subagent.task, [event], EventFacts(questions=(question,)))

            await retry_while_storage_fails(write, self._complain, subagent.id)
        if gate is None or gate.state == "open":
            raise _ReviewPending
        # The question of a merge names the tree, so changed files are never merged unseen.
        if gate.questions != (question,):
            raise JoinFailed("its output changed after it was approved", reason=REFUSED)

    async def _check(self, order: LaunchOrder) -> str:
        """Run a check command; return how it failed, or an empty string if it passed."""
        try:
            ending = await self._run(order)
        except (LaunchFailed, StorageFailed) as error:
            ending = Ending(kind=EndKind.LAUNCH_FAILED, error=error.message)
        await self._checking.discard(order)
        if ending.clean:
            return ""
        message = self._checking.read_message(order)
        return ending.describe() + (f"\n{message}" if message else "")

    async def _run(self, order: LaunchOrder) -> Ending:
        child = await self._runtime.launch(order)
        try:
            # Write down the process before it runs, so that the next steward can end it.
            self._checking.note(order, child.identity)
            await child.release()
        except (LaunchFailed, StorageFailed):
            child.kill()
            await child.wait_ended()
            raise
        # The child keeps its own deadline; the timer is for one that is frozen.
        kill_timer = KillTimer(child.kill)
        kill_timer.arm(order.timeout_ms + sum(order.graces_ms))
        try:
            return await child.wait_ended()
        finally:
            kill_timer.cancel()

    async def _end_interrupted_check(self, subagent: Subagent) -> None:
        """Kill a check that an earlier steward started, before it is started again."""
        left = self._checking.find_interrupted(subagent)
        child = self._runtime.adopt(*left) if left else None
        if child is not None:
            child.kill()
            await child.wait_ended()

    async def _complete(self, subagent: Subagent, outcome: JoinOutcome) -> None:
        mode = subagent.contract.outputs.integration
        joined = {"mode": mode, "reason": outcome.reason, **outcome.details}
        result = replace(self._get_result(subagent), integration=joined)
        kind = {"merged": events.MERGED, "copied": events.COPIED}.get(
            outcome.reason, events.OUTPUT_ACCEPTED
        )
        summaries = {"no_changes": "nothing was changed", "accepted": "output accepted"}
        summaries[NOT_CHOSEN] = "another candidate was chosen"
        summary = summaries.get(outcome.reason, f"output {outcome.reason}")
        if "ignored" in outcome.details:
            summary += ", but for what git ignores"
        event = Event(
            type=kind,
            subagent=subagent.id,
            summary=shorten(f"{subagent.id}: {summary}"),
            payload={"status": result.status.value, "integration": mode, **outcome.details}
            | event_factory.mark_settled_again(subagent),
        )
        closed = event_factory.make_automatic_close(subagent, "completed", outcome.reason)
        await self._record(subagent, [event, *closed], result)

    async def _fail(self, subagent: Subagent, failure: JoinFailed, by: str = "steward") -> None:
        """Record the failure, even if the output cannot be kept for inspection."""
        try:
            kept = dict(await self._joining.keep(subagent, failure))
        except RetinueError as error:
            kept = {"not_kept": error.message}
        except Exception as fault:
            await self._record_failure(subagent, failure, {"not_kept": repr(fault)}, by)
            raise
        await self._record_failure(subagent, failure, kept, by)

    async def _record_failure(
        self, subagent: Subagent, failure: JoinFailed, kept: dict[str, object], by: str
    ) -> None:
        details: dict[str, object] = {
            "mode": subagent.contract.outputs.integration,
            "reason": failure.code,
            "conflicted_files": list(failure.files),
            "message": failure.message,
            **kept,
        }
        result = self._get_result(subagent)
        result = replace(
            result,
            status=Status.ERROR,
            error=failure.in_short,
            error_output=failure.output,
            integration=details,
        )
        event = event_factory.make_not_joined(subagent, failure, kept, by)
        closed = event_factory.make_automatic_close(subagent, "failed", failure.code)
        await self._record(subagent, [event, *closed], result)

    def _list_continued(self, subagent: Subagent) -> list[Subagent]:
        """Return the subagents that this one continues, newest first."""
        if not subagent.contract.continues:
            return []
        line = self._records.list_lineage(subagent)
        names = [each.id for each in line]
        return line[: names.index(subagent.id)][::-1]

    def _get_result(self, subagent: Subagent) -> Result:
        result = self._records.get_result(subagent)
        assert result is not None, "output that waits has its result"
        return result

    async def _record(self, subagent: Subagent, new: list[Event], result: Result) -> None:
        """Record events and result; retry while the disk fails, since a merge is final."""

        async def write(_: int) -> None:
            self._joining.publish(subagent, result)
            self._journal.record(subagent.task, new, EventFacts(result=result))

        await retry_while_storage_fails(write, self._complain, subagent.id)
        self._failpoint("join_recorded")


def _make_unchanged(change: Change) -> JoinOutcome:
    ignored = {"ignored": list(change.ignored)} if change.ignored else {}
    return JoinOutcome(reason="no_changes", details=ignored)


def _as_failure(error: RetinueError) -> JoinFailed:
    if isinstance(error, JoinFailed):
        return error
    return JoinFailed(error.message, reason=REFUSED)


def _ask_to_merge(subagent: Subagent, change: Change) -> str:
    files = f"{change.files} file{'s' if change.files > 1 else ''}"
    return (
        f"Merge the work of {subagent.id} ({files}, tree {change.tree[:12]})? "
        "Its artifacts/changes.patch shows it."
    )
