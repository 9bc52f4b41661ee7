"""A run that a team is started with: it delegates, takes what comes back, and answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.roots import Root, Row, root, sh, until
from support.scripted import Heard, Models, Said, answer, call
from support.teams import HANG, models

__all__ = ["models", "root"]

ENABLED = "enable_subagents: true"


def run(root: Root, models: Models, *, coordination: str = ENABLED) -> Row:
    config = models.config("boss", coordination=coordination)
    started = root.call("run.begin", prompt="Build a site", config_text=config)
    ended: Row = root.call("run.wait", task=started["task_id"])
    return ended


def is_root(heard: Heard) -> bool:
    return "Build a site" in heard.words


@pytest.mark.requirement("R147", "R149", "R152", "R155", "R169", "R170", "R275")
def test_a_root_team_delegates_takes_the_files_and_answers(root: Root, models: Models) -> None:
    def script(heard: Heard) -> Said:
        if not is_root(heard):
            if heard.document["messages"][-1]["role"] == "tool":
                return answer("made page.md")
            return call("write_file", path="page.md", content="a page")
        turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
        if turn == 0:
            tasks = [
                {"task": "Write the first", "subagent_id": "one", "context_paths": []},
                {"task": "Write the second", "subagent_id": "two", "context_paths": ["./"]},
            ]
            return call("spawn_subagents", tasks=tasks)
        if turn == 1:
            agents = root.path / "tasks" / tasks_of(root)[-1] / "agents"
            copies = [
                {"source": f"{agents}/one/workspace/page.md", "target": "one.md"},
                {"source": f"{agents}/two/workspace", "target": "two"},
            ]
            return call("copy_files_batch", copies=copies)
        return answer("the site is built")

    models.script = script
    ended = run(root, models)
    assert (ended["status"], ended["answer"]) == ("completed", "the site is built"), ended
    assert [each["status"] for each in ended["results"]] == ["completed", "completed"]
    workspace = Path(ended["root"]["workspace"])
    assert (workspace / "one.md").read_text() == "a page"
    assert (workspace / "two" / "page.md").read_text() == "a page"
    metrics = json.loads((root.task_folder(ended["task_id"]) / "metrics_summary.json").read_text())
    assert metrics["subagents"]["total_subagents"] == 2
    assert metrics["subagents"]["total_input_tokens"] == 40
    lead = ended["root"]["token_usage"]
    assert lead["input_tokens"] == 30
    assert metrics["totals"]["input_tokens"] == 70
    written = metrics["subagents"]["total_output_tokens"] + lead["output_tokens"]
    assert metrics["totals"]["output_tokens"] == written
    assert ended["metrics"] == metrics
    assert root.call("task.show", task=ended["task_id"])["metrics"] == metrics


def tasks_of(root: Root) -> list[str]:
    return [each["task_id"] for each in reversed(root.call("task.list"))]


@pytest.mark.requirement("R123", "R147")
def test_a_run_without_a_waiting_client_ends_by_itself(root: Root, models: Models) -> None:
    models.script = lambda heard: answer("hello")
    config = models.config("boss", coordination=ENABLED)
    task = root.call("run.begin", prompt="Build a site", config_text=config)["task_id"]
    until(lambda: root.call("task.show", task=task)["state"] == "closed")
    assert [each["type"] for each in root.events(task)][-2:] == ["run.ended", "task.closed"]
    assert root.call("run.wait", task=task)["status"] == "completed"


def asks_for_a_colour(heard: Heard) -> Said:
    asked = call("ask", questions=["Which colour?"])
    return answer("it is blue") if "Blue." in heard.words else asked


def test_a_run_whose_team_asks_stays_open_and_ends_after_the_answer(
    root: Root, models: Models
) -> None:
    models.script = asks_for_a_colour
    config = models.config("boss", coordination=ENABLED)
    task = root.call("run.begin", prompt="Build a site", config_text=config)["task_id"]
    assert root.call("run.wait", task=task)["outcome"] == "blocked"
    assert root.call("task.show", task=task)["state"] == "open"
    root.call("gate.approve", task=task, gate="root-1", answer="Blue.")
    until(lambda: root.call("task.show", task=task)["state"] == "closed")
    assert root.call("run.wait", task=task)["answer"] == "it is blue"


def test_a_team_that_asks_is_answered_while_others_have_every_slot(
    root: Root, models: Models
) -> None:
    models.script = asks_for_a_colour
    config = models.config("boss", coordination=f"{ENABLED}\nsubagent_max_concurrent: 1")
    task = root.call("run.begin", prompt="Build a site", config_text=config)["task_id"]
    assert root.call("run.wait", task=task)["outcome"] == "blocked"
    root.spawn(task, sh("sleep 100", subagent_id="busy"))
    root.call("gate.approve", task=task, gate="root-1", answer="Blue.")
    until(lambda: root.rows(task)["root"]["status"] == "completed")
    root.call("subagent.cancel", task=task, subagent="busy")


@pytest.mark.requirement("R271")
def test_without_subagents_enabled_there_is_no_tool_to_spawn_any(
    root: Root, models: Models
) -> None:
    seen: list[list[str]] = []

    def script(heard: Heard) -> Said:
        seen.append(heard.tools)
        return answer("alone")

    models.script = script
    ended = run(root, models, coordination="enable_subagents: false")
    assert ended["answer"] == "alone"
    assert "new_answer" in seen[0] and "spawn_subagents" not in seen[0]


@pytest.mark.requirement("R255")
def test_background_results_come_with_the_next_tool_answer(root: Root, models: Models) -> None:
    told: list[str] = []

    def script(heard: Heard) -> Said:
        if not is_root(heard):
            return answer("found it")
        turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
        told.append(heard.last)
        if turn == 0:
            tasks = [{"task": "Look", "subagent_id": "scout", "context_paths": []}]
            return call("spawn_subagents", tasks=tasks, background=True)
        if turn == 1:
            return call("custom_tool__wait_for_background_tool", timeout_seconds=30)
        if turn == 2:
            return call("list_subagents")
        return answer("done")

    models.script = script
    ended = run(root, models)
    assert ended["answer"] == "done"
    assert "found it" in told[2] and "found it" not in told[3]


@pytest.mark.requirement("R258")
def test_a_message_interrupts_the_wait_of_its_recipient(root: Root, models: Models) -> None:
    told: list[str] = []

    def script(heard: Heard) -> Said:
        if not is_root(heard):
            return HANG
        told.append(heard.words)
        turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
        if turn == 0:
            tasks = [{"task": "Look", "subagent_id": "scout", "context_paths": []}]
            return call("spawn_subagents", tasks=tasks, background=True)
        if turn == 1:
            return call("custom_tool__wait_for_background_tool", timeout_seconds=600)
        return answer("as you like")

    models.script = script
    config = models.config("boss", coordination=ENABLED)
    task = root.call("run.begin", prompt="Build a site", config_text=config)["task_id"]
    until(lambda: len(told) > 1)
    root.call("subagent.send", task=task, subagent="root", message="Leave the scout alone.")
    until(lambda: len(told) > 2, 10)
    interrupted, message = "interrupted: there is a message for you", "Leave the scout alone."
    assert 0 < told[2].find(interrupted) < told[2].find(message)
    assert root.call("run.wait", task=task)["answer"] == "as you like"


@pytest.mark.requirement("R123")
def test_a_failed_subagent_fails_the_run_and_the_answer_is_still_there(
    root: Root, models: Models
) -> None:
    def script(heard: Heard) -> Said:
        if not is_root(heard):
            return Said(status=400, text="no such model")
        turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
        if turn == 0:
            tasks = [{"task": "Fail", "subagent_id": "bad", "context_paths": []}]
            return call("spawn_subagents", tasks=tasks)
        return answer("one of them failed")

    models.script = script
    ended = run(root, models)
    assert (ended["status"], ended["answer"]) == ("failed", "one of them failed")
    (bad,) = ended["results"]
    assert bad["status"] == "error" and "no such model" in bad["error"]


@pytest.mark.requirement("R199")
@pytest.mark.parametrize("active", [True, False])
def test_an_evaluation_without_transformative_changes_suggests_novelty_where_it_is_active(
    root: Root, models: Models, active: bool
) -> None:
    told: list[str] = []

    def script(heard: Heard) -> Said:
        if not is_root(heard):
            return answer("All passed.\n\nTransformative changes: 0")
        turn = sum(each["role"] == "assistant" for each in heard.document["messages"])
        told.append(heard.last)
        if turn == 0:
            tasks = [
                {
                    "task": "Compare with `git diff HEAD~1`: run `pytest -q` on both",
                    "subagent_id": "judge",
                    "subagent_type": "evaluator",
                    "context_paths": [],
                }
            ]
            return call("spawn_subagents", tasks=tasks)
        return answer("done")

    models.script = script
    types = "[evaluator, novelty]" if active else "[evaluator]"
    run(root, models, coordination=f"{ENABLED}\nsubagent_types: {types}")
    assert ("type novelty" in told[1]) == active, told[1]
