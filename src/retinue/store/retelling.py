"""One task told again: its events become rows, with what its folders hold beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from retinue.domain import event as events
from retinue.domain.contract import Contract, Execution, Parent, Step
from retinue.domain.ending import EndKind
from retinue.domain.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.domain.event import Event, Recorded
from retinue.domain.ids import SubagentId
from retinue.domain.lifecycle import Standing, State
from retinue.domain.recovery import TokenUsage
from retinue.domain.result import Result, Status
from retinue.domain.subagent import Attempt, Subagent, Task
from retinue.files import read_plain
from retinue.ports import Facts
from retinue.store.appending import Appender
from retinue.store.database import Database
from retinue.store.records import SqliteRecords
from retinue.store.remains import Remains
from retinue.store.taskfile import TaskFile
from retinue.store.verify import Problem, problem
from retinue.wire.contract import contract_from_text, contract_sha256, contract_to_text
from retinue.wire.ending import parse_ending
from retinue.wire.result import result_from_text, result_to_text

JOINS = (events.MERGED, events.COPIED, events.MERGE_FAILED, events.OUTPUT_ACCEPTED)
SETTLING = (events.SUBAGENT_WAITING, events.SUBAGENT_FAILED, events.BLOCKED)
LARGEST_FILE = 64 * 1024 * 1024
LOST = "told from the log: its own record is lost"


class Retelling:
    """To be used once, within a transaction of the caller's. What is lost is among `problems`."""

    def __init__(self, database: Database, remains: Remains, folder: Path) -> None:
        self.problems: list[Problem] = []
        self._db = database
        self._records = SqliteRecords(database)
        self._appender = Appender(database, self._records)
        self._remains = remains
        self._folder = folder
        self._last_settling: dict[str, int] = {}
        self._attempts: dict[str, int] = {}

    def tell(self, story: Sequence[Recorded]) -> list[Recorded]:
        """The rows are what these events make of them; events that had to be added to them."""
        for recorded in story:
            name = recorded.event.subagent or ""
            self._attempts[name] = max(recorded.event.attempt, self._attempts.get(name, 0))
            if recorded.event.type in SETTLING or _is_join(recorded.event):
                self._last_settling[name] = recorded.seq
        task = self._task(story[0])
        self._appender.open_task(task)
        for recorded in story:
            if recorded.event.type == events.SUBAGENT_CREATED:
                self._enroll(recorded)
            known = self._records.task(task.id)
            self._appender.append(known, [recorded.event], self._facts(recorded), recorded.ts)
        self._carry_over(task, story[-1].seq)
        return self._add_starts(task)

    def _task(self, first: Recorded) -> Task:
        document: dict[str, object] = {}
        try:
            document = TaskFile(self._folder / "task.yaml").document()
        except (BadInput, IntegrityBroken, StorageFailed) as error:
            where = str(self._folder / "task.yaml")
            self.problems.append(problem("task_file", where, error.message))
        summary = first.event.summary.removeprefix("task created: ")
        title, description = document.get("title"), document.get("description")
        return Task(
            id=first.task,
            run=first.run,
            title=title if isinstance(title, str) else summary,
            description=description if isinstance(description, str) else "",
            state="open",
            outcome="running",
            created_at=first.ts,
            updated_at=first.ts,
        )

    def _enroll(self, created: Recorded) -> None:
        assert created.event.subagent is not None, "the story has been checked"
        assert created.step_idx is not None, "the story has been checked"
        contract, text = self._contract(created)
        subagent = Subagent(
            id=created.event.subagent,
            task=created.task,
            run=created.run,
            step_idx=created.step_idx,
            contract=contract,
            contract_text=text,
            contract_sha256=str(created.contract_sha256),
            standing=Standing(),
            created_at=created.ts,
        )
        self._appender.enroll(subagent)

    def _contract(self, created: Recorded) -> tuple[Contract, str]:
        name = str(created.event.subagent)
        path = self._folder / "agents" / name / "contract.json"
        known = {"task_id": created.task, "sub_agent_id": name}
        told = created.event.payload.get("context_json")  # of one that had to wait its turn
        kept = self._remains.text("subagent", "context_json", **known)
        for text in (_read(path), kept, told):
            if isinstance(text, str) and text and contract_sha256(text) == created.contract_sha256:
                return contract_from_text(text), text
        why = "is not the contract it was created with" if path.exists() else "is missing"
        message = f"{why}; unless it has ended, its next attempt fails for want of a command"
        self.problems.append(problem("contract_lost", str(path), message))
        empty = _empty_contract(created)
        return empty, contract_to_text(empty)

    def _facts(self, recorded: Recorded) -> Facts:
        event = recorded.event
        match event.type:
            case events.STARTED:
                return Facts(attempt=_attempt(event))
            case events.COMPLETED | events.FAILED | events.CANCELLED if event.payload.get("ended"):
                result = self._attempt_result(recorded)
                return Facts(ended_attempt=event.attempt, ended_result=result)
            case events.BLOCKED:
                return Facts(
                    ended_attempt=event.attempt,
                    ended_result=self._attempt_result(recorded),
                    result=self._result(recorded),
                )
            case events.SUBAGENT_WAITING | events.SUBAGENT_FAILED:
                return Facts(result=self._result(recorded))
            case _ if _is_join(event):
                return Facts(result=self._result(recorded))
            case events.GATE_BLOCKED:
                return Facts(questions=_texts(event.payload.get("questions")))
            case events.GATE_ANSWERED:
                return Facts(answer=str(event.payload.get("answer", "")))
        return Facts()

    def _attempt_result(self, recorded: Recorded) -> Result:
        """What one attempt gave; of an only one, that is the subagent's result."""
        event = recorded.event
        whose = {"task_id": recorded.task, "sub_agent_id": event.subagent}
        texts = [
            str(row["result_json"])
            for row in self._remains.rows("attempts", **whose)
            if row["number"] == event.attempt
        ]
        if self._attempts[str(event.subagent)] == 1:
            texts.append(_read(self._agent(recorded) / "result.json"))
        return _matching(texts, recorded) or self._told(recorded)

    def _result(self, recorded: Recorded) -> Result:
        """What the parent received; only the last of several is kept."""
        path = self._agent(recorded) / "result.json"
        whose = {"task_id": recorded.task, "sub_agent_id": recorded.event.subagent}
        texts = [_read(path), self._remains.text("result", "result_json", **whose)]
        found = _matching(texts, recorded)
        if found is None and self._last_settling[str(recorded.event.subagent)] == recorded.seq:
            self.problems.append(problem("result_lost", str(path), "it is told from the log"))
        return found or self._told(recorded)

    def _told(self, recorded: Recorded) -> Result:
        payload, agent = recorded.event.payload, self._agent(recorded)
        duration, status = payload.get("duration_ms"), payload.get("status")
        return Result(
            subagent_id=SubagentId(str(recorded.event.subagent)),
            status=Status(str(status)) if status in set(Status) else Status.ERROR,
            answer=None,
            workspace=str(agent / "workspace"),
            execution_time_seconds=duration / 1000 if isinstance(duration, int) else 0.0,
            token_usage=TokenUsage(),
            log_path=str(agent / "runtime"),
            error=str(payload.get("reason") or ""),
            warning=LOST,
        )

    def _agent(self, recorded: Recorded) -> Path:
        return self._folder / "agents" / str(recorded.event.subagent)

    def _add_starts(self, task: Task) -> list[Recorded]:
        """An attempt that has run is not run again because the event of its start was lost."""
        added: list[Recorded] = []
        for subagent in self._records.unclosed(task.id):
            standing = subagent.standing
            number = standing.attempt + 1
            runtime = self._folder / "agents" / subagent.id / "runtime"
            if standing.holds_slot and not standing.in_attempt and _has_run(runtime, number):
                known = self._records.task(task.id)
                new = _start(subagent, number)
                facts = Facts(attempt=_attempt(new[-1]))
                added += self._appender.append(known, new, facts, known.updated_at).recorded
        return added

    def _carry_over(self, task: Task, last_seq: int) -> None:
        """What no event tells: who was told of which end, which call made which subagents, and
        what passed to models.
        """
        for row in self._remains.rows("deliveries_of", task_id=task.id):
            if row["settled_seq"] <= last_seq:
                self._db.run("insert_delivery", **dict(row))
        for row in self._remains.rows("keys_of", task_id=task.id):
            self._db.run("insert_key", **dict(row))
        for row in self._remains.rows("bookings_of", task_id=task.id):
            if row["sub_agent_id"] in self._attempts:
                self._db.run("put_booking", **dict(row))


