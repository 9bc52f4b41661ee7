"""Answers that people write into a task's notes: each takes its subagent on, once."""

from __future__ import annotations

from collections.abc import Callable

from retinue.domain.errors import RetinueError
from retinue.domain.ids import TaskId
from retinue.domain.notes import answered
from retinue.ports import Records
from retinue.service.spawning import Spawning

BY = "user"


class Notes:
    def __init__(
        self,
        records: Records,
        spawning: Spawning,
        read: Callable[[TaskId], str],
        complain: Callable[[str], None],
    ) -> None:
        self._records = records
        self._spawning = spawning
        self._read = read
        self._complain = complain

    def look(self, task: TaskId) -> bool:
        """Whoever was answered is in the next attempt; whether anybody still waits for an answer.

        One that cannot go on now, because no slot is free, is looked at again at the next change.
        """
        waiting = [gate for gate in self._records.gates(task) if gate.state == "open"]
        if not waiting:
            return False
        answers = answered(self._read(task))
        for gate in waiting:
            if gate.id not in answers:
                continue
            known = self._records.subagent(task, gate.subagent)
            try:
                self._spawning.answer(known, answers[gate.id], by=BY)
            except RetinueError as error:
                self._complain(f"{task}: the answer to {gate.id} waits: {error.message}")
        return True
