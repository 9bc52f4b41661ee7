"""Two things at the same moment: any interleaving equals some order, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retinue.client.blocking_client import connect_or_start
from retinue.core.errors import BadInput, LimitExceeded, Refused, RetinueError, WaitTimedOut
from retinue.formats import steward_protocol
from retinue.settings import read_settings
from retinue.steward.app import App, open_app
from retinue.steward.in_process import InProcessTransport
from support.roots import CONFIG, Root, Row, at_once, command, python, rounds, sh, until

ENDS = ("subagent_waiting_for_merge", "subagent_failed")
BLOCKS = """printf '{"status":"blocked","questions":["which?"]}' > "$RETINUE_FINAL"; echo asked"""


@pytest.mark.requirement("R43", "R53")
def test_a_cancel_that_races_with_the_end_tells_one_story(root: Root, task: str) -> None:
    client, won = root.client(), Counter[str]()
    chance = random.Random(26)
    for number in range(rounds(100)):
        name = f"racer-{number}"
        delay = chance.uniform(0, 0.03)
        root.spawn(task, sh(f"sleep {delay:.4f}; echo done", subagent_id=name))
        until_moment(time.monotonic() + chance.uniform(0, 0.03))
        try:
            answer = client.call("subagent.cancel", task=task, subagent=name)
            assert answer["result"]["status"] == "cancelled"
            won["cancel"] += 1
        except Refused as refused:
            assert refused.code == "already_completed"
            won["end"] += 1
            assert "cancelled" not in root.types(task, name)
        story = Counter(root.types(task, name))
        assert story["subagent_closed"] == 1
        assert sum(story[each] for each in ENDS) == 1
        assert story["completed"] + story["failed"] + story["cancelled"] == 1
    assert won["cancel"] and won["end"], won
    root.sound()


def test_eight_clients_that_close_and_cancel_a_finished_one_change_nothing(
    root: Root, task: str
) -> None:
    for number, keeps in enumerate([True, False]):
        name = f"finished-{number}"
        root.run(task, command("echo", "ok", subagent_id=name, close_on_completion=keeps))
        calls = ["subagent.close", "subagent.cancel"] * 4
        acts = [partial(root.client().call, verb, task=task, subagent=name) for verb in calls]
        outcomes = at_once(*acts)
        refused = [each.code for each in outcomes if isinstance(each, RetinueError)]
        assert refused == ["already_completed"] * 4
        assert root.types(task, name).count("subagent_closed") == 1
        assert "cancelled" not in root.types(task, name)
        assert "cancel_requested" not in root.types(task, name)
    root.sound()


def test_eight_clients_that_cancel_a_running_one_end_it_once(root: Root, task: str) -> None:
    (name,) = root.spawn(task, command("sleep", "60"))
    acts = [partial(root.client().call, "subagent.cancel", task=task, subagent=name)] * 8
    acts = [partial(root.client().call, "subagent.cancel", task=task, subagent=name) for _ in acts]
    outcomes = at_once(*acts)
    for outcome in outcomes:
        if isinstance(outcome, RetinueError):
            assert outcome.code == "already_cancelled"
        else:
            assert outcome["result"]["status"] == "cancelled"
    story = Counter(root.types(task, name))
    assert (story["cancelled"], story["subagent_closed"], story["cancel_requested"]) == (1, 1, 1)


@pytest.mark.requirement("R36", "R37", "R41")
def test_wait_any_returns_each_end_once_whenever_it_comes(root: Root, task: str) -> None:
    client, chance = root.client(), random.Random(28)
    for number in range(rounds(100)):
        name = f"ending-{number}"
        root.spawn(task, sh(f"sleep {chance.uniform(0, 0.02):.4f}; echo ok", subagent_id=name))
        until_moment(time.monotonic() + chance.uniform(0, 0.02))
        settled = client.call("subagent.wait_any", task=task, timeout_seconds=10)
        assert settled == {"agentInstance": name, "status": "completed"}
    with pytest.raises(WaitTimedOut):
        client.call("subagent.wait_any", task=task, timeout_seconds=0.05)


@pytest.mark.requirement("R41")
def test_wait_any_returns_within_200_ms_of_the_end(root: Root, task: str) -> None:
    mark = root.path.parent / "ended"
    script = f"import os, time; time.sleep(0.3); print(1); open({str(mark)!r}, 'w')"
    root.spawn(task, python(script))
    root.call("subagent.wait_any", task=task, timeout_seconds=10)
    assert time.time() - mark.stat().st_mtime < 0.2


@pytest.mark.requirement("R36")
def test_two_waiters_of_one_consumer_get_one_end_each(root: Root, task: str) -> None:
    for number in range(rounds(10)):
        names = [f"pair-{number}-{each}" for each in "ab"]
        wait = {"task": task, "timeout_seconds": 10}
        waits = [partial(root.client().call, "subagent.wait_any", **wait) for _ in names]
        root.spawn(task, *(sh("sleep 0.02; echo ok", subagent_id=name) for name in names))
        settled = at_once(*waits)
        assert sorted(each["agentInstance"] for each in settled if isinstance(each, dict)) == names


def test_of_two_waiters_for_one_end_the_other_is_not_left_waiting(root: Root, task: str) -> None:
    for number in range(rounds(10)):
        wait = {"task": task, "timeout_seconds": 30}
        waits = [partial(root.client().call, "subagent.wait_any", **wait) for _ in range(2)]
        root.spawn(task, sh("sleep 0.02; echo ok", subagent_id=f"only-{number}"))
        ends = at_once(*waits)
        (loser,) = [each for each in ends if isinstance(each, RetinueError)]
        assert loser.code == "nothing_to_wait_for"


@pytest.mark.requirement("R38")
def test_a_wait_ends_when_its_time_is_up_and_the_child_goes_on(root: Root, task: str) -> None:
    (name,) = root.spawn(task, command("sleep", "60"))
    for seconds in (0, 0.2, 0.7):
        before = time.monotonic()
        refused = root.refusal("subagent.wait_any", task=task, timeout_seconds=seconds)
        assert isinstance(refused, WaitTimedOut)
        assert seconds <= time.monotonic() - before < seconds + 1
    assert root.rows(task)[name]["status"] == "running"
    root.call("subagent.cancel", task=task, subagent=name, kill=True)


def test_a_waiter_that_is_gone_before_the_end_takes_nothing_with_it(root: Root, task: str) -> None:
    for number in range(rounds(10)):
        name = f"kept-{number}"
        request = ask_to_wait(root, task)
        root.spawn(task, sh("sleep 0.02; echo ok", subagent_id=name))
        until_moment(time.monotonic() + number * 0.004)
        request.close()
        settled = root.call("subagent.wait_any", task=task, timeout_seconds=10)
        assert settled["agentInstance"] == name


def test_an_answer_that_was_sent_and_never_read_is_given_to_the_next(root: Root, task: str) -> None:
    root.run(task, command("echo", "ok", subagent_id="unread"))
    with closing(sqlite3.connect(root.path / "retinue.db")) as database:
        request = ask_to_wait(root, task)
        until(partial(delivered, database, task))
        request.close()  # its answer lies unread in the socket
        settled = root.call("subagent.wait_any", task=task, timeout_seconds=10)
        assert settled["agentInstance"] == "unread"


@pytest.mark.requirement("R23", "R26")
def test_simultaneous_spawns_never_exceed_the_limit(root: Root) -> None:
    task = root.create_task(limit=2)
    for number in range(rounds(10)):
        briefs = [command("sleep", "60", subagent_id=f"slot-{number}-{each}") for each in range(8)]
        clients = [root.client() for _ in briefs]
        outcomes = at_once(
            *(
                partial(client.call, "subagent.spawn", task=task, tasks=[brief])
                for client, brief in zip(clients, briefs, strict=True)
            )
        )
        losers = [each for each in outcomes if isinstance(each, RetinueError)]
        assert len(losers) == 6
        assert all(isinstance(each, LimitExceeded) and each.exit_code == 5 for each in losers)
        assert losers[0].message == "concurrency limit exceeded: active=2, limit=2"
        assert len(list(root.task_folder(task).joinpath("agents").iterdir())) == 2 * (number + 1)
        root.call("task.cancel", task=task, kill=True)
        for client in clients:
            client.close()
    assert most_at_once(root.events(task)) == 2
    root.sound()


def test_simultaneous_spawns_of_one_id_make_one_subagent(root: Root, task: str) -> None:
    names = ["same", "SAME", "Same", "same"] * 2
    briefs = [command("sleep", "60", subagent_id=name) for name in names]
    outcomes = at_once(
        *(
            partial(root.client().call, "subagent.spawn", task=task, tasks=[brief])
            for brief in briefs
        )
    )
    losers = [each for each in outcomes if isinstance(each, RetinueError)]
    assert len(losers) == 7
    assert all(isinstance(each, BadInput) and each.code == "duplicate_id" for each in losers)
    assert len(root.rows(task)) == 1
    assert len(list(root.task_folder(task).joinpath("agents").iterdir())) == 1
    root.call("task.cancel", task=task, kill=True)


def test_one_call_that_names_an_id_twice_is_refused_whole(root: Root, task: str) -> None:
    before = root.state()
    briefs = [command("true", subagent_id=name) for name in ("one", "two", "ONE")]
    refused = root.refusal("subagent.spawn", task=task, tasks=briefs)
    assert (refused.code, "'one'" in refused.message) == ("duplicate_id", True)
    assert root.state() == before


def test_a_status_file_rewritten_in_place_never_hides_the_last_good_view(
    root: Root, task: str
) -> None:
    document = json.dumps({"coordination": {"phase": "enforcement", "completion_percentage": 40}})
    script = f"""
