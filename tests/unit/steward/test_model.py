"""Any order of spawning, ending, asking and crashing keeps the invariants.

A seeded machine drives a real Service, Supervisor and database over a fake machine. Raise
RETINUE_FAULT_ROUNDS for more examples with fresh seeds.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from retinue.core import events
from retinue.core.errors import BadInput, LimitExceeded, Refused, RetinueError, WaitTimedOut
from retinue.core.lifecycle import Standing, State, fold
from retinue.core.result import Declared, Ending, EndKind, FinalDeclaration, Status
from retinue.core.subagent import Subagent
from retinue.store.database import Database
from retinue.store.replay import OldDatabase, TaskReplay
from support.fakes import FakeProcess, exited
from support.stage import POINTS, Crash, Stage, brief

ROUNDS = int(os.environ.get("RETINUE_FAULT_ROUNDS", "0"))
# A simulated crash never loses power, so a memory file system is enough.
QUICK = Path("/dev/shm")
LETTERS = {
    events.SUBAGENT_CREATED: "c",
    events.SUBAGENT_STARTED: "s",
    events.SUBAGENT_ATTEMPT: "a",
    events.SUBAGENT_WAITING: "w",
    events.OUTPUT_ACCEPTED: "i",
    events.SUBAGENT_FAILED: "f",
    events.SUBAGENT_CLOSED: "z",
}
CLOSED = re.compile("csa*(wi*|f)z")
OPEN = re.compile("c(s(a*(wi*|f)?)?)?")
STOPPED = Ending(kind=EndKind.STOPPED, signals_sent=("SIGINT",), duration_ms=5)
DEADLINE = Ending(kind=EndKind.DEADLINE, signals_sent=("SIGINT", "SIGTERM"), duration_ms=9)

which = st.integers(min_value=0, max_value=7)
answers = st.sampled_from([None, None, "forty-two"])
someone_exists = precondition(lambda self: self.stage.subagents())
someone_runs = precondition(lambda self: self.running(0))


class World(RuleBasedStateMachine):
    """Spawns, ends, questions and crashes, in any order."""

    @initialize(limit=st.sampled_from([1, 2, 2, 3]), queueing=st.booleans())
    def root(self, limit: int, queueing: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="model-", dir=QUICK if QUICK.is_dir() else None))
        self.limit = limit
        self.stage = Stage(self.folder / "retinue.db", limit=limit)
        self.asked: list[asyncio.Task[Any]] = []  # verbs that are under way
        self.queueing = queueing  # if not, no subagent queues and the limit is exact
        self.answered: set[tuple[str, int]] = set()  # attempts that left a final answer
        self.given: Counter[tuple[str, int]] = Counter()  # deliveries, by subagent and seq

    # The parent

    @rule(
        count=st.integers(min_value=1, max_value=2),
        queue=st.booleans(),
        retries=st.integers(min_value=0, max_value=2),
        again=st.booleans(),
        closing=st.sampled_from([True, True, False]),
        wait=st.booleans(),
    )
    def spawn(
        self, count: int, queue: bool, retries: int, again: bool, closing: bool, wait: bool
    ) -> None:
        briefs = [
            brief(retries=retries, retry_on_timeout=again, close_on_completion=closing)
            for _ in range(count)
        ]
        queue = queue and self.queueing
        request = self.stage.request(*briefs, queue=queue)
        held = sum(each.standing.holds_slot for each in self.stage.subagents())
        before, existing = self.durable(), len(self.stage.subagents())
        verb = self.stage.attended if wait else self.stage.spawned
        asked = self.ask(verb(request))
        if asked is None:
            return
        fits = queue or held + count <= self.limit
        if fits:
            assert len(self.stage.subagents()) == existing + count
        else:
            assert isinstance(asked.exception(), LimitExceeded | BadInput)
            assert self.durable() == before

    @someone_exists
    @rule(index=which, kill=st.sampled_from([False, False, True]))
    def cancel(self, index: int, kill: bool) -> None:
        subagent = self.pick(index)
        before = self.durable()
        over = subagent.standing.state not in (State.CREATED, State.RUNNING)
        process = self.stage.machine.living(subagent.id)
        verb = self.stage.service.subagents.cancel
        asked = self.ask(verb(self.stage.task, subagent.id, by="user", reason="enough", kill=kill))
        if asked is None:
            return
        if over:
            assert isinstance(asked.exception(), Refused)
            assert self.durable() == before
        if process is not None:
            assert not process.alive or (process.stop_asked and not kill)

    @someone_exists
    @rule(index=which, slow=st.booleans())
    def continue_(self, index: int, slow: bool) -> None:
        """Blocked ones first; with slow launches, the world has time to act in between."""
        waiting = [each for each in self.stage.subagents() if each.standing.blocked]
        subagent = waiting[index % len(waiting)] if waiting else self.pick(index)
        self.stage.machine.slow_launches |= slow
        before = self.durable()
        verb = self.stage.service.spawning.continue_
        asked = self.ask(verb(self.stage.task, subagent.id, "the answer is 7", by="user"))
        if asked is not None and asked.done() and asked.exception():
            assert isinstance(asked.exception(), Refused | LimitExceeded)
            assert self.durable() == before

    @someone_exists
    @rule(index=which)
    def close_twice(self, index: int) -> None:
        subagent = self.pick(index)
        before = self.durable()
        asked = self.ask(self.close(subagent.id))
        if asked is None:
            return
        if asked.exception() is None:
            before = self.durable()
            asked = self.ask(self.close(subagent.id))
            assert asked is not None and asked.exception() is None
        else:
            assert subagent.standing.holds_slot or self.stage.machine.disk_full
        assert self.durable() == before

    @precondition(lambda self: self.asked)
    @rule()
    def caller_goes_away(self) -> None:
        self.asked.pop().cancel()
        self.breathe()

    @someone_exists
    @rule(consumer=st.sampled_from(["default", "other"]), peek=st.booleans())
    def wait_any(self, consumer: str, peek: bool) -> None:
        asked = self.ask(
            self.stage.service.delivery.wait_any(
                self.stage.task, timeout=0, consumer=consumer, peek=peek
            )
        )
        assert asked is not None
        if asked.exception() is None:
            settled = asked.result()
            assert settled.standing.settled
            if not peek and consumer == "default":
                self.given[settled.id, settled.standing.settled_seq] += 1
        else:
            assert isinstance(asked.exception(), WaitTimedOut)

    # The children

    @someone_runs
    @rule(index=which, code=st.sampled_from([0, 0, 1]), answer=answers)
    def child_exits(self, index: int, code: int, answer: str | None) -> None:
        if process := self.running(index):
            self.leave(process, answer)
            self.end(process, exited(code))

    @someone_runs
    @rule(index=which)
    def child_blocks(self, index: int) -> None:
        if process := self.running(index):
            asks = FinalDeclaration(status=Declared.BLOCKED, questions=("Which one?",))
            self.stage.machine.leave(process.order.subagent, declaration=asks)
            self.end(process, exited(0))

    @someone_runs
    @rule(index=which, answer=answers)
    def child_times_out(self, index: int, answer: str | None) -> None:
        if process := self.running(index):
            self.leave(process, answer)
            self.end(process, DEADLINE)

    @someone_runs
    @rule(index=which, answer=answers)
    def child_gives_in(self, index: int, answer: str | None) -> None:
        process = self.running(index)
        if process is not None and process.stop_asked:
            self.leave(process, answer)
            self.end(process, STOPPED)

    @someone_runs
    @rule(index=which)
    def child_is_lost(self, index: int) -> None:
        if process := self.running(index):
            self.end(process, Ending(kind=EndKind.LOST, error="killed from outside"), record=False)

    @someone_runs
    @rule()
    def children_freeze(self) -> None:
        """Let running children miss their own deadlines; the kill timer ends them."""
        frozen = [each for each in self.stage.machine.processes if each.alive and each.released]
        self.breathe(advance=400.0)
        assert not [each for each in frozen if each.alive]

    # The machine

    @rule(point=st.sampled_from(POINTS), passes=st.integers(min_value=1, max_value=3))
    def arm(self, point: str, passes: int) -> None:
        self.stage.armed[point] = passes

    @rule(gates_linger=st.booleans())
    def crash(self, gates_linger: bool) -> None:
        self.asked.clear()
        self.stage.crash(gates_linger=gates_linger)

    @rule(slow=st.booleans())
    def launches_are_slow(self, slow: bool) -> None:
        self.stage.machine.slow_launches = slow
        if not slow:
            self.stage.machine.proceed()
        self.breathe()

    @rule(launches=st.sampled_from(["", "", "no more processes"]), full=st.booleans())
    def trouble(self, launches: str, full: bool) -> None:
        self.stage.machine.refusing_launches = launches
        self.stage.machine.disk_full = full
        self.breathe(advance=6.0)

    # What must hold

    @invariant()
    def everything_holds(self) -> None:
        self.events_spell_the_lifecycle()
        self.rows_are_what_events_say()
        self.the_limit_holds()
        self.results_tell_the_truth()
        self.nothing_is_closed_while_a_process_of_it_lives()
        self.every_settling_is_given_once()

    def events_spell_the_lifecycle(self) -> None:
        for subagent in self.stage.subagents():
            spelled = "".join(
                LETTERS.get(each.event.type, "") for each in self.stage.events(subagent.id)
            )
            shape = CLOSED if subagent.standing.state is State.CLOSED else OPEN
            assert shape.fullmatch(spelled), f"{subagent.id} spells {spelled}"

    def rows_are_what_events_say(self) -> None:
        stories: dict[str, Standing] = {}
        for number, recorded in enumerate(self.stage.events(), start=1):
            assert recorded.seq == number
            if name := recorded.event.subagent:
                stories[name] = fold(stories.get(name, Standing()), recorded.event, recorded.seq)
        assert stories == {each.id: each.standing for each in self.stage.subagents()}

    def the_limit_holds(self) -> None:
        living = [each for each in self.stage.machine.processes if each.alive]
        assert len(living) <= self.limit
        assert len({each.order.subagent for each in living}) == len(living)
        if not self.queueing:
            held = [each.id for each in self.stage.subagents() if each.standing.holds_slot]
            assert len(held) <= self.limit, held

    def results_tell_the_truth(self) -> None:
        for subagent in self.stage.subagents():
            result = self.stage.records.get_result(subagent)
            if subagent.standing.settled:
                assert result is not None
            if result is None:
                continue
            assert result.workspace
            assert result.success == (
                result.status in (Status.COMPLETED, Status.COMPLETED_BUT_TIMEOUT)
            )
            if subagent.standing.state is State.CLOSED:
                assert result.success == (subagent.standing.final_status == "completed")
            attempt = subagent.standing.attempt
            if (subagent.id, attempt) in self.answered and subagent.standing.settled:
                assert result.status is not Status.TIMEOUT
                assert result.answer is not None

    def nothing_is_closed_while_a_process_of_it_lives(self) -> None:
        for process in self.stage.machine.processes:
            if process.alive:
                standing = self.stage.subagent(process.order.subagent).standing
                assert standing.state in (State.CREATED, State.RUNNING)
                assert not standing.blocked or not process.released

    def every_settling_is_given_once(self) -> None:
        assert all(times == 1 for times in self.given.values())

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        try:
            self.bring_to_an_end()
        finally:
            self.stage.close()
            shutil.rmtree(self.folder)

    def bring_to_an_end(self) -> None:
        """After one last crash, every subagent reaches its one `closed`."""
        stage = self.stage
        stage.machine.refusing_launches, stage.machine.disk_full = "", False
        self.crash(gates_linger=True)
        for _ in range(200):
            living = [each for each in stage.machine.processes if each.alive and each.released]
            if not living:
                break
            stage.machine.end(living[0].order.subagent, exited(0))
            self.breathe(advance=6.0)
        stage.do(self.close_task())
        for subagent in stage.subagents():
            closed = [each for each in stage.types(subagent.id) if each == "subagent_closed"]
            assert closed == ["subagent_closed"]
        assert stage.records.get_task(stage.task).state == "closed"
        gates = stage.records.list_gates(stage.task)
        assert not [gate for gate in gates if gate.state == "open"]
        before = self.durable()
        self.crash(gates_linger=False)
        assert self.durable() == before
        self.the_log_alone_gives_the_same_rows()

    def the_log_alone_gives_the_same_rows(self) -> None:
        stage = self.stage
        copy = Database(self.folder / "replayed.db")
        try:
            replay = TaskReplay(copy, OldDatabase(None), self.folder / "no-folder")
            with copy.transaction(durable=False):
                assert replay.replay_events(stage.events()) == []
            assert replay.problems == []
            for query in ("newest_subagents", "gates"):
                rows = [
                    [tuple(row) for row in each.fetch_rows(query, task_id=stage.task, limit=-1)]
                    for each in (stage.database, copy)
                ]
                assert rows[0] == rows[1], query
            for subagent in stage.subagents():
                whose = {"task_id": stage.task, "sub_agent_id": subagent.id}
                for query in ("attempts", "result"):
                    ours, theirs = (
                        [tuple(row) for row in each.fetch_rows(query, **whose)]
                        for each in (stage.database, copy)
                    )
                    assert ours == theirs, (subagent.id, query)
        finally:
            copy.close()

    async def close(self, name: str) -> None:
        await self.stage.service.subagents.close(self.stage.task, name, by="user")

    async def close_task(self) -> None:
        await self.stage.service.tasks.close(self.stage.task, by="user")

    # Between the rules and the stage

    def ask(self, verb: Any) -> asyncio.Task[Any] | None:
        """Return the verb's task, under way or done; None if the supervisor crashed in it."""
        try:
            asked = self.stage.begin(verb)
        except Crash:
            self.asked.clear()
            return None
        if not asked.done():
            self.asked.append(asked)
        elif not asked.cancelled() and asked.exception() is not None:
            assert isinstance(asked.exception(), RetinueError), asked.exception()
        return asked

    def breathe(self, advance: float = 0.0) -> None:
        try:
            self.stage.advance(advance)
        except Crash:
            self.asked.clear()
        for asked in self.asked:
            if asked.done() and not asked.cancelled() and asked.exception() is not None:
                assert isinstance(asked.exception(), RetinueError), asked.exception()
        self.asked = [asked for asked in self.asked if not asked.done()]

    def end(self, process: FakeProcess, ending: Ending, *, record: bool = True) -> None:
        self.stage.machine.end(process.order.subagent, ending, record=record)
        self.breathe()

    def leave(self, process: FakeProcess, answer: str | None) -> None:
        if answer is not None:
            self.stage.machine.leave(process.order.subagent, final_answer=answer)
            self.answered.add((process.order.subagent, process.order.attempt))

    def pick(self, index: int) -> Subagent:
        known = self.stage.subagents()
        return known[index % len(known)]

    def running(self, index: int) -> FakeProcess | None:
        living = [each for each in self.stage.machine.processes if each.alive and each.released]
        return living[index % len(living)] if living else None

    def durable(self) -> tuple[Any, ...]:
        """Return everything that a refused operation must leave as it was."""
        stage = self.stage
        rows = stage.subagents()
        return (
            len(stage.events()),
            tuple(each.standing for each in rows),
            tuple(stage.records.list_gates(stage.task)),
            tuple(stage.records.get_result(each) for each in rows),
            len(stage.machine.processes),
        )


World.TestCase.settings = settings(
    max_examples=ROUNDS or 100,
    stateful_step_count=30,
    deadline=None,
    derandomize=not ROUNDS,
    suppress_health_check=list(HealthCheck),
)
TestModel = pytest.mark.requirement("R79", "R132")(World.TestCase)
