"""Teams that run out of time, or are killed: what comes back is what the ladder says."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.roots import Root, Row, fresh, root, until
from support.scripted import Heard, Models, Said, answer, call, vote
from support.teams import (
    HANG,
    PRESENTATION,
    brief,
    models,
    require_sound,
    status_of,
    status_path,
    task_of,
    team,
)

__all__ = ["fresh", "models", "root"]

SECONDS = 1.5
UNHURRIED = 6.0  # where the grace turn, a fifth of it, has to be long enough for a loaded machine


@pytest.fixture(autouse=True, scope="module")
def _warm(root: Root, models: Models) -> None:
    """What a first child has to wait for is not on the clock of any other."""
    root.run(task_of(root, models, "first"), brief())


def timed(root: Root, task: str, seconds: float = SECONDS, **terms: object) -> Row:
    (result,) = root.run(task, brief(timeout_seconds=seconds, **terms))
    return result


@pytest.mark.requirement("R11", "R225")
def test_a_team_without_an_answer_in_time(root: Root, models: Models) -> None:
    models.script = lambda heard: HANG
    task = task_of(root, models, "a", "b")
    result = timed(root, task, subagent_id="slow")
    assert (result["status"], result["answer"]) == ("timeout", None)
    assert result["completion_percentage"] == 0
    assert status_of(root, task, "slow")["coordination"]["phase"] != PRESENTATION


@pytest.mark.requirement("R8", "R9", "R10", "R224")
def test_a_team_with_all_answers_but_no_vote_in_time(root: Root, models: Models) -> None:
    models.script = team(votes=lambda heard: HANG)
    task = task_of(root, models, "a", "b")
    result = timed(root, task)
    assert (result["status"], result["answer"]) == ("partial", "answer of a")
    assert result["completion_percentage"] == 50
    assert "workspace_files" not in result, "the team's own folders are no work of theirs"


@pytest.mark.requirement("R16", "R60")
def test_the_files_of_members_that_did_not_agree_are_named(root: Root, models: Models) -> None:
    def works(heard: Heard) -> Said:
        last = heard.document["messages"][-1]["role"]
        return answer("made it") if last == "tool" else call("write_file", path="f", content="x")

    models.script = team(answers=works, votes=lambda heard: HANG)
    result = timed(root, task_of(root, models, "a", "b"), subagent_id="slow")
    assert result["workspace_files"] == ["slow_agent_1/f", "slow_agent_2/f"]


@pytest.mark.requirement("R3", "R4", "R5", "R209", "R222", "R223", "R226")
def test_the_winner_does_not_present_in_time(root: Root, models: Models) -> None:
    models.script = team(votes=lambda heard: vote("agent2"), words=lambda heard: HANG)
    task = task_of(root, models, "a", "b")
    result = timed(root, task)
    assert (result["status"], result["answer"]) == ("completed_but_timeout", "answer of b")
    assert result["success"] and result["completion_percentage"] == 100
    usage = result["token_usage"]
    assert usage["input_tokens"] > 40 and usage["estimated"], "the request that was cut is guessed"


def test_a_member_asked_to_answer_now_answers(root: Root, models: Models) -> None:
    models.script = lambda heard: answer("short") if "almost up" in heard.last else HANG
    result = timed(root, task_of(root, models, "solo"), UNHURRIED)
    assert (result["status"], result["answer"]) == ("completed", "short")
    assert models.heard[-1].tools == ["new_answer"]


def test_a_member_asked_to_vote_now_has_seen_all_answers(root: Root, models: Models) -> None:
    def script(heard: Heard) -> Said:
        if "time of this round is up" in heard.last:
            assert "answer of b" in heard.words
            return vote("agent2")
        return answer(f"answer of {heard.model}") if heard.model != "c" else HANG

    models.script = script
    task = task_of(root, models, "a", "b", "c")
    result = timed(root, task, UNHURRIED, subagent_id="hurried")
    assert result["success"] and result["answer"] == "answer of b"
    status = status_of(root, task, "hurried")
    assert status["agents"]["hurried_agent_3"]["error"] == "its time was up"


@pytest.mark.requirement("R160")
def test_a_round_has_its_own_time_and_a_grace_after_it(root: Root, models: Models) -> None:
    def answers(heard: Heard) -> Said:
        if heard.model == "slow" and "almost up" in heard.last:
            return answer("at last")
        return answer("quick") if heard.model == "quick" else HANG

    models.script = team(answers=answers, words=lambda heard: HANG)
    rounds = (
        "subagent_round_timeouts:\n"
        "  initial_round_timeout_seconds: 0.4\n"
        "  subsequent_round_timeout_seconds: 0.8\n"
        "  round_timeout_grace_seconds: 0.4"
    )
    task = task_of(root, models, "slow", "stuck", "quick", coordination=rounds)
    began = time.monotonic()
    (result,) = root.run(task, brief(timeout_seconds=60, subagent_id="rounds"))
    assert time.monotonic() - began < 20, "its own rounds ended it, not the attempt's deadline"
    assert (result["status"], result["answer"]) == ("completed", "at last"), result
    status = status_of(root, task, "rounds")
    assert status["agents"]["rounds_agent_2"]["error"] == "its time was up"
    contract = json.loads((root.folder(task, "rounds") / "contract.json").read_text())
    assert contract["team"]["first_round_ms"] == 400


def kill_child(root: Root, task: str, subagent: str) -> None:
    """The whole process tree of the subagent, without a warning."""
    database = sqlite3.connect(f"file:{root.path / 'retinue.db'}?mode=ro", uri=True)
    with closing(database):
        (pid,) = database.execute(
            "SELECT pid FROM attempts WHERE task_id = ? AND sub_agent_id = ? ORDER BY number DESC",
            (task, subagent),
        ).fetchone()
    os.kill(pid, signal.SIGKILL)


def expected(status: Row, answers: list[str]) -> tuple[str, str | None]:
    """By the ladder, from what the team had written at that moment."""
    seats = status["agents"]
    said = {name: text for name, text in zip(seats, answers, strict=True) if _count(seats, name)}
    if not said:
        return "error", None
    if status["coordination"]["phase"] == PRESENTATION:
        return "completed_but_timeout", said[status["results"]["winner"]]
    votes = {label.partition(".")[0]: count for label, count in status["results"]["votes"].items()}
    numbered = [(f"agent{number}", name) for number, name in enumerate(seats, 1)]
    best = max((pair for pair in numbered if pair[1] in said), key=lambda p: votes.get(p[0], 0))
    return "partial", said[best[1]]


def _count(seats: Row, name: str) -> int:
    return int(seats[name]["answer_count"])


@pytest.mark.requirement("R1", "R2", "R76")
@pytest.mark.parametrize("requests", range(1, 8))
def test_a_killed_team_keeps_its_recoverable_result(
    root: Root, models: Models, requests: int
) -> None:
    """Killed when its models have been asked so often: 3 answers, 3 votes, 1 presentation."""
    names, before = ("a", "b", "c"), len(models.heard)

    def script(heard: Heard) -> Said:
        if len(models.heard) - before >= requests:
            return HANG
        return team(votes=lambda heard: vote("agent2"))(heard)

    models.script = script
    task, name = task_of(root, models, *names), f"killed{requests}"
    root.spawn(task, brief(subagent_id=name))
    settled = _still(status_path(root, task, name), lambda: len(models.heard) - before, requests)
    kill_child(root, task, name)
    until(lambda: root.rows(task)[name]["state"] == "closed")
    result = root.call("subagent.result", task=task, subagent=name)
    require_sound(settled)
    answers = [f"answer of {each}" for each in names]
    assert (result["status"], result["answer"]) == expected(settled, answers)
    assert result["status"] == "error" or result["completion_percentage"] > 0
    assert result["workspace"] and result["error"]


def _still(path: Path, asked: object, least: int) -> Row:
    """The status once nothing moves any more: every model was asked, or waits for ever."""
    assert callable(asked)
    until(lambda: asked() >= least)
    seen: list[bytes] = []

    def same() -> bool:
        time.sleep(0.1)
        seen.append(path.read_bytes() if path.exists() else b"")
        return len(seen) > 3 and seen[-1] == seen[-2] == seen[-3] != b""

    until(same)
    document: Row = json.loads(seen[-1])
    return document


@pytest.mark.requirement("R76")
def test_a_team_goes_on_when_its_steward_is_killed(fresh: Root, models: Models) -> None:
    held = {"on": True}

    def votes(heard: Heard) -> Said:
        return Said(calls=vote("agent2").calls, until=lambda: not held["on"])

    models.script = team(votes=votes)
    task = task_of(fresh, models, "a", "b")
    fresh.spawn(task, brief(subagent_id="orphan"))
    path = status_path(fresh, task, "orphan")
    until(lambda: path.exists() and b'"enforcement"' in path.read_bytes())
    before = len(models.heard)
    until(lambda: len(models.heard) >= before)
    fresh.kill()
    held["on"] = False
    until(lambda: fresh.rows(task)["orphan"]["state"] == "closed", 40)
    result = fresh.call("subagent.result", task=task, subagent="orphan")
    assert (result["status"], result["answer"]) == ("completed", "presented by b"), result
    assert fresh.types(task, "orphan").count("subagent_closed") == 1
    fresh.sound()


def test_a_team_that_cannot_tell_of_itself_ends_by_that_not_by_its_time(
    root: Root, models: Models
) -> None:
    before, ready = len(models.heard), threading.Event()
    models.script = lambda heard: replace(call("list_files", path="."), until=ready.is_set)
    task = task_of(root, models, "a")
    (name,) = root.spawn(task, brief(timeout_seconds=10))
    until(lambda: len(models.heard) > before)
    status = status_path(root, task, name)
    status.unlink()
    (status / "in the way").mkdir(parents=True)
    ready.set()
    until(lambda: root.rows(task)[name]["state"] == "closed")
    assert root.rows(task)[name]["close_reason"] == "execution_failed"
