"""Answers to gates that people write into a task's notes."""

from __future__ import annotations

from collections.abc import Callable

from retinue.core.errors import RetinueError
from retinue.core.human_notes import parse_answers
from retinue.core.ids import TaskId
from retinue.ports import Records
from retinue.steward.spawning import SpawnService

BY = "user"


class NoteAnswers:
    """Reads the notes of tasks with open gates and continues answered subagents."""

    def __init__(
        self,
        records: Records,
        spawning: SpawnService,
        read: Callable[[TaskId], str],
        complain: Callable[[str], None],
    ) -> None:
        self._records = records
        self._spawning = spawning
        self._read = read
        self._complain = complain

    def look(self, task: TaskId) -> bool:
        """Continue the subagents whose gates are answered; return whether to go on watching."""
        waiting = [gate for gate in self._records.list_gates(task) if gate.state == "open"]
        if not waiting:
            return False
        answers = parse_answers(self._read(task))
        for gate in waiting:
            if gate.id not in answers:
                continue
            known = self._records.get_subagent(task, gate.subagent)
            try:
                self._spawning.answer(known, answers[gate.id], by=BY)
            except RetinueError as error:
                # Usually no slot is free. The next change of the notes or the task tries again.
                self._complain(f"{task}: the answer to {gate.id} waits: {error.message}")
        return True
