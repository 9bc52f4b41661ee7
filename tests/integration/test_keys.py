"""Models without a key: refused at creation, or named in the result of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.models import CONFIG
from support.roots import Root, command
from support.scripted import Models, answer
from support.teams import brief, models

__all__ = ["models"]

KEYLESS = "  - {id: big, backend: {type: openai, model: m, api_key_env: NOBODY_SET_IT}}"
PLAN = "goal: g\nsteps: [{id: one, title: t, description: d}]"


def config(agents: str, more: str = "") -> str:
    return CONFIG.format(agents=f"agents:\n{agents}", mode="inherited", more=more)


def test_a_team_without_any_key_is_refused_and_nothing_exists(root: Root) -> None:
    text = config(KEYLESS)
    task = root.call("task.create", title="t", config_text=text)["task_id"]
    before = root.call("task.list")
    for refused in (
        root.refusal("subagent.spawn", task=task, tasks=[brief()]),
        root.refusal("run.begin", prompt="Build a site", config_text=text),
        root.refusal("run.start", plan_text=PLAN, config_text=text),
    ):
        assert refused.code == "no_key" and "NOBODY_SET_IT is not set" in refused.message
        assert "retinue steward stop" in refused.hint
    assert root.call("task.list") == before


@pytest.mark.timeout(60)
def test_a_member_without_a_key_is_named_in_the_result_of_the_others(
    root: Root, models: Models
) -> None:
    models.script = lambda heard: answer("mine")
    text = models.config("small").replace("agents:\n", f"agents:\n{KEYLESS}\n")
    task = root.call("task.create", title="t", config_text=text)["task_id"]
    (spawned,) = root.call("subagent.spawn", task=task, tasks=[brief(subagent_id="both")])[
        "subagents"
    ]
    root.call("subagent.wait_all", task=task)
    result = root.call("subagent.result", task=task, subagent="both")
    assert result["answer"] == "mine"
    for told in (spawned["warning"], result["warning"]):
        assert "big takes no part: NOBODY_SET_IT is not set" in told


@pytest.mark.timeout(60)
def test_a_call_that_is_repeated_after_its_key_was_lost_finds_its_subagents(
    fresh: Root, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.script = lambda heard: answer("mine")
    monkeypatch.setenv("KEY_OF_THE_TEST", "sk-some-key")
    text = models.config("small").replace("model:", "api_key_env: KEY_OF_THE_TEST\n      model:")
    task = fresh.call("task.create", title="t", config_text=text)["task_id"]
    keyed = {"task": task, "tasks": [brief(subagent_id="one")], "key": "k"}
    named = {"task": task, "tasks": [brief(subagent_id="two")], "consumer": "parent"}
    for verb, request in (("subagent.spawn", keyed), ("parent.spawn", named)):
        assert fresh.call(verb, **request, wait=True)["results"][0]["answer"] == "mine"
    fresh.stop()
    monkeypatch.delenv("KEY_OF_THE_TEST")
    for verb, request in (("subagent.spawn", keyed), ("parent.spawn", named)):
        assert fresh.call(verb, **request, wait=True)["results"][0]["answer"] == "mine"
    assert fresh.refusal("subagent.spawn", task=task, tasks=[brief()]).code == "no_key"
    assert set(fresh.rows(task)) == {"one", "two"}


def test_a_replay_needs_no_key(root: Root, tmp_path: Path) -> None:
    more = f"    subagent_traffic: {{mode: replay, folder: {tmp_path}}}"
    task = root.call("task.create", title="t", config_text=config(KEYLESS, more))["task_id"]
    (result,) = root.run(task, brief(max_retries=0))
    assert "record" in result["error"]


COMMAND = "subagent_agents: [{id: coder, backend: {type: command, argv: [/bin/echo, done]}}]"
BESIDE = KEYLESS.replace("}}", f"}}, {COMMAND}}}")


def test_a_configured_command_beside_a_provider_without_its_key_is_refused(root: Root) -> None:
    task = root.call("task.create", title="t", config_text=config(BESIDE))["task_id"]
    plan = root.refusal("run.start", plan_text=PLAN, config_text=config(BESIDE))
    spawn = root.refusal("subagent.spawn", task=task, tasks=[brief()])
    for refused in (plan, spawn):
        assert refused.code == "no_key" and "NOBODY_SET_IT is not set" in refused.message
    assert str(root.task_folder(task) / "task.yaml") in spawn.hint
    assert root.rows(task) == {}
    # A command that is given with the spawn may be one that asks no model.
    (result,) = root.run(task, command("/bin/echo", "done"))
    assert result["status"] == "completed"


@pytest.mark.timeout(60)
def test_a_configured_command_runs_where_a_provider_answers_or_no_model_can_be_reached(
    root: Root, models: Models
) -> None:
    more = "\n" + models.config("small").partition("orchestrator:")[0].partition("agents:\n")[2]
    task = root.call("task.create", title="t", config_text=config(BESIDE + more))["task_id"]
    (result,) = root.run(task, brief())
    assert (result["status"], result["answer"]) == ("completed", "done")
    assert "big does not answer: NOBODY_SET_IT is not set" in result["warning"]
    off = config(BESIDE, "    subagent_network: off\n")
    task = root.call("task.create", title="t", config_text=off)["task_id"]
    (result,) = root.run(task, brief())
    assert (result["answer"], result.get("warning")) == ("done", None)
