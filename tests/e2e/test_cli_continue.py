"""Continuing a subagent from the shell, and what its attempts came to."""

from __future__ import annotations

import os
import signal

import pytest

from support.cli import BLOCKS, BOUND_S, Cli
from support.roots import CONFIG, until

ATTENDED = CONFIG.format(limit=5) + "    background_subagents: {enabled: false}\n"
AGAIN = """
if grep -q slowly "$RETINUE_BRIEF"; then
    echo half > "$RETINUE_ANSWER"; touch ready; exec sleep 600
fi
if grep -q badly "$RETINUE_BRIEF"; then exit 3; fi
tail -n 1 "$RETINUE_BRIEF"
"""


def test_where_somebody_must_wait_a_continued_one_is_waited_for(cli: Cli) -> None:
    task = cli.task(ATTENDED)
    cli.run("subagent", "spawn", task, "first", "--id", "one", "--wait", "--", "sh", "-c", AGAIN)
    refused = cli.json("subagent", "continue", task, "one", "second", code=1)
    assert refused["error"]["code"] == "background_disabled"
    assert [row["agentInstance"] for row in cli.json("subagent", "list", task)] == ["one"]
    result = cli.json("subagent", "continue", task, "one", "second", "--wait")
    assert (result["status"], result["answer"]) == ("completed", "second")
    assert "code 3" in cli.run("subagent", "continue", task, "one", "badly", "--wait", code=1)


def test_a_command_that_is_continued_is_told_what_it_had_asked_and_been_answered(cli: Cli) -> None:
    task = cli.task()
    asks = ("--id", "asks", "--wait", "--", "sh", "-c", BLOCKS)
    cli.run("subagent", "spawn", task, "Paint", *asks, code=1)
    cli.run("subagent", "continue", task, "asks", "blue", "--wait")
    again = cli.json("subagent", "continue", task, "asks", "Twice.", "--wait")
    assert again["answer"] == "it is blue", "it does not ask again"
    brief = cli.root / "tasks" / task / "agents" / again["subagent_id"] / "runtime" / "brief.txt"
    words = "Paint\n\n## Question: Which colour?\n## Answer\n\nblue\n\n## Message\n\nTwice."
    assert brief.read_text() == words


def test_a_second_continue_knows_what_the_first_was_told(cli: Cli) -> None:
    task = cli.task()
    script = 'cat "$RETINUE_BRIEF" > told; cat told'
    cli.run("subagent", "spawn", task, "One", "--id", "a", "--wait", "--", "sh", "-c", script)
    cli.run("subagent", "continue", task, "a", "Two", "--wait")
    third = cli.json("subagent", "continue", task, "a", "Three", "--wait")
    assert third["answer"] == "One\n\nTwo\n\nThree"
    shown = cli.run("subagent", "continue", task, "a-2", "Four")
    assert f"continues {third['subagent_id']}" in shown
    cli.run("subagent", "wait-all", task)
    rows = cli.json("subagent", "list", task)
    assert [row.get("resumes") for row in rows] == [None, "a", "a-2", "a-3"]
    assert (cli.workspace(task, "a") / "told").read_text() == "One\n\nTwo\n\nThree\n\nFour"


@pytest.mark.requirement("R161", "R182")
def test_a_time_that_a_continued_one_has_not_is_told(cli: Cli) -> None:
    task = cli.task(CONFIG.format(limit=5))
    spawn = ("subagent", "spawn", task, "first", "--wait")
    cli.run(*spawn, "--id", "one", "--", "sh", "-c", AGAIN)
    cli.run(*spawn, "--id", "asks", "--", "sh", "-c", BLOCKS, code=1)
    words = ("--timeout-seconds", "900", "--wait")
    told = cli.json("subagent", "continue", task, "one", "second", *words)
    (warning,) = told["warnings"]
    assert warning.startswith("one-3 has 600 s for an attempt, not 900 s as asked: the range is ")
    told = cli.json("subagent", "continue", task, "asks", "blue", *words)
    assert told["answer"] == "it is blue"
    assert told["warnings"] == [
        "asks has 20 s for an attempt, not 900 s as asked: "
        "a blocked subagent continues under its contract"
    ]


@pytest.mark.parametrize(
    ("how", "why"), [(signal.SIGINT, "interrupted at the shell"), (signal.SIGKILL, "")]
)
def test_one_that_is_waited_for_is_cancelled_with_its_caller(
    cli: Cli, how: signal.Signals, why: str
) -> None:
    task = cli.task(ATTENDED)
    cli.run("subagent", "spawn", task, "first", "--id", "one", "--wait", "--", "sh", "-c", AGAIN)
    waiting = cli.start("subagent", "continue", task, "one", "slowly", "--wait")
    until((cli.workspace(task, "one") / "ready").exists)
    os.killpg(waiting.pid, how)
    said, _ = waiting.communicate(timeout=BOUND_S)
    if why:
        assert waiting.returncode == 130
        assert said.startswith("half\n") and why in said, "what it had earned is shown"
    until(lambda: "running" not in cli.run("subagent", "list", task))
    rows = {row["agentInstance"]: row["status"] for row in cli.json("subagent", "list", task)}
    assert rows == {"one": "completed", "one-2": "cancelled"}


def test_each_attempt_is_shown_with_its_own_error(cli: Cli) -> None:
    task = cli.task()
    words = ("--id", "one", "--retries", "1", "--wait", "--")
    script = "mkdir made || exit 4; exit 3"
    cli.run("subagent", "spawn", task, *words, "sh", "-c", script, code=1)
    shown = cli.run("subagent", "show", task, "one").splitlines()
    first, second = (line for line in shown if line.startswith(("1  ", "2  ")))
    assert first.endswith("exited with code 3") and "exited with code 4" in second
