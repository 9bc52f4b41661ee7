"""Teams in real, isolated children, whose models are a script behind the gateway."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from support.roots import Root, root, until
from support.scripted import Heard, Models, Said, answer, call, vote
from support.teams import (
    HANG,
    INITIAL,
    Watched,
    brief,
    models,
    require_sound,
    said_to,
    stage,
    status_of,
    status_path,
    task_of,
    team,
)

__all__ = ["models", "root"]


@pytest.mark.requirement("R150", "R205", "R208", "R235", "R241", "R242", "R243", "R244", "R245")
def test_one_member_answers_and_its_status_tells_everything(root: Root, models: Models) -> None:
    models.script = lambda heard: answer("hello from the model")
    task = task_of(root, models, "solo")
    (result,) = root.run(task, brief(subagent_id="greeter"))
    assert (result["status"], result["answer"]) == ("completed", "hello from the model")
    assert result["token_usage"]["input_tokens"] == 10
    status = status_of(root, task, "greeter")
    require_sound(status)
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
    kept = Path(history["workspacePath"])
    assert (kept / "notes/bio.md").read_text() == "born 1941"
    folder = root.folder(task, result["subagent_id"]) / "full_logs" / history["agentId"]
    assert kept == folder / history["timestamp"] / "workspace"
    assert (kept.parent / "answer.txt").read_text() == "made notes/bio.md"


@pytest.mark.requirement("R227", "R243", "R244")
@pytest.mark.parametrize("size", [3, 7])
def test_members_answer_vote_and_present_and_tell_every_step(
    root: Root, models: Models, size: int
) -> None:
    models.script = team(votes=lambda heard: vote("agent2"))
    names = [f"m{number}" for number in range(1, size + 1)]
    task, name = task_of(root, models, *names), f"team{size}"
    with Watched(status_path(root, task, name)) as watched:
        (result,) = root.run(task, brief(subagent_id=name))
    assert (result["status"], result["answer"]) == ("completed", "presented by m2")
    assert result["token_usage"]["input_tokens"] == 10 * (2 * size + 1)
    last = watched.seen[-1]
    winner = f"{name}_agent_2"
    assert last["results"] == {"winner": winner, "votes": {"agent2.1": size}}
    assert [each["status"] for each in last["agents"].values()] == ["answered"] * size
    assert [each["vote"] for each in last["agents"].values()] == [winner] * size
    assert [each["configured_id"] for each in last["agents"].values()] == names
    steps = [each["coordination"]["completion_percentage"] for each in watched.seen]
    assert steps == sorted(steps) and steps[0] < 50 and steps[-1] == 100
    phases = dict.fromkeys(each["coordination"]["phase"] for each in watched.seen)
    assert list(phases) == ["initial_answer", "enforcement", "presentation"]
    assert until(lambda: root.rows(task)[name]["status"] == "completed")


def test_a_tie_falls_to_the_member_that_was_registered_first(root: Root, models: Models) -> None:
    choice = {"m1": "agent3", "m2": "agent2", "m3": "agent2", "m4": "agent3"}
    models.script = team(votes=lambda heard: vote(choice[heard.model]))
    (result,) = root.run(task_of(root, models, *choice), brief())
    assert (result["status"], result["answer"]) == ("completed", "presented by m2")


def test_a_new_answer_voids_the_votes_and_all_members_look_again(
    root: Root, models: Models
) -> None:
    improved = {"early": 0, "middle": 0, "late": 0}

    def votes(heard: Heard) -> Said:
        improved[heard.model] += "improved" in heard.words
        if improved[heard.model]:
            return vote("agent3")
        if heard.model == "late":
            return Said(calls=answer("improved").calls, until=lambda: asked["early"] > 0)
        asked[heard.model] += 1
        # One votes before the new answer, the other after it and still without having seen it.
        stale = heard.model == "middle"
        return Said(calls=vote("agent1").calls, until=lambda: not stale or improved["late"] > 0)

    asked = {"early": 0, "middle": 0}
    models.script = team(votes=votes)
    task = task_of(root, models, "early", "middle", "late")
    (result,) = root.run(task, brief(subagent_id="again"))
    assert (result["status"], result["answer"]) == ("completed", "presented by late")
    status = status_of(root, task, "again")
    assert status["results"]["votes"] == {"agent3.2": 3}
    assert status["agents"]["again_agent_3"]["answer_count"] == 2
    assert "there is a new answer; read it first" in str(said_to(models, "middle"))


def test_a_member_that_never_votes_is_reminded_and_then_left_out(
    root: Root, models: Models
) -> None:
    def votes(heard: Heard) -> Said:
        return Said(text="hm") if heard.model == "silent" else vote("agent2")

    models.script = team(votes=votes)
    task = task_of(root, models, "silent", "loud", "other")
    (result,) = root.run(task, brief(subagent_id="quiet"))
    assert (result["status"], result["answer"]) == ("completed", "presented by loud")
    seat = status_of(root, task, "quiet")["agents"]["quiet_agent_1"]
    assert seat["status"] == "left" and "neither answered nor voted" in seat["error"]
    assert "Call one of your tools" in str(said_to(models, "silent"))


def test_without_votes_nothing_is_decided(root: Root, models: Models) -> None:
    models.script = team(votes=lambda heard: Said(text="hm"))
    (result,) = root.run(task_of(root, models, "a", "b"), brief())
    assert (result["status"], result["answer"]) == ("partial", "answer of a")
    assert "decided" in result["error"]


@pytest.mark.parametrize("broken", [Said(status=400, text="no such model"), Said(raw=b"data: {")])
def test_a_member_whose_model_fails_leaves_and_the_others_go_on(
    root: Root, models: Models, broken: Said
) -> None:
    models.script = team(
        answers=lambda heard: broken if heard.model == "bad" else answer(heard.model),
        votes=lambda heard: vote("agent3"),
    )
    task = task_of(root, models, "bad", "good", "better")
    (result,) = root.run(task, brief(subagent_id="mixed"))
    assert (result["status"], result["answer"]) == ("completed", "presented by better")
    seat = status_of(root, task, "mixed")["agents"]["mixed_agent_1"]
    assert seat["status"] == "failed" and seat["error"]
    assert "mixed_agent_1 took no further part: " in result["warning"]


def test_where_every_model_fails_the_error_says_why(root: Root, models: Models) -> None:
    models.script = lambda heard: Said(status=400, text=f"no model {heard.model}")
    (result,) = root.run(task_of(root, models, "x", "y"), brief())
    assert (result["status"], result["answer"]) == ("error", None)
    assert "no model x" in result["error"] and "no model y" in result["error"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Said(calls=[("fly", {})]), "there is no tool 'fly'"),
        (Said(calls=[("new_answer", "{no json")]), "not a JSON object"),
        (Said(calls=[("new_answer", "[1]")]), "not a JSON object"),
        (Said(calls=[("new_answer", {"content": 7})]), "content should be a string"),
        (Said(calls=[("new_answer", {})]), "new_answer needs content"),
        (Said(calls=[("new_answer", {"content": "x", "y": 1})]), "takes content; not 'y'"),
        (answer(" \n"), "cannot be empty"),
        (Said(calls=[("read_file", {"path": "a\0b"})]), "NUL"),
        (Said(calls=[("search_files", {"pattern": "("})]), "not a regular expression"),
        (
            Said(calls=[("run_command", {"command": "x", "timeout_seconds": "y"})]),
            "should be a number",
        ),
        (Said(), "Call one of your tools"),
    ],
)
def test_an_impossible_call_is_answered_with_the_possible_ones(
    root: Root, models: Models, asked: Said, told: str
) -> None:
    heard_before = len(models.heard)

    def script(heard: Heard) -> Said:
        return asked if len(models.heard) == heard_before + 1 else answer("now it is right")

    models.script = script
    (result,) = root.run(task_of(root, models, "solo"), brief())
    assert (result["status"], result["answer"]) == ("completed", "now it is right")
    assert told in models.heard[-1].last


def test_a_member_without_a_working_call_is_left_out(root: Root, models: Models) -> None:
    before = len(models.heard)
    models.script = lambda heard: call("fly")
    (result,) = root.run(task_of(root, models, "bird"), brief())
    assert result["status"] == "error" and "nothing that it called" in result["error"]
    assert len(models.heard) - before < 20


def test_a_server_that_does_not_stream_can_be_asked(root: Root, models: Models) -> None:
    message = {"role": "assistant", "content": "in one piece"}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    models.script = lambda heard: Said(raw=json.dumps(whole).encode())
    (result,) = root.run(task_of(root, models, "plain"), brief())
    assert (result["status"], result["answer"]) == ("completed", "in one piece")


def test_plain_words_are_an_answer(root: Root, models: Models) -> None:
    models.script = lambda heard: Said(text="just so")
    (result,) = root.run(task_of(root, models, "plain"), brief())
    assert (result["status"], result["answer"]) == ("completed", "just so")


def test_answers_come_to_an_end(root: Root, models: Models) -> None:
    def votes(heard: Heard) -> Said:
        if heard.model == "eager" and "vote for the best answer now" not in heard.words:
            return answer(f"try {heard.number}")
        return vote("agent1")

    models.script = team(votes=votes)
    task = task_of(root, models, "eager", "calm")
    (result,) = root.run(task, brief(subagent_id="many"))
    assert result["status"] == "completed"
    assert status_of(root, task, "many")["agents"]["many_agent_1"]["answer_count"] == 4


@pytest.mark.requirement("R179", "R207")
@pytest.mark.parametrize("words", [False, True])
def test_without_refinement_the_first_answer_that_is_given_ends_the_team(
    root: Root, models: Models, words: bool
) -> None:
    """Whoever is slower is stopped at once; what it took until then counts."""
    waits: list[str] = []

    def script(heard: Heard) -> Said:
        assert "vote" not in heard.tools and stage(heard) == INITIAL
        if heard.model == "slow" and not waits:
            waits.append("at its second turn")
            return call("write_file", path="made", content="by the slow one")
        if heard.model == "slow":
            waits.append("for ever")
            return HANG
        said = Said(text="first") if words else answer("first")
        return replace(said, until=lambda: len(waits) == 2)

    models.script = script
    task = task_of(root, models, "slow", "quick")
    (result,) = root.run(task, brief(subagent_id="race", refine=False))
    assert (result["status"], result["answer"]) == ("completed", "first")
    assert result["execution_time_seconds"] < 20 and result["completion_percentage"] == 100
    assert result["token_usage"]["output_tokens"] >= 10, "one turn of each at least"
    assert not Path(result["workspace"], "made").exists()
    status = status_of(root, task, "race")
    assert status["results"]["winner"] == "race_agent_2"
    assert status["agents"]["race_agent_1"]["answer_count"] == 0
    assert status["agents"]["race_agent_1"]["token_usage"]["output_tokens"] == 5


@pytest.mark.requirement("R179")
def test_without_refinement_the_others_go_on_when_one_fails(root: Root, models: Models) -> None:
    models.script = lambda heard: (
        Said(status=400, text="no") if heard.model == "bad" else answer("from the other")
    )
    (result,) = root.run(task_of(root, models, "bad", "good"), brief(refine=False))
    assert (result["status"], result["answer"]) == ("completed", "from the other")


@pytest.mark.requirement("R233", "R239")
def test_each_member_has_a_folder_and_the_winners_files_are_the_subagents(
    root: Root, models: Models
) -> None:
    def answers(heard: Heard) -> Said:
        if heard.document["messages"][-1]["role"] == "tool":
            return answer(f"made {heard.model}.md")
        return call("write_file", path=f"{heard.model}.md", content=heard.model)

    looked: list[str] = []

    def votes(heard: Heard) -> Said:
        if heard.document["messages"][-1]["role"] == "tool":
            looked.append(heard.last)
            return vote("agent2")
        where = heard.last.partition("are in ")[2].partition("/<label>")[0]
        return call("read_file", path=f"{where}/agent1.1/one.md")

    models.script = team(answers=answers, votes=votes)
    task = task_of(root, models, "one", "two")
    (result,) = root.run(task, brief(subagent_id="files"))
    workspace = Path(result["workspace"])
    assert looked == ["one", "one"], "members see the files of each other's answers"
    assert {path.name for path in workspace.iterdir()} == {
        *("files_agent_1", "files_agent_2", "snapshots", "temp", "two.md")
    }
    assert (workspace / "snapshots/agent1.1/one.md").read_text() == "one"
    lines = (root.folder(task, "files") / "conversation.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert {each["member"] for each in told} == {"files_agent_1", "files_agent_2"}
    assert {each["role"] for each in told} == {"system", "user", "assistant", "tool"}
