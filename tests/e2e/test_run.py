"""`retinue run` as a person types it: a prompt, a team that delegates, what is seen of it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from e2e.test_terminal import ESCAPES, HOSTILE, at_a_terminal
from retinue.core.default_models import KEY_VARIABLES
from support.cli import Cli
from support.roots import until
from support.scripted import Heard, Models, Said, answer, call
from support.teams import HANG, models

__all__ = ["models"]

BOUND_S = 60
ENABLED = "enable_subagents: true\nsubagent_cancel_grace_seconds: [60, 60]"
OURS = re.compile(rb"\[([0-9]+A|J|(0|1|2|3[1-6])m)")  # up to the table, clear it, colours


def configured(cli: Cli, models: Models, more: str = ENABLED) -> tuple[str, ...]:
    (cli.folder / "c.yaml").write_text(models.config("boss", coordination=more))
    return ("run", "--config", "c.yaml", "Build a site")


def delegating(heard: Heard) -> Said:
    """The root gives one part away; the part writes a file and answers with hostile words."""
    turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
    if "Build a site" in heard.words:
        tasks = [{"task": f"Write {HOSTILE}", "subagent_id": "page", "context_paths": []}]
        return call("spawn_subagents", tasks=tasks) if turn == 0 else answer(f"built {HOSTILE}")
    page = call("write_file", path="page.md", content="a page")
    return page if turn == 0 else answer(f"made page.md {HOSTILE}")


@pytest.mark.requirement("R149", "R154")
def test_a_run_says_how_it_ended_to_programs(cli: Cli, models: Models) -> None:
    models.script = delegating
    end = cli.json(*configured(cli, models))
    assert {"task_id", "run_id", "status", "answer", "results", "summary"} <= set(end)
    assert end["status"] == "completed" and end["answer"].startswith("built")
    (page,) = end["results"]
    assert (page["subagent_id"], page["status"]) == ("page", "completed")
    assert (end["summary"]["total"], end["summary"]["completed"]) == (1, 1)
    assert Path(page["workspace"], "page.md").read_text() == "a page"
    assert cli.json("task", "show", end["task_id"])["state"] == "closed"
    assert cli.json("verify")["ok"]


def test_exit_codes_say_how_a_run_ended(cli: Cli, models: Models) -> None:
    models.script = lambda heard: Said(status=400, text="no such model")
    words = configured(cli, models)
    end = cli.json(*words, code=1)
    assert end["status"] == "failed" and end["answer"] is None
    assert "no such model" in end["root"]["error"] and end["summary"]["total"] == 0
    models.script = lambda heard: call("ask", questions=["Which colour?"])
    shown = cli.run(*words, code=1)
    assert "question: Which colour?" in shown and ": blocked" in shown
    assert "to answer: retinue gate approve " in shown
    for wrong in (("run",), ("run", " "), ("run", "--config", "none.yaml", "x")):
        cli.run(*wrong, code=2)
    for option in ("--apply", "--include-dirty"):
        refused = cli.json("run", option, "Build a site", code=2)["error"]
        assert (refused["code"], option in refused["message"]) == ("usage", True)
    (cli.folder / "c.yaml").write_text("agents: [{id: a, backend: {type: openai, modell: x}}]")
    assert "model" in cli.json(*words, code=2)["error"]["message"]


def test_a_key_that_the_steward_does_not_know_is_told_before_the_local_model_answers(
    cli: Cli,
) -> None:
    for name in KEY_VARIABLES:
        cli.environment.pop(name, None)
    cli.task()
    cli.environment["OPENAI_API_KEY"] = "sk-set-later"
    refused = cli.json("run", "Build a site", code=1)["error"]
    assert refused["code"] == "no_key" and "OPENAI_API_KEY is set here" in refused["message"]
    assert "retinue steward stop" in refused["hint"] and "sk-set-later" not in str(refused)
    assert len(cli.json("task", "list")) == 1, "nothing was begun"


def test_the_steps_of_a_plan_are_not_left_to_the_local_model_for_want_of_a_known_key(
    cli: Cli, tmp_path: Path
) -> None:
    for name in KEY_VARIABLES:
        cli.environment.pop(name, None)
    cli.task()
    cli.environment["OPENAI_API_KEY"] = "sk-set-later"
    plan = tmp_path / "plan.yaml"
    step = "goal: g\nsteps: [{{id: one, title: t, integration: none, {}}}]"
    plan.write_text(step.format("description: d"))
    assert cli.json("run", "--plan", str(plan), code=1)["error"]["code"] == "no_key"
    plan.write_text(step.format("command: [echo, x]"))
    assert cli.json("run", "--plan", str(plan))["status"] == "completed", "which needs no model"


def test_background_runs_are_left_running(cli: Cli, models: Models) -> None:
    models.script = delegating
    started = cli.json(*configured(cli, models), "--background")
    assert started["status"] == "running"
    told = cli.run("timeline", started["task_id"], "--follow")
    assert "task.closed" in told and "page closed" in told


def test_a_run_is_cancelled_and_closed_when_its_command_is_killed(cli: Cli, models: Models) -> None:
    models.script = lambda heard: HANG
    heard = len(models.heard)
    process = cli.start(*configured(cli, models))
    until(lambda: len(models.heard) > heard, BOUND_S)
    process.kill()
    process.communicate(timeout=BOUND_S)
    (task,) = cli.json("task", "list")
    assert "its caller is gone" in cli.run("timeline", task["task_id"], "--follow")
    assert cli.json("subagent", "show", task["task_id"], "root")["status"] == "cancelled"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_cancels_the_run_and_twice_kills_it(cli: Cli, models: Models, times: int) -> None:
    """What waits for ever ends at SIGINT; what ignores that, only at the second Ctrl-C."""
    stubborn = 'trap "" INT TERM; touch ready; while :; do sleep 1; done'

    def script(heard: Heard) -> Said:
        turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
        if "Build a site" in heard.words:
            tasks = [{"task": "Wait", "subagent_id": "page", "context_paths": []}]
            return call("spawn_subagents", tasks=tasks)
        if turn == 0:
            return call("write_file", path="page.md", content="half a page")
        return HANG if times == 1 else call("run_command", command=stubborn)

    models.script = script
    process = cli.start("--json", *configured(cli, models))
    try:
        wanted = "page.md" if times == 1 else "ready"
        until(lambda: list(cli.root.glob(f"tasks/*/agents/page/workspace/{wanted}")), BOUND_S)
        process.send_signal(signal.SIGINT)
        if times == 2:
            until(lambda: list(cli.root.glob("tasks/*/events.jsonl")) and _asked(cli))
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=BOUND_S)
    finally:
        process.kill()
    assert process.returncode == 130, (out, err)
    end = json.loads(out)
    assert end["status"] in ("failed", "cancelled") and end["root"]["status"] == "cancelled"
    teams = [each["token_usage"] for each in (end["root"], *end["results"])]
    assert end["root"]["token_usage"]["input_tokens"] > 0
    shown = cli.json("task", "show", end["task_id"])["metrics"]["totals"]
    assert shown["input_tokens"] == sum(each["input_tokens"] for each in teams)
    assert shown["output_tokens"] == sum(each["output_tokens"] for each in teams)
    (page,) = end["results"]
    assert page["status"] == "cancelled"
    assert Path(page["workspace"], "page.md").read_text() == "half a page"


def _asked(cli: Cli) -> bool:
    (log,) = cli.root.glob("tasks/*/events.jsonl")
    return "agent.cancel_requested" in log.read_text()


def test_the_view_at_a_terminal_prints_only_its_own_escape_sequences(
    cli: Cli, models: Models
) -> None:
    models.script = delegating
    configured(cli, models)
    config, root = str(cli.folder / "c.yaml"), str(cli.root)
    said = at_a_terminal("--root", root, "run", "--config", config, "Build a site")
    assert all(OURS.fullmatch(found) for found in ESCAPES.findall(said)), said
    assert b"\x07" not in said and b"\x9b" not in said
    last = said.decode().rpartition("subagent  ")[2]
    for name in ("root", "page"):
        (row,) = [line for line in last.splitlines() if line.startswith(f"{name} ")][:1]
        assert "completed" in row and "100%" in row and "$0.0000" in row, row
    assert len(re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", row)) < 80


def test_without_a_terminal_only_the_end_is_told(cli: Cli, models: Models) -> None:
    models.script = delegating
    process = cli.start(*configured(cli, models))
    out, err = process.communicate(timeout=BOUND_S)
    assert (process.returncode, err) == (0, "")
    assert "page  result: completed" in out and "built" in out and "\x1b" not in out
    assert "files: " in out
    (task,) = cli.json("task", "list")
    sums = cli.json("task", "show", task["task_id"])["metrics"]["totals"]
    spent = f"{sums['input_tokens']} + {sums['output_tokens']} tokens"
    assert f": succeeded  ({spent}, $" in out.splitlines()[-1]
    assert spent in cli.run("task", "show", task["task_id"])


@pytest.mark.requirement("R248")
def test_models_without_a_known_price_are_named_where_costs_are_told(
    cli: Cli, models: Models
) -> None:
    cli.environment["OPENAI_API_KEY"] = "a-key"  # a server that wants a key sends a bill
    models.script = delegating
    words = configured(cli, models)
    config = cli.folder / "c.yaml"
    keyed = "type: chatcompletion\n      api_key_env: OPENAI_API_KEY"
    config.write_text(config.read_text().replace("type: chatcompletion", keyed))
    out = cli.run(*words)
    (task,) = cli.json("task", "list")
    assert out.splitlines()[-1].endswith(" tokens, no price known for boss)")
    summary = cli.root / "tasks" / task["task_id"] / "metrics_summary.json"
    metrics = json.loads(summary.read_text())
    assert metrics["totals"]["unpriced_models"] == metrics["subagents"]["unpriced_models"]
    assert metrics["totals"]["unpriced_models"] == ["boss"]
    assert "no price known for" in cli.run("subagent", "show", task["task_id"], "page")