import os
path, data = os.environ["RETINUE_LOGS"] + "/status.json", {document.encode()!r}
while True:
    with open(path, "wb", buffering=0) as file:
        for start in range(0, len(data), 7):
            file.write(data[start:start + 7])
"""
    (name,) = root.spawn(task, python(script))
    until(lambda: "phase" in root.rows(task)[name])
    end = time.monotonic() + 2
    seen = 0
    while time.monotonic() < end:
        row = root.rows(task)[name]
        assert (row["phase"], row["completion_percentage"]) == ("enforcement", 40)
        seen += 1
    assert seen > 50
    root.call("subagent.cancel", task=task, subagent=name, kill=True)


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
def test_a_clock_that_jumps_changes_no_order_no_duration_and_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    clock = Clock()
    monkeypatch.setattr("retinue.clock.time", clock)

    async def whole() -> tuple[Any, float, App]:
        app = open_app(read_settings(tmp_path / ".retinue", {}), print)
        caller = InProcessTransport(app)
        text = CONFIG.format(limit=3)
        task = (await caller.call("task.create", title="t", config_text=text))["task_id"]
        briefs = [command("sleep", "60", timeout_seconds=0.6), sh("sleep 0.3; echo ok")]
        await caller.call("subagent.spawn", task=task, tasks=briefs)
        began = time.monotonic()
        clock.ahead_s = jump_s
        rows = await caller.call("subagent.list", task=task)
        await caller.call("subagent.wait_all", task=task, timeout_seconds=10)
        spent = time.monotonic() - began
        rows += await caller.call("subagent.list", task=task)
        results = [
            await caller.call("subagent.result", task=task, subagent=row["agentInstance"])
            for row in rows
        ]
        events = [event async for event in caller.stream("task.events", task=task)]
        problems = (await caller.call("verify"))["problems"]
        await app.close()
        return (rows, results, events, problems), spent, app

    (rows, results, events, problems), spent, _ = asyncio.run(whole())
    assert not problems
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert all(row["elapsed_seconds"] >= 0 for row in rows)
    assert {result["status"] for result in results} == {"timeout", "completed"}
    assert all(0 <= result["execution_time_seconds"] < 5 for result in results)
    assert 0.5 < spent < 5


class Clock:
    """The `time` module, with a wall clock that can be moved."""

    ahead_s = 0.0

    def time(self) -> float:
        return time.time() + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def ask_to_wait(root: Root, task: str) -> Any:
    """A connection on which wait_any was asked for, and nothing read."""
    connection = connect_or_start(root.path)
    wait = {"task": task, "timeout_seconds": 10}
    connection.sendall(steward_protocol.encode_request(1, "subagent.wait_any", wait))
    return connection


def delivered(database: sqlite3.Connection, task: str) -> bool:
    query = "SELECT count(*) FROM deliveries WHERE task_id = ?"
    return bool(database.execute(query, [task]).fetchone()[0])


def until_moment(moment: float) -> None:
    """Not before this moment: a jitter is a time, and waits for nothing."""
    while time.monotonic() < moment:
        time.sleep(0.0005)


def most_at_once(events: list[Row]) -> int:
    """The most subagents that were created or running at any time, told from events alone."""
    active: set[str] = set()
    most = 0
    for event in events:
        kind = event["type"].removeprefix("agent.")
        if kind == "subagent_created":
            active.add(event["agentInstance"])
        elif kind in ENDS:
            active.discard(event["agentInstance"])
        most = max(most, len(active))
    return most
