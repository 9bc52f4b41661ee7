"""Teams for tests: who says what at which point, and what their status.json must look like."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from support.roots import Root, Row
from support.scripted import Heard, Models, Said, Script, answer, vote

HANG = Said(wait=True)
INITIAL, ENFORCEMENT, PRESENTATION = "initial_answer", "enforcement", "presentation"

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
Label = Annotated[str, Field(pattern=r"^agent[1-9][0-9]*\.[1-9][0-9]*$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Meta(Strict):
    elapsed_seconds: Amount
    start_time: Annotated[float, Field(gt=1_700_000_000)]


class Costs(Strict):
    total_input_tokens: Count
    total_output_tokens: Count
    total_estimated_cost: Amount


class Coordination(Strict):
    phase: Literal["initial_answer", "enforcement", "presentation"]
    completion_percentage: Annotated[int, Field(ge=0, le=100)]


class Usage(Strict):
    input_tokens: Count
    output_tokens: Count
    estimated_cost: Amount


class Seat(Strict):
    status: Literal["working", "answered", "voted", "left", "failed"]
    configured_id: str
    answer_count: Count
    vote: str | None
    token_usage: Usage
    error: str = ""


class Results(Strict):
    winner: str | None
    votes: dict[Label, Annotated[int, Field(ge=1)]]


class Snapshot(Strict):
    agentId: str
    answerLabel: Label
    timestamp: Annotated[str, Field(pattern=r"^[0-9]{8}_[0-9]{6}_[0-9]{6}$")]
    workspacePath: str


class StatusFile(Strict):
    """Every section of status.json, and nothing else."""

    meta: Meta
    costs: Costs
    coordination: Coordination
    agents: dict[str, Seat]
    results: Results
    historical_workspaces: list[Snapshot]


def require_sound(document: Row) -> StatusFile:
    """The document is a status.json whose parts agree with each other."""
    status = StatusFile.model_validate(document)
    seats = status.agents.values()
    assert status.costs.total_input_tokens == sum(s.token_usage.input_tokens for s in seats)
    assert status.costs.total_output_tokens == sum(s.token_usage.output_tokens for s in seats)
    assert len(status.historical_workspaces) == sum(seat.answer_count for seat in seats)
    known = {each.answerLabel: each.agentId for each in status.historical_workspaces}
    assert set(status.results.votes) <= set(known)
    assert sum(status.results.votes.values()) == sum(seat.vote is not None for seat in seats)
    winner = status.results.winner
    assert (winner is not None) == (status.coordination.phase == PRESENTATION)
    assert winner is None or winner in status.agents
    if winner is None:
        answered = sum(seat.answer_count > 0 for seat in seats)
        share = 50 * (answered + sum(status.results.votes.values())) // len(status.agents)
        assert status.coordination.completion_percentage == share
    return status


class Watched:
    """Every status.json of one subagent that could be caught while it worked, each sound."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen: list[Row] = []

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        self._look()
        for document in self.seen:
            require_sound(document)

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self._look()

    def _look(self) -> None:
        try:
            document = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return
        if not self.seen or document != self.seen[-1]:
            self.seen.append(document)


def stage(heard: Heard) -> str:
    """What the member is asked for."""
    asked = [turn["content"] for turn in heard.document["messages"] if turn["role"] == "user"]
    if any("Your answer was chosen" in str(text) for text in asked):
        return PRESENTATION
    return ENFORCEMENT if any("present answers" in str(text) for text in asked) else INITIAL


def team(
    *, answers: Script | None = None, votes: Script | None = None, words: Script | None = None
) -> Script:
    """A script by stages. Without one: everybody answers, votes for the first, and presents."""

    def script(heard: Heard) -> Said:
        match stage(heard):
            case "presentation":
                return words(heard) if words else Said(text=f"presented by {heard.model}")
            case "enforcement":
                return votes(heard) if votes else vote("agent1")
            case _:
                return answers(heard) if answers else answer(f"answer of {heard.model}")

    return script


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    with Models(lambda heard: answer("hello")) as models:
        yield models


def brief(text: str = "Say hello", **terms: object) -> Row:
    return {"task": text, "context_paths": [], "max_retries": 0} | terms


def task_of(root: Root, models: Models, *names: str, **options: str) -> str:
    text = models.config(*names, **options)
    return str(root.call("task.create", title="t", config_text=text)["task_id"])


def status_path(root: Root, task: str, subagent: str) -> Path:
    return root.folder(task, subagent) / "full_logs" / "status.json"


def status_of(root: Root, task: str, subagent: str) -> Row:
    document: Row = json.loads(status_path(root, task, subagent).read_text())
    return document


def in_turn(models: Models, *said: Said) -> list[str]:
    """The next requests are answered so; what each of them was last told comes to the list."""
    told: list[str] = []

    def script(heard: Heard) -> Said:
        told.append(heard.last)
        return said[min(len(told), len(said)) - 1]

    models.script = script
    return told


def said_to(models: Models, model: str) -> list[Any]:
    """Every message that a model was sent with its newest request."""
    last = [heard for heard in models.heard if heard.model == model][-1]
    messages: list[Any] = last.document["messages"]
    return messages
