"""A team delegates while its steward is killed: the next one carries out what was asked, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.roots import Root, Row, held, holder, until
from support.scripted import Heard, Models, Said, answer, call
from support.teams import models

__all__ = ["models"]

PROMPT = "Build a site"
WORK = {"task": "Write the page", "subagent_id": "page", "context_paths": []}
WAIT = "until [ -e go ]; do sleep 0.02; done"


@pytest.fixture(params=["isolated", "inherited"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def begin(root: Root, models: Models, mode: str) -> str:
    coordination = f"enable_subagents: true\nsubagent_runtime_mode: {mode}"
    config = models.config("boss", coordination=coordination)
    return str(root.call("run.begin", prompt=PROMPT, config_text=config)["task_id"])


def turn(heard: Heard) -> int:
    return sum(each["role"] == "assistant" for each in heard.document["messages"])


def boss(*said: Said) -> tuple[list[str], object]:
    """The root says these in turn, whoever asks; what it was last told comes to the list."""
    told: list[str] = []

    def script(heard: Heard) -> Said:
        if PROMPT not in heard.words:
            if "go on" in heard.words:
                return answer("went on")
            return call("run_command", command=WAIT) if turn(heard) == 0 else answer("wrote it")
        told.append(heard.last)
        return said[min(turn(heard), len(said) - 1)]

    return told, script


def ended(root: Root, task: str) -> Row:
    end: Row = root.call("run.wait", task=task)
    assert end["status"] == "completed", end
    root.sound()
    return end


def test_a_spawn_that_is_waited_for_is_the_same_one_after_a_kill(
    fresh: Root, models: Models, mode: str
) -> None:
    told, models.script = boss(call("spawn_subagents", tasks=[WORK]), answer("built"))
    task = begin(fresh, models, mode)
    home = fresh.folder(task, "page") / "workspace"
    until(lambda: fresh.rows(task).get("page", {}).get("status") == "running")
    until(lambda: turn_of(models, "Write the page") == 0)
    fresh.kill()
    assert fresh.rows(task)["page"]["status"] == "running"
    (home / "go").touch()
    end = ended(fresh, task)
    assert "wrote it" in told[1] and end["answer"] == "built", told
    assert sorted(fresh.rows(task)) == ["page", "root"]
    assert fresh.types(task, "root").count("delegation_granted") == 1


def test_a_spawn_that_finds_no_steward_is_made_of_the_next_one(
    fresh: Root, models: Models, mode: str
) -> None:
    spawn = ("spawn_subagents", {"tasks": [WORK]})
    both = Said(calls=[("run_command", {"command": WAIT}), spawn])
    told, models.script = boss(both, answer("built"))
    task = begin(fresh, models, mode)
    until(lambda: "tool" not in roles(models) and told)
    home = fresh.folder(task, "root") / "workspace"
    until(lambda: "run_command" in conversation(fresh, task))
    fresh.kill()
    (home / "go").touch()
    until(lambda: '"tool"' in conversation(fresh, task))  # the command is over, the spawn is next
    until(lambda: fresh.rows(task).get("page", {}).get("status") == "running")
    (fresh.folder(task, "page") / "workspace" / "go").touch()
    end = ended(fresh, task)
    assert "wrote it" in told[1] and end["answer"] == "built", told
    assert sorted(fresh.rows(task)) == ["page", "root"]


@pytest.mark.parametrize("background", [True, False])
def test_a_spawn_that_was_accepted_and_never_answered_is_not_made_twice(
    fresh: Root, models: Models, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    unnamed = {name: value for name, value in WORK.items() if name != "subagent_id"}
    spawn = call("spawn_subagents", tasks=[unnamed], background=background)
    wait = call("custom_tool__wait_for_background_tool", timeout_seconds=20)
    told, models.script = boss(spawn, wait, answer("built"))
    monkeypatch.setenv("RETINUE_FAILPOINT", "created:2")
    task = begin(fresh, models, "isolated")
    until(lambda: holder(fresh.path) is None)
    monkeypatch.delenv("RETINUE_FAILPOINT")
    fresh.release()
    until(lambda: len(fresh.rows(task)) == 2)
    (name,) = set(fresh.rows(task)) - {"root"}
    until(lambda: (fresh.folder(task, name) / "workspace").exists())
    (fresh.folder(task, name) / "workspace" / "go").touch()
    ended(fresh, task)
    assert any("wrote it" in text for text in told), told
    assert set(fresh.rows(task)) == {"root", name}


def test_a_background_run_ends_wherever_its_steward_was_killed(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after every commit in turn, until one lives to see the end."""
    models.script = lambda heard: answer("hello")

    def ends_after(commit: int) -> bool:
        """Whether a steward that is killed at this commit saw the run's end."""
        with held(tmp_path / f"{commit}" / ".retinue") as root:
            root.path.parent.mkdir()
            monkeypatch.setenv("RETINUE_FAILPOINT", f"committed:{commit}")
            task = begin(root, models, "inherited")
            log = root.task_folder(task) / "events.jsonl"
            until(lambda: holder(root.path) is None or "task.closed" in log.read_text())
            monkeypatch.delenv("RETINUE_FAILPOINT")
            survived = holder(root.path) is not None
            root.release()
            until(lambda: root.call("task.show", task=task)["state"] == "closed")
            assert log.read_text().count("task.closed") == 1
            root.sound()
        return survived

    first = 3  # by then the team is on record
    assert next(number for number in range(first, 100) if ends_after(number)) > first + 2


def test_a_subagent_that_is_continued_goes_on_once_after_a_kill(
    fresh: Root, models: Models, mode: str
) -> None:
    again = call("continue_subagent", subagent_id="page", message="Please go on")
    told, models.script = boss(call("spawn_subagents", tasks=[WORK]), again, answer("built"))
    held = {"it": True}
    plain = models.script

    def script(heard: Heard) -> Said:
        said = plain(heard)
        if "go on" in heard.words and PROMPT not in heard.words:
            return Said(calls=said.calls, until=lambda: not held["it"])
        return said

    models.script = script
    task = begin(fresh, models, mode)
    until(lambda: fresh.rows(task).get("page", {}).get("status") == "running")
    (fresh.folder(task, "page") / "workspace" / "go").touch()
    until(lambda: len(fresh.rows(task)) == 3)
    fresh.kill()
    held["it"] = False
    end = ended(fresh, task)
    assert "went on" in told[2] and end["answer"] == "built", told
    assert len(fresh.rows(task)) == 3


def turn_of(models: Models, words: str) -> int:
    found = [turn(heard) for heard in models.heard if words in heard.words]
    return found[-1] if found else -1


def roles(models: Models) -> list[str]:
    return [each["role"] for each in models.heard[-1].document["messages"]] if models.heard else []


def conversation(root: Root, task: str) -> str:
    path = root.folder(task, "root") / "full_logs" / "conversation.jsonl"
    return path.read_text() if path.exists() else ""
