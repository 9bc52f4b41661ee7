"""The command line as a person types it: real processes, a real steward, real children."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.cli import BLOCKS, BOUND_S, CONFIG, SOURCE, Cli
from support.roots import Root, tree, until
from support.traces import is_over, processes_that_mention

PATIENT = CONFIG.replace("[0.4, 0.3]", "[60, 60]")
DREAM = 'echo draft > "$RETINUE_ANSWER"; touch ready; exec sleep 60'
STUBBORN = (
    'trap "" INT TERM; echo draft > "$RETINUE_ANSWER"; touch ready; while :; do sleep 1; done'
)


@pytest.mark.requirement("R22", "R27", "R36", "R37", "R251")
def test_the_whole_flow(cli: Cli) -> None:
    task = cli.task()
    done = cli.json("subagent", "spawn", task, "--id", "one", "--wait", "--", "/bin/echo", "ok")
    assert done["success"] and done["results"][0]["answer"] == "ok"
    assert done["summary"]["completed"] == 1
    spawned = cli.json("subagent", "spawn", task, "--id", "two", "--", "sh", "-c", DREAM)
    assert (spawned["mode"], spawned["subagents"][0]["subagent_id"]) == ("background", "two")
    assert cli.json("subagent", "wait-any", task) == {"agentInstance": "one", "status": "completed"}
    until((cli.workspace(task, "two") / "ready").exists)
    rows = {row["agentInstance"]: row for row in cli.json("subagent", "list", task)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "one": "completed",
        "two": "running",
    }
    gone = cli.json("subagent", "cancel", task, "two", "--reason", "enough")
    assert gone["cancelled"] and gone["result"]["answer"].strip() == "draft"
    assert cli.json("subagent", "show", task, "two")["result"]["status"] == "cancelled"
    assert cli.json("subagent", "result", task, "one")["answer"] == "ok"
    assert [row["status"] for row in cli.json("subagent", "wait-all", task)] == [
        "completed",
        "cancelled",
    ]
    assert cli.json("task", "join", task)["summary"]["total"] == 2
    assert cli.json("task", "close", task)["state"] == "closed"
    assert cli.json("task", "list")[0]["task_id"] == task
    assert cli.json("verify") == {"ok": True, "problems": []}
    assert cli.json("verify", task)["ok"]
    assert {"removed", "kept", "bytes"} <= set(cli.json("gc"))
    assert {"ok", "checks", "isolation"} <= set(cli.json("doctor", code=None))


def test_what_people_see_is_aligned_and_complete(cli: Cli) -> None:
    task = cli.task()
    shown = cli.run("subagent", "spawn", task, "--id", "one", "--wait", "--", "echo", "the answer")
    assert shown.startswith("the answer\n\none  result: completed  ")
    heading, row = cli.run("subagent", "list", task).splitlines()
    assert heading.split() == ["ID", "STATUS", "ATTEMPT", "ELAPSED", "TOKENS", "TITLE"]
    assert row.split()[:3] == ["one", "completed", "1"]
    assert cli.run("subagent", "result", task, "one").startswith("the answer\n")
    assert "ATTEMPT  RESULT" in cli.run("subagent", "show", task, "one")
    assert "A task" in cli.run("task", "show", task)
    assert cli.run("subagent", "wait-any", task) == "one  completed\n"
    assert "the answer" in cli.run("task", "join", task)
    assert "isolation" in cli.run("doctor", code=None)
    assert cli.run("verify").startswith("ok")


@pytest.mark.requirement("R14")
def test_cancelling_a_task_prints_where_its_work_is(cli: Cli) -> None:
    task = cli.task()
    for name in ("one", "two"):
        cli.run("subagent", "spawn", task, "--id", name, "--", "sleep", "60")
    shown = cli.run("task", "cancel", task, "--kill")
    assert shown.splitlines()[0] == "cancelled: one, two"
    assert shown.endswith(f": retinue task join {task}\n")
    joined = cli.run("task", "join", task)
    assert joined.count(f"\n  workspace: {cli.root}/tasks/{task}/agents/") == 2
    assert cli.run("task", "cancel", task) == "cancelled: none\n"


@pytest.mark.requirement("R97", "R112", "R113")
def test_one_that_is_left_for_its_parent_to_close_is_told_until_it_is(cli: Cli) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "--id", "one", "--keep-open", "--wait", "--", "echo", "x")
    told = "\nto be closed: one (retinue subagent close TASK ID)"
    assert told in cli.run("subagent", "list", task)
    shown = cli.run("task", "show", task)
    assert told in shown and "outcome  running" in shown
    assert told not in cli.run("subagent", "close", task, "one")
    assert "outcome  succeeded" in cli.run("task", "show", task)


def test_events_and_timeline_tell_the_same_story(cli: Cli) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "--id", "one", "--wait", "--", "echo", "ok")
    events = [json.loads(line) for line in cli.run("task", "events", task, "--json").splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert len(cli.run("task", "events", task).splitlines()) == len(events)
    assert len(cli.run("timeline", task).splitlines()) == len(events)
    assert '"contract_sha256"' in cli.run("timeline", task, "--expand")
    second = cli.run("task", "events", task, "--json", "--since", "1", "--limit", "1")
    assert json.loads(second)["seq"] == 2
    only = cli.run("task", "events", task, "--json", "--type-prefix", "agent.subagent_")
    kinds = [json.loads(line)["type"] for line in only.splitlines()]
    assert kinds and all(kind.startswith("agent.subagent_") for kind in kinds)


@pytest.mark.parametrize("command", ["events", "timeline"])
def test_following_ends_when_the_task_is_closed(cli: Cli, command: str) -> None:
    task = cli.task()
    words = ("timeline", task) if command == "timeline" else ("task", "events", task)
    following = cli.start(*words, "--follow")
    assert following.stdout is not None
    assert "task.created" in following.stdout.readline()
    cli.run("task", "close", task)
    out, _ = following.communicate(timeout=BOUND_S)
    assert "task.closed" in out
    assert following.returncode == 0


def test_following_ends_with_the_last_event_that_was_asked_for(cli: Cli) -> None:
    task = cli.task()
    following = cli.start("task", "events", task, "--follow", "--json", "--limit", "3")
    cli.run("subagent", "spawn", task, "--id", "one", "--wait", "--", "echo", "ok")
    out, _ = following.communicate(timeout=BOUND_S)
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [1, 2, 3]
    assert following.returncode == 0
    assert cli.run("task", "events", task, "--follow", "--limit", "0") == ""


def test_following_is_left_by_an_interrupt(cli: Cli) -> None:
    task = cli.task()
    following = cli.start("task", "events", task, "--follow")
    assert following.stdout is not None
    following.stdout.readline()
    os.killpg(following.pid, signal.SIGINT)
    _, err = following.communicate(timeout=BOUND_S)
    assert (following.returncode, err) == (130, "")


def test_logs_are_shown_plain_and_followed_to_the_end(cli: Cli) -> None:
    task = cli.task()
    script = r"""printf 'one\033[2J\r\n'; printf 'oops\n' >&2
        while [ ! -e go ]; do sleep 0.02; done; printf 'two\n'"""
    cli.run("subagent", "spawn", task, "--id", "one", "--", "sh", "-c", script)
    following = cli.start("subagent", "logs", task, "one", "--follow", "--stdout")
    assert following.stdout is not None
    assert following.stdout.readline() == "one\\x1b[2J\\r\n"
    (cli.workspace(task, "one") / "go").touch()
    out, _ = following.communicate(timeout=BOUND_S)
    assert (out, following.returncode) == ("two\n", 0)
    shown = cli.run("subagent", "logs", task, "one")
    assert shown == "==> stdout <==\none\\x1b[2J\\r\ntwo\n==> stderr <==\noops\n"
    assert cli.run("subagent", "logs", task, "one", "--stderr") == "oops\n"
    assert cli.run("subagent", "logs", task, "one", "--stderr", "--stdout") == shown


def test_logs_that_are_followed_by_a_shortened_id_end_with_the_subagent(cli: Cli) -> None:
    task = cli.task()
    script = "echo begun; while [ ! -e go ]; do sleep 0.02; done"
    cli.run("subagent", "spawn", task, "--id", "alone", "--", "sh", "-c", script)
    names = [(task, "al"), ("@last", "@last")]
    each = [cli.start("subagent", "logs", *name, "--follow", "--stdout") for name in names]
    for following in each:
        assert following.stdout is not None and following.stdout.readline() == "begun\n"
    (cli.workspace(task, "alone") / "go").touch()
    for following in each:
        following.communicate(timeout=BOUND_S)
        assert following.returncode == 0


def test_logs_of_one_that_waits_in_the_queue_are_followed_from_its_start(cli: Cli) -> None:
    task = cli.task(CONFIG + "    subagent_max_concurrent: 1\n")
    cli.run("subagent", "spawn", task, "--id", "one", "--", "sh", "-c", DREAM)
    cli.run("subagent", "spawn", task, "--id", "two", "--queue", "--", "echo", "late")
    following = cli.start("subagent", "logs", task, "two", "--follow", "--stdout")
    cli.run("subagent", "cancel", task, "one")
    out, _ = following.communicate(timeout=BOUND_S)
    assert (out, following.returncode) == ("late\n", 0)


@pytest.mark.requirement("R43", "R253")
def test_one_interrupt_cancels_what_is_awaited_and_shows_what_it_had_earned(cli: Cli) -> None:
    task = cli.task(CONFIG + "    background_subagents: {enabled: false}\n")
    refused = cli.json("subagent", "spawn", task, "--", "sh", "-c", DREAM, code=1)
    assert "--wait" in refused["error"]["hint"]
    words = ("--json", "subagent", "spawn", task, "--wait", "--", "sh", "-c", DREAM)
    waiting = cli.start(*words)
    until(lambda: list(cli.root.glob("tasks/*/agents/*/workspace/ready")))
    os.killpg(waiting.pid, signal.SIGINT)
    out, err = waiting.communicate(timeout=BOUND_S)
    assert waiting.returncode == 130, err
    (result,) = json.loads(out)["results"]
    assert (result["status"], result["answer"].strip()) == ("cancelled", "draft")
    assert "interrupted" in result["error"]
    assert cli.json("verify")["ok"]


def test_two_interrupts_kill_at_once_and_still_show_it(cli: Cli) -> None:
    task = cli.task(PATIENT)
    words = ("--json", "subagent", "spawn", task, "--id", "a", "--wait", "--", "sh", "-c", STUBBORN)
    waiting = cli.start(*words)
    until((cli.workspace(task, "a") / "ready").exists)
    os.killpg(waiting.pid, signal.SIGINT)
    until(lambda: "cancel_requested" in cli.run("task", "events", task))
    os.killpg(waiting.pid, signal.SIGINT)
    out, err = waiting.communicate(timeout=BOUND_S)
    assert waiting.returncode == 130, err
    assert json.loads(out)["results"][0]["answer"].strip() == "draft"
    assert cli.json("verify")["ok"]


@pytest.mark.parametrize("verb", ["wait-any", "wait-all"])
def test_an_interrupted_wait_leaves_the_subagents_alone(cli: Cli, verb: str) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "--id", "a", "--", "sh", "-c", DREAM)
    waiting = cli.start("subagent", verb, task)
    until(lambda: _has_socket(waiting.pid))
    os.killpg(waiting.pid, signal.SIGINT)
    out, err = waiting.communicate(timeout=BOUND_S)
    assert (waiting.returncode, out, err) == (130, "", "")
    assert cli.json("subagent", "list", task)[0]["status"] == "running"


def test_exit_codes_say_what_happened(cli: Cli) -> None:
    task = cli.task(CONFIG + "    subagent_max_concurrent: 1\n")
    spawn = ("subagent", "spawn", task)
    cli.run(*spawn, "--id", "bad", "--retries", "0", "--wait", "--", "sh", "-c", "exit 3", code=1)
    cli.run("subagent", "cancel", task, "bad", code=1)
    cli.run("task", "show", "nowhere", code=3)
    cli.run("subagent", "result", task, "nobody", code=3)
    cli.run(*spawn, "--id", "dreamer", "--", "sh", "-c", DREAM)
    cli.run("subagent", "result", task, "dreamer", code=3)
    assert cli.json("subagent", "wait-any", task)["agentInstance"] == "bad"
    error = cli.json("subagent", "wait-any", task, "--timeout-seconds", "0.1", code=4)
    assert error["error"]["code"] == "wait_timed_out"
    cli.run(*spawn, "--id", "more", "--", "echo", "x", code=5)
    cli.run("task", "close", task, code=1)


def test_a_blocked_subagent_is_answered_through_its_gate(cli: Cli) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "Paint it", "--id", "asks", "--", "sh", "-c", BLOCKS)
    assert cli.json("subagent", "wait-any", task)["status"] == "blocked"
    for verb in ("join", "show"):
        assert "asks: Which colour?" in cli.run("task", verb, task)
    assert "gate approve" in cli.run("subagent", "result", task, "asks")
    (gate,) = cli.json("gate", "list", task)
    assert (gate["task_id"], gate["questions"]) == (task, ["Which colour?"])
    assert cli.json("gate", "list") == [gate]
    assert task in (shown := cli.run("gate", "list")) and "Which colour?" in shown
    cli.run("gate", "approve", task, gate["gate_id"], "--answer", "blue")
    assert cli.json("subagent", "wait-any", task)["status"] == "completed"
    assert cli.json("subagent", "result", task, "asks")["answer"] == "it is blue"
    assert cli.json("gate", "list") == []
    assert [each["state"] for each in cli.json("gate", "list", task)] == ["approved"]
    error = cli.json("subagent", "wait-any", task, code=4)["error"]
    assert error["code"] == "nothing_to_wait_for"


def test_looking_around_where_there_is_no_root_makes_none(cli: Cli) -> None:
    assert cli.json("task", "list") == cli.json("task", "list", "--limit", "5") == []
    assert cli.json("gate", "list") == []
    looks = [("task", "show", "t"), ("task", "events", "t"), ("subagent", "list", "t")]
    looks += [("subagent", "show", "t", "a"), ("subagent", "logs", "t", "a"), ("timeline", "t")]
    looks += [("subagent", "wait-any", "t"), ("gate", "list", "t"), ("verify",), ("gc",)]
    for words in looks:
        error = cli.json(*words, code=3)["error"]
        assert (error["code"], "task create" in error["hint"]) == ("unknown_root", True), words
    checks = {each["name"]: each for each in cli.json("doctor", code=None)["checks"]}
    assert checks["root"]["ok"] and "none here yet" in checks["root"]["detail"]
    assert {"isolation", "models"} < set(checks)
    assert cli.json("model", "list")
    assert list(cli.folder.iterdir()) == []


def checks_of(cli: Cli, code: int | None = None) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in cli.json("doctor", code=code)["checks"]}


def test_a_configuration_without_a_root_counts_for_the_doctor_and_the_models(cli: Cli) -> None:
    cli.root.mkdir(mode=0o700)
    (cli.root / "config.yaml").write_text(
        "agents:\n"
        "  - {id: mine, backend: {type: chatcompletion, model: m, base_url: 'http://127.0.0.1:9'}}\n"
        "orchestrator: {coordination: {subagent_host_launch_prefix: [no-such-launcher]}}\n"
    )
    found = checks_of(cli, code=1)["root"]  # nobody said yet that it is not a stranger's
    assert not found["ok"] and "retinue trust" in found["hint"]
    assert "mine" not in {row["provider"] for row in cli.json("model", "list")}
    for what in ("model", "agent"):
        _, said = cli.start("--json", what, "list").communicate(timeout=30)
        assert "config.yaml is not read" in said and "retinue trust" in said
    cli.run("trust")
    assert cli.start("model", "list").communicate(timeout=30)[1] == ""
    made = set(os.listdir(cli.root))
    found = checks_of(cli, code=1)
    assert not found["isolation"]["ok"] and "no-such-launcher" in found["isolation"]["detail"]
    assert found["root"]["ok"] and not found["models"]["ok"]
    (row,) = [row for row in cli.json("model", "list") if row["configured"]]
    assert row["provider"] == "mine"
    assert set(os.listdir(cli.root)) == made == {"config.yaml", "identity.json"}
    cli.task()
    assert "no-such-launcher" in checks_of(cli, code=1)["isolation"]["detail"]
    isolation = cli.json("doctor", code=1)["isolation"]
    assert not isolation["available"] and isolation["launch_prefix"] == ["no-such-launcher"]


def test_where_no_root_can_be_made_the_doctor_says_so(cli: Cli) -> None:
    (cli.folder / "file").touch()
    nowhere = str(cli.folder / "file" / "below" / ".retinue")
    found = cli.json("doctor", "--root", nowhere, code=1)
    (check,) = (each for each in found["checks"] if each["name"] == "root")
    assert (found["ok"], check["ok"]) == (False, False)
    assert "none can be created" in check["detail"] and "--root" in check["hint"]


def test_every_word_of_a_tasks_state_is_the_same_wherever_it_is_shown(cli: Cli) -> None:
    task = cli.task()
    assert cli.json("task", "list")[0]["outcome"] == "running"  # nobody has done anything yet
    spawn = ("subagent", "spawn", task, "--wait", "--retries", "0", "--")
    cli.run(*spawn, "sh", "-c", "exit 3", code=1)
    cli.run(*spawn, "echo", "x")
    (row,) = cli.json("task", "list")
    whole, joined = cli.json("task", "show", task), cli.json("task", "join", task)
    path = cli.root / "tasks" / task / "status.json"  # it follows, if only by a moment
    until(lambda: json.loads(path.read_text())["counts"] == row["counts"])
    status = json.loads(path.read_text())
    for shown in (row, whole, joined, status):
        assert shown["outcome"] == "failed"
    assert row["counts"] == whole["counts"]
    assert sum(row["counts"].values()) == 2 * row["counts"]["total"] == 4
    assert "2 in all: 1 failed, 1 completed" in cli.run("task", "join", task)
    assert "failed" in cli.run("task", "list")
    assert re.search(r"^outcome +failed$", cli.run("task", "show", task), re.MULTILINE)


def test_a_steward_is_neither_started_to_be_asked_about_nor_to_be_stopped(cli: Cli) -> None:
    assert cli.json("steward", "status")["running"] is False
    assert cli.json("steward", "stop")["stopped"] is False
    assert not cli.root.exists()
    cli.task()
    status = cli.json("steward", "status")
    assert status["running"] and not is_over(status["pid"])
    assert cli.json("steward", "stop")["stopped"]
    assert is_over(status["pid"])


def test_a_stopped_steward_leaves_its_subagents_to_the_next(cli: Cli) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "--id", "a", "--", "sh", "-c", DREAM)
    cli.run("steward", "stop")
    assert cli.json("subagent", "list", task)[0]["status"] == "running"
    cli.run("steward", "stop", "--cancel")
    assert cli.json("subagent", "list", task)[0]["status"] == "cancelled"


def test_a_damaged_database_is_reported_by_verify(cli: Cli) -> None:
    cli.task()
    cli.run("steward", "stop")
    (cli.root / "retinue.db").write_bytes(os.urandom(8192))
    (problem,) = cli.json("verify", code=6)["problems"]
    assert set(problem) == {"kind", "where", "message"}
    cli.run("task", "list", code=6)


HOSTILE_IDS = [
    *("", " ", ".", "..", "../up", "a/b", "/etc/passwd", "~", "a b", "a.b", "a\nb", "a\tb", "a\rb"),
    *(
        "\x1b[2J",
        "a\x7f",
        "é",
        "日本",
        "a\u202eb",
        "a\u2028b",
        "-a",
        "_a",
        "--id",
        "a" * 65,
        "a" * 5000,
    ),
    *("$(id)", "`id`", "a;b", "a|b", "a'b", 'a"b', "*", "a\\b", "\udcff", "CON:", "a%00b"),
]


@pytest.mark.parametrize("batch", range(3))
def test_a_hostile_id_is_refused_and_leaves_nothing(cli: Cli, batch: int) -> None:
    task = cli.task()
    root = Root(cli.root)
    before = (tree(cli.root / "tasks"), root.counts())
    for name in HOSTILE_IDS[batch::3]:
        encoded = name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
        cli.run("subagent", "spawn", task, f"--id={encoded}", "--", "echo", "x", code=2)
        cli.run("task", "show", encoded, code=2)
        cli.run("subagent", "cancel", task, encoded, code=2)
    assert (tree(cli.root / "tasks"), root.counts()) == before


def test_what_a_child_wrote_cannot_act_on_the_terminal(cli: Cli) -> None:
    task = cli.task()
    evil = r"printf '\033]0;x\007\233\rline\342\200\250\342\200\256end\377' > "
    script = evil + '"$RETINUE_ANSWER"'
    words = ("subagent", "spawn", task, "--id", "a", "--title", "t\x1b[2J\rx\u202e", "--wait")
    seen = cli.run(*words, "--", "sh", "-c", script)
    for command in (
        ("subagent", "list", task),
        ("subagent", "show", task, "a"),
        ("subagent", "result", task, "a"),
        ("task", "events", task),
        ("timeline", task, "--expand"),
        ("task", "join", task),
        ("--json", "subagent", "show", task, "a"),
    ):
        seen += cli.run(*command)
    assert all(c.isprintable() or c in "\n\t" for c in seen)


def test_bad_surroundings_get_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cli.run("task", "list", "--root", "file", code=2)
    cli.run("task", "list", "--root", "file/.retinue", code=2)
    gone = tmp_path / "gone"
    gone.mkdir()
    swept = (
        "import os, runpy; os.rmdir(os.getcwd()); runpy.run_module('retinue', run_name='__main__')"
    )
    process = subprocess.run(
        [sys.executable, "-P", "-c", swept, "task", "list"],
        cwd=gone,
        env=cli.environment,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert (process.returncode, process.stderr.count("\n")) == (2, 1), process.stderr


def test_it_works_without_home_and_in_any_locale(cli: Cli) -> None:
    task = cli.task()
    bare = {"LANG": "C", "LC_ALL": "C", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE)}
    words = ("subagent", "spawn", task, "--title", "größer", "--wait", "--", "printf", "é")
    for more in ({}, {"PYTHONIOENCODING": "ascii"}):
        cli.run(*words, env=bare | more)
        cli.run("subagent", "list", task, env=bare | more)
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "gr\\xf6\\xdfer" in cli.run("subagent", "list", task, env=bare | ascii_only)


def test_a_reader_that_has_enough_is_no_error(cli: Cli) -> None:
    task = cli.task()
    line = f"{sys.executable} -m retinue task events {task} --follow | head -n 1"
    process = cli_shell(cli, line)
    cli.run("task", "close", task)
    out, err = process.communicate(timeout=BOUND_S)
    assert ("task.created" in out, err) == (True, "")


def test_an_output_that_is_full_is_an_error_in_one_line(cli: Cli) -> None:
    cli.task()
    process = cli_shell(cli, f"{sys.executable} -m retinue task list > /dev/full")
    _, err = process.communicate(timeout=BOUND_S)
    assert (process.returncode, err.count("\n"), err[:10]) == (1, 1, "error[io]:")
    assert "OSError" not in err and err.endswith(")\n")


@pytest.mark.requirement("R145", "R149")
def test_the_demonstration_shows_the_main_job(cli: Cli) -> None:
    shown = cli.run("demo")
    assert "The sum is 5050" in shown and "A draft is in draft.md" in shown
    assert "$ retinue subagent cancel" in shown and "subagent_closed" in shown
    assert list(cli.folder.iterdir()) == [], "it would be the root of every project below"
    assert cli.json("demo", "--keep")["kept"] is True
    document = cli.json("demo")
    ends = [row["status"] for row in document["subagents"]]
    assert ends == ["completed", "completed", "cancelled"]
    assert {task["state"] for task in cli.json("task", "list")} == {"closed"}


def test_an_interrupted_demo_leaves_no_subagent_running(cli: Cli) -> None:
    process = cli.start("demo", "--keep")
    until(lambda: list(cli.root.glob("tasks/*/agents/dreamer/workspace/draft.md")))
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=BOUND_S)
    (task,) = cli.json("task", "list")
    assert process.returncode == 130 and task["state"] == "closed"
    assert task["counts"]["running"] == 0 and task["counts"]["cancelled"] >= 1


def test_a_demonstration_that_is_broken_off_where_there_is_no_root_leaves_none(cli: Cli) -> None:
    aside = cli.folder / "aside"
    aside.mkdir()
    process = cli.start("demo", env=cli.environment | {"TMPDIR": str(aside)})
    until(lambda: list(aside.glob("*/.retinue/tasks/*/agents/dreamer/workspace/draft.md")))
    (root,) = aside.glob("*/.retinue")
    steward = int((root / "steward.lock").read_text())
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=BOUND_S)
    assert process.returncode == 130 and is_over(steward)
    assert list(aside.iterdir()) == [] and not processes_that_mention(str(aside))


def test_the_version_is_shown(cli: Cli) -> None:
    assert cli.run("--version").startswith("retinue ")


def cli_shell(cli: Cli, line: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", "-c", line],
        cwd=cli.folder,
        env=cli.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _has_socket(pid: int) -> bool:
    try:
        names = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except FileNotFoundError:
        return False
    return any(name.startswith("socket:") for name in names)
