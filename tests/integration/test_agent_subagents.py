"""An agent that speaks ACP as a subagent: a scripted program whose model is a script, too."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.roots import Root, Row, held, until
from support.scripted import Heard, Models, Said, acp_member, answer, call, vote

BOUND_S = 20
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    with pytest.MonkeyPatch.context() as patch, held(tmp_path_factory.mktemp("p") / ".r") as root:
        # The program's first line asks for python3; let it be one that every child is shown.
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        yield root


@pytest.fixture
def models() -> Iterator[Models]:
    with Models(lambda heard: Said(text="hello")) as models:
        yield models


def create(root: Root, models: Models, *members: Row, **coordination: Any) -> str:
    """A task with these members; the first is `ours` unless others are given."""
    url = f"http://127.0.0.1:{models.port}/v1"
    provider = {"type": "chatcompletion", "model": "m", "base_url": url}
    terms = {"subagent_min_timeout": 0.1, "subagent_cancel_grace_seconds": [0.5, 0.3]}
    config = {
        "agents": list(members) or [acp_member("ours")],
        "providers": [{"id": "p", "backend": provider}],
        "orchestrator": {"coordination": terms | coordination},
    }
    answer = root.call("task.create", title="t", config_text=json.dumps(config))
    return str(answer["task_id"])


def brief(task: str = "go", **terms: Any) -> Row:
    fixed = {"context_paths": [], "max_retries": 0, "timeout_seconds": 30, "subagent_id": "s"}
    return {"task": task, "agent": "ours"} | fixed | terms


def attend(root: Root, task: str, subagent: str = "s") -> Row:
    result: Row = root.call("subagent.attend", task=task, subagent=subagent)
    return result


def payloads(root: Root, task: str, kind: str) -> list[Row]:
    return [each["payload"] for each in root.events(task) if each["type"] == kind]


def in_order(*replies: Said) -> Any:
    """Each request of a model is answered by the next of these."""
    return lambda heard: replies[min(heard.number, len(replies)) - 1]


def runs(word: str) -> bool:
    """Whether any process on this machine has the word on its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_its_last_words_are_the_answer_and_the_gateway_counts(root: Root, models: Models) -> None:
    models.script = in_order(
        Said(text="I will look.", calls=[("shell", {"command": "echo made | tee it.txt"})]),
        Said(text="It is made."),
    )
    task = create(root, models)
    (result,) = root.run(task, brief())
    assert (result["status"], result["answer"]) == ("completed", "It is made."), result
    assert Path(result["workspace"], "it.txt").read_text() == "made\n"
    usage = result["token_usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (20, 10)
    assert result["agent"]["name"] == "ours" and result["agent"]["resumed"] == "fresh"
    assert "made" in models.heard[-1].last


def test_an_agent_may_close_the_connection_once_it_has_the_whole_answer(
    root: Root, models: Models
) -> None:
    models.script = in_order(Said(text="whole", lingers=True))
    task = create(root, models)
    (result,) = root.run(task, brief())
    assert (result["status"], result["answer"]) == ("completed", "whole"), result
    assert "estimated" not in result["token_usage"], result


def test_a_message_is_told_after_the_turn(root: Root, models: Models) -> None:
    sent = threading.Event()
    models.script = in_order(Said(text="first", until=sent.is_set), Said(text="second"))
    task = create(root, models)
    root.spawn(task, brief())
    until(lambda: models.heard)
    root.call("subagent.send", task=task, subagent="s", message="leave the schema alone")
    sent.set()
    result = attend(root, task)
    assert (result["status"], result["answer"]) == ("completed", "second"), result
    assert "leave the schema alone" in models.heard[1].last
    assert [each["how"] for each in payloads(root, task, "agent.steered")] == ["after the turn"]


def test_an_urgent_message_interrupts_the_turn(root: Root, models: Models) -> None:
    models.script = in_order(Said(text="a long story", hold=True), Said(text="as you say"))
    task = create(root, models)
    root.spawn(task, brief())
    assert models.holding.wait(BOUND_S)
    began = time.monotonic()
    root.call("subagent.send", task=task, subagent="s", message="stop it", now=True)
    assert models.given_up.wait(BOUND_S)
    assert time.monotonic() - began < 3
    result = attend(root, task)
    assert (result["status"], result["answer"]) == ("completed", "as you say"), result
    assert "stop it" in models.heard[1].last
    assert [each["how"] for each in payloads(root, task, "agent.steered")] == ["interrupted"]


def test_continue_resumes_its_own_session(root: Root, models: Models) -> None:
    models.script = in_order(Said(text="ONE"), Said(text="TWO"))
    task = create(root, models)
    (first,) = root.run(task, brief("say WORD"))
    assert first["answer"] == "ONE", first
    again = root.call("subagent.continue", task=task, subagent="s", message="and now")
    result = attend(root, task, again["subagent_id"])
    assert (result["status"], result["answer"]) == ("completed", "TWO"), result
    assert result["agent"]["resumed"] == "native"
    told = models.heard[1].document["messages"]
    assert [each["role"] for each in told] == ["user", "assistant", "user"]
    assert "WORD" in told[0]["content"] and told[1]["content"] == "ONE"


def test_each_continue_tells_only_its_own_message(root: Root, models: Models) -> None:
    task = create(root, models)
    root.run(task, brief("say WORD"))
    for word in ("SECOND", "THIRD", "THIRD"):
        again = root.call("subagent.continue", task=task, subagent="s", message=f"now {word}")
        assert attend(root, task, again["subagent_id"])["status"] == "completed"
    told = [each["content"] for each in models.heard[-1].document["messages"]]
    assert told[0].endswith("say WORD"), "the role stands before the brief"
    assert told[2::2] == ["now SECOND", "now THIRD", "now THIRD"]


def test_a_transcript_does_not_hold_an_earlier_transcript(root: Root, models: Models) -> None:
    task = create(root, models)
    root.run(task, brief("say WORD"))
    for word in ("SECOND", "THIRD"):
        for path in root.folder(task, "s").rglob("retinue-session.json"):
            path.unlink()
        again = root.call("subagent.continue", task=task, subagent="s", message=f"now {word}")
        result = attend(root, task, again["subagent_id"])
        assert result["agent"]["resumed"] == "transcript", result
    last = models.heard[-1].last
    assert [last.count(each) for each in ("<earlier>", "say WORD", "now SECOND")] == [1, 1, 1]
    assert last.endswith("now THIRD")


def test_a_session_that_is_gone_is_told_again(root: Root, models: Models) -> None:
    models.script = in_order(Said(text="ONE"), Said(text="TWO"))
    task = create(root, models)
    root.run(task, brief("say WORD"))
    for path in root.folder(task, "s").rglob("retinue-session.json"):
        path.unlink()
    again = root.call("subagent.continue", task=task, subagent="s", message="and now")
    result = attend(root, task, again["subagent_id"])
    assert result["status"] == "completed", result
    assert result["agent"]["resumed"] == "transcript"
    assert "WORD" in models.heard[1].last and "ONE" in models.heard[1].last


def test_a_session_that_was_resumed_without_its_conversation_is_told_again(
    root: Root, models: Models
) -> None:
    models.script = in_order(
        *(Said(text="the first answer"), Said(text="who are you?"), Said(text="as I said before"))
    )
    task = create(root, models, acp_member("ours", "forgetful"))
    root.run(task, brief("say a WORD-ONE"))
    again = root.call("subagent.continue", task=task, subagent="s", message="and now")
    result = attend(root, task, again["subagent_id"])
    assert (result["status"], result["answer"]) == ("completed", "as I said before"), result
    assert result["agent"]["resumed"] == "transcript"
    told = [each["resumed"] for each in payloads(root, task, "agent.session")]
    assert told == ["fresh", "native", "transcript"]
    last = models.heard[-1].last
    assert "say a WORD-ONE" in last and "the first answer" in last and "and now" in last
    assert "who are you?" not in last
    assert len(models.heard) == 3
    # The next one goes on in the new session, which is again forgotten.
    warned = [each["code"] for each in payloads(root, task, "agent.warning")]
    assert warned == ["resume_forgotten"]


def test_before_its_deadline_it_is_interrupted_and_asked(root: Root, models: Models) -> None:
    models.script = in_order(Said(text="thinking", hold=True), Said(text="in short: 42"))
    task = create(root, models)
    (result,) = root.run(task, brief(timeout_seconds=6))
    assert result["status"] == "completed", result
    assert result["answer"] == "in short: 42", result
    assert "Your time is almost up" in models.heard[1].last


def test_cancelling_it_in_a_tool_leaves_no_process_and_its_last_words(
    root: Root, models: Models
) -> None:
    word = "86401.25"
    models.script = in_order(Said(text="I wait.", calls=[("shell", {"command": f"sleep {word}"})]))
    task = create(root, models)
    root.spawn(task, brief())
    until(lambda: runs(word))
    began = time.monotonic()
    root.call("subagent.cancel", task=task, subagent="s")
    result = attend(root, task)
    assert time.monotonic() - began < 5
    assert (result["status"], result["answer"]) == ("cancelled", "I wait."), result
    assert not runs(word)


def test_an_agent_that_is_killed_in_a_stream_leaves_what_it_said(
    root: Root, models: Models
) -> None:
    models.script = in_order(Said(text="half a", hold=True))
    task = create(root, models)
    root.spawn(task, brief())
    assert models.holding.wait(BOUND_S)
    until(lambda: list(root.folder(task, "s").rglob("last_words.txt")))
    show = root.call("subagent.show", task=task, subagent="s")
    os.kill(show["attempts"][-1]["pid"], signal.SIGKILL)
    result = attend(root, task)
    assert result["status"] == "partial", result
    assert result["answer"] == "half a\n[cut off]", result
    assert result["token_usage"]["estimated"], result


def test_a_silent_agent_has_stalled(root: Root, models: Models) -> None:
    task = create(root, models, acp_member("deaf", "deaf", stall_seconds=1))
    (result,) = root.run(task, brief(agent="deaf"))
    assert result["status"] == "error", result
    assert "agent_stalled" in result["error"], result


def test_an_agent_that_ignores_an_interrupt_is_ended(root: Root, models: Models) -> None:
    task = create(root, models, acp_member("deaf", "deaf"))
    root.spawn(task, brief(agent="deaf"))
    until(lambda: root.rows(task)["s"]["status"] == "running")
    root.call("subagent.send", task=task, subagent="s", message="stop it", now=True)
    result = attend(root, task)
    assert result["status"] == "error", result
    assert "agent_stalled: it went on for 5 seconds" in result["error"], result


def test_an_agent_of_another_protocol_is_a_protocol_error(root: Root, models: Models) -> None:
    task = create(root, models, acp_member("old", "old"))
    (result,) = root.run(task, brief(agent="old"))
    assert result["status"] == "error", result
    assert "agent_protocol" in result["error"] and "99" in result["error"], result


@pytest.mark.parametrize("status", [401, 402])
def test_a_refused_agent_has_failed_whatever_it_says(
    root: Root, models: Models, status: int
) -> None:
    models.script = in_order(Said(status=status, text="NO-WAY"))
    task = create(root, models)
    (result,) = root.run(task, brief())
    assert result["status"] == "error", result
    assert f"answered {status}" in result["error"] and "NO-WAY" in result["error"], result


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_answer_that_fits_its_schema_is_a_value(root: Root, models: Models, wrong: int) -> None:
    models.script = in_order(*[Said(text="seven")] * wrong, Said(text='{"n": 7}'))
    task = create(root, models)
    (result,) = root.run(task, brief(answer_schema=SCHEMA))
    assert result["status"] == "completed", result
    assert result["structured_answer"] == {"n": 7}
    assert len(models.heard) == wrong + 1


def test_an_answer_that_never_fits_is_kept_as_text(root: Root, models: Models) -> None:
    models.script = in_order(Said(text="seven"))
    task = create(root, models)
    (result,) = root.run(task, brief(answer_schema=SCHEMA))
    assert result["status"] == "error" and "invalid_answer" in result["error"], result
    assert result["answer"] == "seven" and "structured_answer" not in result, result
    assert len(models.heard) == 3


def test_a_budget_of_turns_ends_an_agent_that_loops(root: Root, models: Models) -> None:
    models.script = lambda heard: call("shell", command="echo again")
    task = create(root, models)
    (result,) = root.run(task, brief(turns=3))
    assert result["status"] == "error" and "budget exceeded" in result["error"], result
    assert len(models.heard) == 3


def test_a_team_of_an_agent_and_a_model_votes(root: Root, models: Models) -> None:
    def script(heard: Heard) -> Said:
        if "These are the present answers" in heard.words:
            if "Your answer was chosen" in heard.words:
                return Said(text="presented")
            return vote("s_agent_2") if "vote" in heard.tools else Said(text="waiting")
        return answer(f"{heard.model} answers") if heard.model == "plain" else Said(text="mine")

    models.script = script
    url = f"http://127.0.0.1:{models.port}/v1"
    plain = {"type": "chatcompletion", "model": "plain", "base_url": url}
    task = create(root, models, {"id": "plain", "backend": plain}, acp_member("ours"))
    terms = brief()
    del terms["agent"]
    (result,) = root.run(task, terms)
    assert (result["status"], result["answer"]) == ("completed", "presented"), result
    status = json.loads((root.folder(task, "s") / "full_logs" / "status.json").read_bytes())
    assert status["results"]["winner"] == "s_agent_2", status
    assert {seat["vote"] is not None for seat in status["agents"].values()} == {True}, status
    sent = [heard for heard in models.heard if heard.model == "ours" and "vote" in heard.tools]
    assert sent and "shell" in sent[0].tools


def test_a_team_whose_answer_has_a_schema_gives_the_answer_that_was_chosen(
    root: Root, models: Models
) -> None:
    def script(heard: Heard) -> Said:
        if "These are the present answers" in heard.words:
            return vote("s_agent_1") if "vote" in heard.tools else Said(text="VOTE s_agent_1")
        number = 1 if heard.model == "plain" else 2
        document = json.dumps({"n": number})
        return answer(document) if heard.model == "plain" else Said(text=document)

    models.script = script
    url = f"http://127.0.0.1:{models.port}/v1"
    plain = {"type": "chatcompletion", "model": "plain", "base_url": url}
    task = create(root, models, {"id": "plain", "backend": plain}, acp_member("ours"))
    terms = brief(answer_schema=SCHEMA)
    del terms["agent"]
    (result,) = root.run(task, terms)
    assert (result["status"], result.get("structured_answer")) == ("completed", {"n": 1}), result
    told = [heard.words for heard in models.heard]
    assert not any("Your answer was chosen" in words for words in told)
    # Nothing in the prompt asks for more than the document.
    assert not any("files you created" in words or "list every file" in words for words in told)
