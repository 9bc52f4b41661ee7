"""Subagents: listed, looked at, cancelled, closed."""

from __future__ import annotations

from retinue.domain.errors import BadInput, NotFound, Refused
from retinue.domain.ids import TaskId
from retinue.domain.result import Result
from retinue.domain.subagent import Gate, Subagent
from retinue.ports import Records
from retinue.supervisor.supervisor import Supervisor


class SubagentVerbs:
    def __init__(self, records: Records, supervisor: Supervisor) -> None:
        self._records = records
        self._supervisor = supervisor

    def roll(self, task: TaskId, *, limit: int) -> list[Subagent]:
        """The newest subagents and every one that is still open, in step order."""
        known = self._records.task(task).id
        chosen = {subagent.id: subagent for subagent in self._records.newest(known, limit)}
        chosen |= {subagent.id: subagent for subagent in self._records.unclosed(known)}
        return sorted(chosen.values(), key=lambda subagent: subagent.step_idx)

    def get(self, task: TaskId, subagent: str) -> Subagent:
        return self._records.subagent(task, subagent)

    def result(self, task: TaskId, subagent: str) -> Result:
        """What the parent receives.

        Raises:
            NotFound: it has none yet.
        """
        known = self._records.subagent(task, subagent)
        result = self._records.result(known) if known.standing.settled else None
        if result is None:
            raise NotFound(
                f"{known.id} is {known.standing.status} and has no result yet",
                code="no_result_yet",
                hint="wait-any returns it as soon as it settles",
            )
        return result

    async def cancel(
        self, task: TaskId, subagent: str, *, by: str, reason: str, kill: bool = False
    ) -> Result:
        """What the cancelled subagent had earned.

        Raises:
            Refused: it had come to its end by itself.
        """
        known = self._records.subagent(task, subagent)
        await self._supervisor.cancel(known, by=by, reason=reason, kill=kill)
        return self.result(task, subagent)

    def send(self, task: TaskId, subagent: str, message: str, *, by: str) -> Subagent:
        """The message is on record, and lies where a running subagent finds it.

        Raises:
            Refused: it does not run, or is a command.
        """
        if not message.strip():
            raise BadInput("an empty message says nothing", code="invalid_request")
        known = self._records.subagent(task, subagent)
        if known.contract.team is None:
            raise Refused(
                f"{known.id} is a command, which nobody can tell anything while it runs",
                code="not_a_team",
                hint="cancel it, or continue it with the message once it has ended",
            )
        if known.standing.status != "running":
            raise Refused(
                f"{known.id} is {known.standing.status}",
                code="not_running",
                hint="'subagent continue' gives a settled one more to do",
            )
        self._supervisor.send(known, message, by=by)
        return known

    async def close(self, task: TaskId, subagent: str, *, by: str) -> Subagent:
        name = self._records.subagent(task, subagent).id
        async with self._supervisor.joiner.left_out(task, name):
            self._supervisor.closing.close(self._records.subagent(task, name), by=by)
        return self._records.subagent(task, name)

    def gates(self, task: TaskId) -> list[Gate]:
        return self._records.gates(self._records.task(task).id)