def _has_run(runtime: Path, attempt: int) -> bool:
    """Whether the folder tells that this attempt, of which no event tells, was executed."""
    if (runtime / "attempts" / str(attempt)).is_dir():
        return True  # set aside for the one after it
    record = _read(runtime / "exit.json").encode()
    if record and parse_ending(record).kind is not EndKind.LOST:
        return parse_ending(record, attempt).kind not in (EndKind.LOST, EndKind.NEVER_RAN)
    begun = attempt == 1 or (runtime / "attempts" / str(attempt - 1)).is_dir()
    return begun and (runtime / "stdout.log").is_file()


def _start(subagent: Subagent, attempt: int) -> list[Event]:
    """The start of an attempt whose process nobody knows any more."""
    summary = f"{subagent.id} attempt {attempt} was up, as its folder tells"
    up = Event(type=events.STARTED, subagent=subagent.id, attempt=attempt, summary=summary)
    if subagent.standing.state is not State.CREATED:
        return [up]
    begun = Event(
        type=events.SUBAGENT_STARTED,
        subagent=subagent.id,
        summary=f"{subagent.id} started",
        payload={"launched": True},
    )
    return [begun, up]


def _is_join(event: Event) -> bool:
    """Whether the event gave its subagent another result; plain acceptance does not."""
    return event.type in JOINS and "status" in event.payload


