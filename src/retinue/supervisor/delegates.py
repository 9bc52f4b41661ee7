"""Subagents of subagents: they come to their end with whoever delegated to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

from retinue.domain.errors import Refused, StorageFailed
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.subagent import Subagent
from retinue.supervisor.closing import Closing
from retinue.supervisor.outside import Outside

RETRY_SECONDS = 2.0
BY, WHY = "parent", "its parent has come to its end"

Cancel = Callable[..., Coroutine[None, None, None]]


class Delegates:
    """Those of a parent that is over are cancelled, side by side, while others go on."""

    def __init__(self, outside: Outside, closing: Closing, cancel: Cancel) -> None:
        self._outside = outside
        self._closing = closing
        self._cancel = cancel
        self._endings: set[asyncio.Task[None]] = set()

    def end_those_of(self, task: TaskId, parent: SubagentId) -> None:
        self._end([each for each in self._open(task) if each.contract.delegated_by == parent])

    def end_orphans(self, task: TaskId) -> None:
        """Also those whose parent was over when an earlier supervisor had not got to them.

        Whoever was continued stays: that may have been by somebody else, since.
        """
        self._end([each for each in self._open(task) if self._is_orphan(each)])

    def detach(self) -> None:
        """Nobody is ended any more: whoever is left is an orphan of the next supervisor's."""
        for ending in self._endings:
            ending.cancel()

    def _is_orphan(self, subagent: Subagent) -> bool:
        above = subagent.contract.delegated_by
        if not above or subagent.contract.continues:
            return False
        parent = self._outside.records.subagent(subagent.task, above).standing
        return parent.ended or parent.blocked

    def _open(self, task: TaskId) -> list[Subagent]:
        self._outside.journal.settle()
        return [each for each in self._outside.records.unclosed(task) if not each.standing.ended]

    def _end(self, those: Sequence[Subagent]) -> None:
        """None of them is started any more, from now on."""
        with suppress(StorageFailed):  # which is met again by each, once it is stopped
            self._closing.request(those, BY, WHY)
        for each in those:
            ending = asyncio.get_running_loop().create_task(self._ended(each))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _ended(self, subagent: Subagent) -> None:
        """It is, however long the disk refuses that."""
        while True:
            try:
                with suppress(Refused):  # it came to its end by itself
                    await self._cancel(subagent, by=BY, reason=WHY)
                return
            except StorageFailed as error:
                self._outside.complain(f"{subagent.id}: not ended yet: {error.message}")
                await asyncio.sleep(RETRY_SECONDS)
