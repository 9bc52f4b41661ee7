"""What members may do, what they are refused, and how others speak with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.roots import Root, Row, root, until
from support.scripted import Heard, Models, Said, answer, call, vote
from support.teams import (
    HANG,
    PRESENTATION,
    brief,
    in_turn,
    models,
    said_to,
    status_of,
    task_of,
    team,
)

__all__ = ["models", "root"]

INHERITED = "subagent_runtime_mode: inherited"
EVERY_TOOL = {
    *("read_file", "write_file", "edit_file", "list_files", "search_files", "run_command"),
    *("copy_files_batch", "ask", "new_answer"),
}


def denials(root: Root, task: str, subagent: str, kind: str = "agent.tool_denied") -> list[Row]:
    events = root.events(task, subagent)
    return [event["payload"] for event in events if event["type"] == kind]


@pytest.mark.requirement("R101", "R141")
def test_a_tool_that_the_contract_does_not_grant_is_refused_and_on_record(
    root: Root, models: Models
) -> None:
    told = in_turn(
        models,
        call("run_command", command="touch made"),
        call("write_file", path="made", content="x"),
        call("list_files"),
        answer("only looked"),
    )
    task = task_of(root, models, "curious")
    tools = ["list_files", "read_file"]
    (result,) = root.run(task, brief(subagent_id="reader", allowed_tools=tools))
    assert (result["status"], result["answer"]) == ("completed", "only looked")
    assert set(models.heard[-1].tools) == {"list_files", "read_file", "new_answer"}
    assert told[1].startswith("refused: run_command is not allowed") and "read_file" in told[1]
    assert told[2].startswith("refused: write_file") and told[3] == "no files"
    assert [each["tool"] for each in denials(root, task, "reader")] == ["run_command", "write_file"]
    assert not Path(result["workspace"], "made").exists()


@pytest.mark.requirement("R101")
def test_tools_that_nothing_would_hold_a_command_to_are_refused(root: Root) -> None:
    config = "agents: [{id: runs, backend: {type: command, argv: [sh, -c, 'cat $RETINUE_BRIEF']}}]"
    task = str(root.call("task.create", title="t", config_text=config)["task_id"])
    own = {"argv": ["/bin/echo", "hello"], "context_paths": []}
    before = root.state()
    for work in (own, brief("Say hello")):
        given = work | {"allowed_tools": ["read_file"]}
        refused = root.refusal("subagent.spawn", task=task, tasks=[work, given])
        assert (refused.code, refused.exit_code) == ("tools_not_enforced", 2)
        assert "read_file" in refused.message and "leave the tools out" in refused.hint
    assert root.state() == before
    (result,) = root.run(task, own | {"allowed_tools": [], "subagent_id": "bare"})
    assert result["answer"] == "hello"
    hands_on = own | {"allowed_tools": ["read_file"], "max_delegation_depth": 1}
    (result,) = root.run(task, hands_on)
    assert result["answer"] == "hello"


@pytest.mark.requirement("R101")
def test_a_coding_agent_is_run_with_the_words_that_hold_it_to_its_tools(root: Root) -> None:
    agent = root.path.parent / "claude"
    agent.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    agent.chmod(0o755)
    asked = [str(agent), "-p", "Look"]
    config = f"agents: [{{id: looks, backend: {{type: command, argv: {json.dumps(asked)}}}}}]"
    task = str(root.call("task.create", title="t", config_text=config)["task_id"])
    lent = {"context_paths": [str(agent)], "allowed_tools": ["read_file", "search_files"]}
    own = {"argv": asked, "subagent_id": "own"} | lent
    (by_argv, by_config) = root.run(task, own, brief("Look") | {"subagent_id": "usual"} | lent)
    words = ["--tools=Read,Grep", "--allowedTools=Read,Grep"]
    words += ["--strict-mcp-config", "--setting-sources=", "-p", "Look"]
    for result in (by_argv, by_config):
        assert result["answer"].splitlines() == words, result
        contract = json.loads(
            Path(root.folder(task, result["subagent_id"]), "contract.json").read_text()
        )
        assert contract["command"] == [str(agent), *words]
        assert contract["permissions"]["allowed_tools"] == lent["allowed_tools"]
    refused = root.refusal("subagent.spawn", task=task, tasks=[own | {"allowed_tools": ["ask"]}])
    assert refused.code == "tools_not_enforced" and "claude has no tool for ask" in refused.message


@pytest.mark.requirement("R101")
def test_without_any_tool_there_is_only_the_answer(root: Root, models: Models) -> None:
    told = in_turn(models, call("read_file", path="x"), answer("nothing to do it with"))
    (result,) = root.run(task_of(root, models, "bare"), brief(allowed_tools=[]))
    assert result["success"] and models.heard[-1].tools == ["new_answer"]
    assert told[1].startswith("refused: read_file")


def test_a_team_has_every_tool_where_nothing_is_said(root: Root, models: Models) -> None:
    in_turn(models, answer("x"))
    root.run(task_of(root, models, "all"), brief())
    assert set(models.heard[-1].tools) == EVERY_TOOL


@pytest.mark.requirement("R104", "R142", "R177")
@pytest.mark.parametrize("tool", ["spawn_subagents", "list_subagents", "submit_plan"])
def test_a_subagent_cannot_spawn_subagents_and_each_try_is_recorded_with_its_depth(
    root: Root, models: Models, tool: str
) -> None:
    told = in_turn(models, call(tool, tasks=[]), answer("alone then"))
    task = task_of(root, models, "lonely", coordination="enable_subagents: true")
    (result,) = root.run(task, brief(subagent_id="leaf"))
    assert result["success"] and tool not in models.heard[-1].tools
    assert told[1].startswith("refused: delegation disabled by contract; there are: read_file")
    assert not denials(root, task, "leaf")
    (denied,) = denials(root, task, "leaf", "agent.delegation_denied")
    assert (denied["depth"], denied["reason"]) == (1, "delegation disabled by contract")
    assert (denied["member"], denied["tool"]) == ("leaf_agent_1", tool)
    assert list(root.rows(task)) == ["leaf"]


@pytest.mark.requirement("R100")
@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_files_outside_can_be_neither_read_nor_written(
    root: Root, models: Models, tmp_path: Path, mode: str
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    project = root.path.parent
    given = project / f"given-{mode}"
    given.mkdir()
    (given / "page.md").write_text("a page")
    (given / "out").symlink_to(tmp_path)
    told = in_turn(
        models,
        call("read_file", path=str(secret)),
        call("write_file", path=str(tmp_path / "new.txt"), content="x"),
        call("write_file", path="../../escape.txt", content="x"),
        call("write_file", path=str(given / "page.md"), content="changed"),
        call("read_file", path=str(given / "out" / "secret.txt")),
        call("copy_files_batch", copies=[{"source": str(secret), "target": "copy"}]),
        call("read_file", path=str(given / "page.md")),
        call("copy_files_batch", copies=[{"source": str(given), "target": "."}]),
        answer("tried"),
    )
    task = task_of(root, models, "curious", coordination=f"subagent_runtime_mode: {mode}")
    work = brief(subagent_id="nosy", context_paths=[str(given)])
    (result,) = root.run(task, work)
    assert result["status"] == "completed", result
    assert [text.partition(":")[0] for text in told[1:7]] == ["refused"] * 6, told
    assert told[7] == "a page" and told[8].startswith("copied 1 files")
    assert Path(result["workspace"], "page.md").read_text() == "a page"
    assert not (tmp_path / "new.txt").exists() and (given / "page.md").read_text() == "a page"
    assert len(denials(root, task, "nosy")) == 6


def test_a_command_is_bounded_in_time_and_output(root: Root, models: Models) -> None:
    told = in_turn(
        models,
        call("run_command", command="sleep 60 & sleep 60", timeout_seconds=0.3),
        call("run_command", command="yes | head -c 200000"),
        call("run_command", command="exit 3"),
        answer("ran"),
    )
    (result,) = root.run(task_of(root, models, "runner"), brief())
    assert result["success"] and result["execution_time_seconds"] < 20
    assert told[1] == "[stopped after 0.3 seconds]"
    assert "170000 bytes left out" in told[2] and told[3] == "[exit code 3]"


@pytest.mark.parametrize("verb", ["continue", "approve"])
def test_a_question_stops_the_team_and_its_answer_goes_on_with_the_conversation(
    root: Root, models: Models, verb: str
) -> None:
    told = in_turn(
        models,
        call("write_file", path="draft.md", content="half"),
        call("ask", questions=["Which colour?", " "]),
        answer("blue it is"),
    )
    task = task_of(root, models, "asker")
    (result,) = root.run(task, brief("Paint it", subagent_id="painter"))
    assert (result["status"], result["questions"]) == ("blocked", ["Which colour?"])
    if verb == "continue":
        root.call("subagent.continue", task=task, subagent="painter", message="Blue, please")
    else:
        (gate,) = root.call("gate.list", task=task)
        root.call("gate.approve", task=task, gate=gate["gate_id"], answer="Blue, please")
    until(lambda: root.rows(task)["painter"]["state"] == "closed")
    result = root.call("subagent.result", task=task, subagent="painter")
    assert (result["status"], result["answer"]) == ("completed", "blue it is"), result
    assert result["token_usage"]["input_tokens"] == 30, "of both attempts"
    said = said_to(models, "asker")
    assert [turn["role"] for turn in said] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "user")
    ]
    assert said[1]["content"] == "Paint it" and "Blue, please" in told[2]
    assert "Paint it" not in told[2], "what it knows is not said twice"
    assert Path(result["workspace"], "draft.md").read_text() == "half"


def test_questions_of_one_turn_are_all_asked(root: Root, models: Models) -> None:
    asked = ("Which colour?", "How big?")
    in_turn(models, Said(calls=[("ask", {"questions": [each]}) for each in asked]))
    (result,) = root.run(task_of(root, models, "asker"), brief())
    assert (result["status"], result["questions"]) == ("blocked", list(asked))


def test_an_empty_question_does_not_block(root: Root, models: Models) -> None:
    told = in_turn(models, call("ask", questions=[" "]), answer("never mind"))
    (result,) = root.run(task_of(root, models, "asker"), brief())
    assert result["success"] and "at least one question" in told[1]


def test_a_message_reaches_a_running_member_at_its_next_turn(root: Root, models: Models) -> None:
    sent = {"it": False}
    told = in_turn(
        models,
        Said(calls=call("list_files").calls, until=lambda: sent["it"]),
        answer("heard"),
    )
    task = task_of(root, models, "listener")
    root.spawn(task, brief(subagent_id="ear"))
    until(lambda: told)
    root.call("subagent.send", task=task, subagent="ear", message="Mind the gap")
    sent["it"] = True
    until(lambda: root.rows(task)["ear"]["state"] == "closed")
    assert "Mind the gap" in told[1] and "Mind the gap" not in told[0]
    assert "message_sent" in " ".join(root.types(task, "ear"))


def test_a_message_reaches_the_winner_while_it_presents(root: Root, models: Models) -> None:
    told: list[str] = []
    sent = {"it": False}

    def words(heard: Heard) -> Said:
        told.append(heard.words)
        looks = Said(calls=call("list_files").calls, until=lambda: sent["it"])
        return looks if len(told) == 1 else Said(text="presented")

    models.script = team(answers=lambda heard: answer(heard.model), words=words)
    task = task_of(root, models, "one", "two")
    root.spawn(task, brief(subagent_id="pair"))
    until(lambda: told)
    root.call("subagent.send", task=task, subagent="pair", message="Mind the gap")
    sent["it"] = True
    until(lambda: root.rows(task)["pair"]["state"] == "closed")
    assert "Mind the gap" in told[1] and "Mind the gap" not in told[0]
    assert root.call("subagent.result", task=task, subagent="pair")["answer"] == "presented"


def test_a_closed_one_goes_on_in_its_workspace_with_its_conversation(
    root: Root, models: Models
) -> None:
    told = in_turn(
        models,
        call("write_file", path="page.md", content="one"),
        answer("wrote page.md"),
        call("read_file", path="page.md"),
        answer("it says one"),
    )
    task = task_of(root, models, "writer")
    (first,) = root.run(task, brief("Write it", subagent_id="page"))
    row = root.call("subagent.continue", task=task, subagent="page", message="Read it again")
    name = row["subagent_id"]
    until(lambda: root.rows(task)[name]["state"] == "closed")
    result = root.call("subagent.result", task=task, subagent=name)
    assert (result["status"], result["answer"]) == ("completed", "it says one")
    assert result["workspace"] == first["workspace"]
    assert told[2] == "Read it again" and told[3] == "one"
    roles = [turn["role"] for turn in said_to(models, "writer")]
    assert roles == [
        *("system", "user", "assistant", "tool", "assistant", "tool"),
        *("user", "assistant", "tool"),
    ]
    lines = (root.folder(task, name) / "conversation.jsonl").read_text().splitlines()
    assert [json.loads(line)["role"] for line in lines].count("assistant") == 4


def test_a_budget_that_is_used_up_ends_the_team_with_its_last_words(
    root: Root, models: Models
) -> None:
    listing = call("list_files").calls
    in_turn(
        models, Said(text="I looked", calls=listing), Said(text="as far as I got", calls=listing)
    )
    task = task_of(root, models, "spender", coordination="subagent_budget: {turns: 2}")
    (result,) = root.run(task, brief(subagent_id="poor"))
    assert (result["status"], result["answer"]) == ("partial", "as far as I got"), result
    assert "budget" in result["error"]
    said = (root.folder(task, "poor") / "full_logs" / "status.json").read_text()
    assert "budget exceeded" in json.loads(said)["agents"]["poor_agent_1"]["error"]


def test_a_member_that_asks_while_voting_answers_again_after_the_reply(
    root: Root, models: Models
) -> None:
    told: list[str] = []

    def votes(heard: Heard) -> Said:
        if "Blue" not in heard.words:
            return call("ask", questions=["Which colour?"]) if heard.model == "one" else HANG
        if heard.last.startswith("These are the present answers"):
            return vote("agent2")
        told.append(heard.last)
        return answer(heard.model) if heard.last.startswith("error") else vote("agent2")

    models.script = team(answers=lambda heard: answer(heard.model), votes=votes)
    task = task_of(root, models, "one", "two")
    (result,) = root.run(task, brief(subagent_id="pair"))
    assert (result["status"], result["questions"]) == ("blocked", ["Which colour?"])
    root.call("subagent.continue", task=task, subagent="pair", message="Blue, please")
    until(lambda: root.rows(task)["pair"]["state"] == "closed")
    result = root.call("subagent.result", task=task, subagent="pair")
    assert (result["status"], result["answer"]) == ("completed", "presented by two")
    refused = [each for each in told if each.startswith("error")]
    assert len(refused) == 2 and all("call new_answer" in each for each in refused)


@pytest.mark.parametrize(
    "late", [call("ask", questions=["Which?"]), answer("another"), vote("agent1")]
)
def test_a_presenting_member_has_no_other_tools(root: Root, models: Models, late: Said) -> None:
    told: list[Heard] = []

    def words(heard: Heard) -> Said:
        told.append(heard)
        return late if len(told) == 1 else Said(text="presented")

    models.script = team(votes=lambda heard: vote("agent2"), words=words)
    task = task_of(root, models, "one", "two")
    (result,) = root.run(task, brief(subagent_id="pair"))
    assert (result["status"], result["answer"]) == ("completed", "presented")
    assert not {"ask", "new_answer", "vote"} & set(told[0].tools)
    assert told[1].last.startswith("refused: your answer was chosen")
    status = status_of(root, task, "pair")
    assert status["results"] == {"winner": "pair_agent_2", "votes": {"agent2.1": 2}}
    assert status["coordination"]["phase"] == PRESENTATION