def _attempt(started: Event) -> Attempt:
    payload = started.payload

    def number(key: str) -> int:
        value = payload.get(key)
        return value if isinstance(value, int) else 0

    return Attempt(
        number=started.attempt,
        boot_id=str(payload.get("boot_id", "")),
        pid=number("pid"),
        start_ticks=number("start_ticks"),
        started_at="",
        started_monotonic_ms=number("started_monotonic_ms"),
    )


def _matching(texts: Sequence[str], recorded: Recorded) -> Result | None:
    """The first that is a result of this subagent, of the status that the event tells."""
    for text in filter(None, texts):
        try:
            result = result_from_text(text)
        except BadInput:
            continue
        same = result.subagent_id == recorded.event.subagent and result_to_text(result) == text
        if same and result.status.value == recorded.event.payload.get("status"):
            return result
    return None


def _empty_contract(created: Recorded) -> Contract:
    """A stand-in that can run nothing."""
    payload = created.event.payload
    timeout = payload.get("attempt_timeout_ms")
    return Contract(
        parent=Parent(
            run_id=created.run, step_idx=created.step_idx or 0, task_prompt="", goal_summary=""
        ),
        step=Step(title=str(payload.get("title", "")), description="its contract was lost"),
        execution=Execution(
            attempt_timeout_ms=timeout if isinstance(timeout, int) else 1000, max_retries=0
        ),
        agent=str(payload.get("agent", "command")),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list) else ()


def _read(path: Path) -> str:
    """A file's text; nothing when there is none, or when it is no plain file of a sound size."""
    try:
        sound = path.stat().st_size <= LARGEST_FILE
        return read_plain(path).decode() if sound else ""
    except (OSError, ValueError):
        return ""
