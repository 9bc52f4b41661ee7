"""Ids by their beginning and `@last`, and the live table."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

from support.cli import BOUND_S, Cli


def make(cli: Cli, name: str) -> None:
    cli.run("task", "create", "--title", "T", "--id", name)


def spawn(cli: Cli, task: str, name: str) -> None:
    cli.run("subagent", "spawn", task, "--id", name, "--wait", "--", "echo", name)


def error(text: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(text)["error"]
    return found


def test_a_unique_beginning_and_last_name_a_task_and_a_subagent(cli: Cli) -> None:
    cli.task()
    make(cli, "site-one")
    make(cli, "site-two")
    spawn(cli, "@last", "page")
    spawn(cli, "site-t", "image")
    assert cli.json("task", "show", "@last")["task_id"] == "site-two"
    assert cli.json("subagent", "show", "site-t", "p")["agentInstance"] == "page"
    assert cli.json("subagent", "result", "@last", "@last")["answer"].strip() == "image"
    assert [row["agentInstance"] for row in cli.json("subagent", "list", "SITE-T")] == [
        "page",
        "image",
    ]


def test_an_ambiguous_beginning_is_refused_with_the_candidates(cli: Cli) -> None:
    make(cli, "site-one")
    make(cli, "site-two")
    said = error(cli.run("--json", "task", "close", "site", code=2))
    assert said["code"] == "ambiguous_id"
    assert "site-one" in said["message"] and "site-two" in said["message"]
    assert {row["state"] for row in cli.json("task", "list")} == {"open"}
    make(cli, "site")  # an id that exists is never taken for a beginning
    assert cli.json("task", "show", "site")["task_id"] == "site"


def test_a_new_id_is_never_taken_for_a_beginning(cli: Cli) -> None:
    make(cli, "site-one")
    make(cli, "site")
    spawn(cli, "site-one", "page-2")
    spawn(cli, "site-one", "page")
    assert len(cli.json("subagent", "list", "site-one")) == 2
    assert error(cli.run("--json", "task", "create", "--title", "T", "--id", "@last", code=2))
    assert error(cli.run("--json", "task", "show", "nothing", code=3))["code"] == "unknown_task"


def test_top_without_a_terminal_prints_the_table_once(cli: Cli) -> None:
    task = cli.task()
    spawn(cli, task, "page")
    shown = cli.run("top")
    assert shown.startswith("TASK") and "page" in shown and "completed" in shown
    assert cli.json("top")[0]["agentInstance"] == "page"
    cli.run("task", "close", task)
    assert cli.json("top") == [] and cli.json("top", "--all")[0]["task_id"] == task


def test_top_in_a_terminal_shows_a_new_subagent_by_itself(cli: Cli) -> None:
    task = cli.task()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "retinue", "top"]
    with subprocess.Popen(
        command, cwd=cli.folder, env=cli.environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        assert "no subagents" in read_until(ours, "no subagents")
        spawn(cli, task, "newcomer")
        assert "newcomer" in read_until(ours, "newcomer")
        process.send_signal(signal.SIGINT)
        read_until(ours, "\x1b[?1049l")  # the former screen is back
        assert process.wait(BOUND_S) == 130
    os.close(ours)


def read_until(terminal: int, wanted: str) -> str:
    text = ""
    end = time.monotonic() + BOUND_S
    while wanted not in text and time.monotonic() < end:
        text += os.read(terminal, 65536).decode("utf-8", "replace")
    assert wanted in text
    return text
