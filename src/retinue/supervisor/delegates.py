"""Subagents of subagents: they come to their end with whoever delegated to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

from retinue.domain.errors import Refused
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.subagent import Subagent
from retinue.ports import Records

Cancel = Callable[[Subagent], Coroutine[None, None, None]]


class Delegates:
    """Those of a parent that is over are cancelled, side by side, while others go on."""

    def __init__(self, records: Records, cancel: Cancel) -> None:
        self._records = records
        self._cancel = cancel
        self._endings: set[asyncio.Task[None]] = set()

    def end_those_of(self, task: TaskId, parent: SubagentId) -> None:
        for each in self._open(task):
            if each.contract.delegated_by == parent:
                self._end(each)

    def end_orphans(self, task: TaskId) -> None:
        """Also those whose parent was over when an earlier supervisor had not got to them.

        Whoever was continued stays: that may have been by somebody else, since.
        """
        for each in self._open(task):
            above = each.contract.delegated_by
            if above and not each.contract.continues:
                parent = self._records.subagent(task, above).standing
                if parent.ended or parent.blocked:
                    self._end(each)

    def _open(self, task: TaskId) -> list[Subagent]:
        return [each for each in self._records.unclosed(task) if not each.standing.ended]

    def _end(self, subagent: Subagent) -> None:
        ending = asyncio.get_running_loop().create_task(self._ended(subagent))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _ended(self, subagent: Subagent) -> None:
        with suppress(Refused):
            await self._cancel(subagent)
