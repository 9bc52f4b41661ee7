"""Teams in real, isolated children, whose models are a script behind the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.roots import Root, Row, root, until
from support.scripted import Heard, Models, Said, answer, call, vote

__all__ = ["root"]


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    with Models(lambda heard: answer("hello")) as models:
        yield models


def brief(text: str = "Say hello", **terms: object) -> Row:
    return {"task": text, "context_paths": [], "max_retries": 0} | terms


def task_of(root: Root, models: Models, *names: str, **options: str) -> str:
    text = models.config(*names, **options)
    return str(root.call("task.create", title="t", config_text=text)["task_id"])


def status_of(root: Root, task: str, subagent: str) -> Row:
    path = root.folder(task, subagent) / "full_logs" / "status.json"
    document: Row = json.loads(path.read_text())
    return document


@pytest.mark.requirement("R150", "R205", "R208", "R235", "R241", "R242", "R243", "R244", "R245")
def test_one_member_answers_and_its_status_tells_everything(root: Root, models: Models) -> None:
    models.script = lambda heard: answer("hello from the model")
    task = task_of(root, models, "solo")
    (result,) = root.run(task, brief(subagent_id="greeter"))
    assert (result["status"], result["answer"]) == ("completed", "hello from the model")
    assert result["token_usage"]["input_tokens"] == 10
    status = status_of(root, task, "greeter")
    assert status["coordination"] == {"phase": "presentation", "completion_percentage": 100}
    assert list(status["agents"]) == ["greeter_agent_1"]
    assert status["results"] == {"winner": "greeter_agent_1", "votes": {}}
    assert status["costs"]["total_output_tokens"] == 5


@pytest.mark.requirement("R146", "R236", "R246")
def test_a_member_works_with_files_and_its_answer_has_a_snapshot(
    root: Root, models: Models
) -> None:
    def script(heard: Heard) -> Said:
        steps = [
            call("write_file", path="notes/bio.md", content="born 1941"),
            call("run_command", command="wc -c < notes/bio.md"),
            call("read_file", path="notes/bio.md"),
            answer("made notes/bio.md"),
        ]
        return steps[heard.number - 1]

    models.script = script
    task = task_of(root, models, "writer")
    (result,) = root.run(task, brief())
    assert result["status"] == "completed", result
    assert Path(result["workspace"], "notes/bio.md").read_text() == "born 1941"
    assert "[exit code 0]" in models.heard[-2].last and "9" in models.heard[-2].last
    assert models.heard[-1].last == "born 1941"
    (history,) = status_of(root, task, result["subagent_id"])["historical_workspaces"]
    assert Path(history["workspacePath"], "notes/bio.md").read_text() == "born 1941"


def test_three_members_answer_vote_and_present(root: Root, models: Models) -> None:
    def script(heard: Heard) -> Said:
        if "was chosen" in heard.last:
            return Said(text=f"presented by {heard.model}")
        if "vote" in heard.tools and "present answers" in heard.words:
            return vote("agent2")
        return answer(f"answer of {heard.model}")

    models.script = script
    task = task_of(root, models, "m1", "m2", "m3")
    (result,) = root.run(task, brief(subagent_id="team"))
    assert (result["status"], result["answer"]) == ("completed", "presented by m2")
    status = status_of(root, task, "team")
    assert status["results"] == {"winner": "team_agent_2", "votes": {"agent2.1": 3}}
    assert [each["status"] for each in status["agents"].values()] == ["voted"] * 3
    assert until(lambda: root.rows(task)["team"]["status"] == "completed")
