"""A Retinue team as an ACP agent, driven over its pipes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.mcp import Message, Raw
from support.roots import Root, until

ASKS = (
    'if grep -q "## [A]nswer" "$RETINUE_BRIEF"; then echo thanks; else '
    """printf '{"status":"blocked","questions":["publish?"]}' > "$RETINUE_FINAL"; fi; exit 0"""
)


class Editor(Raw):
    """An ACP client that keeps every update, and chooses one option when it is asked."""

    def __init__(self, root: Path, choice: str = "approve") -> None:
        words = [sys.executable, "-m", "retinue", "--root", str(root), "acp"]
        super().__init__(root, argv=words)
        self.root = root
        self.choice = choice
        self.updates: list[Message] = []
        self.asked: list[Message] = []

    def finish(self, number: int) -> Message:
        """Return the answer to a request, after everything that comes before it."""
        while True:
            message = self.next()
            if message.get("method") == "session/update":
                self.updates.append(message["params"]["update"])
            elif message.get("method") == "session/request_permission":
                self.asked.append(message["params"])
                outcome = {"outcome": "selected", "optionId": self.choice}
                self.reply(message["id"], {"outcome": outcome})
            elif message.get("id") == number:
                return message

    def find_progress(self) -> str:
        """Return the next title that says how far the turn is."""
        while True:
            update = self.next()["params"]["update"]
            if is_progress(update):
                return str(update["title"])

    def begin(self) -> str:
        told = self.finish(self.send("initialize", {"protocolVersion": 1}))["result"]
        assert told["protocolVersion"] == 1 and told["agentCapabilities"]["loadSession"]
        params = {"cwd": str(self.root.parent), "mcpServers": []}
        return str(self.finish(self.send("session/new", params))["result"]["sessionId"])

    def prompt(self, session: str, text: str) -> int:
        block = {"type": "text", "text": text}
        return self.send("session/prompt", {"sessionId": session, "prompt": [block]})

    def said(self) -> list[str]:
        kinds = ("user_message_chunk", "agent_message_chunk")
        found = [each for each in self.updates if each["sessionUpdate"] in kinds]
        self.updates.clear()
        return [each["content"]["text"] for each in found]


def is_progress(update: Message) -> bool:
    return update["sessionUpdate"] == "tool_call_update" and "title" in update


@pytest.fixture
def editor(own: Path) -> Iterator[Editor]:
    with Editor(own) as editor:
        yield editor


def test_prompts_are_answered_and_a_session_is_loaded_by_another_process(
    own: Path, editor: Editor
) -> None:
    session = editor.begin()
    end = editor.finish(editor.prompt(session, "echo $((6 * 7)); cat seen; date > seen; exit 0"))
    assert end["result"] == {"stopReason": "end_turn"}
    kinds = [each["sessionUpdate"] for each in editor.updates if not is_progress(each)]
    assert kinds == ["tool_call", "tool_call_update", "agent_message_chunk"]
    assert editor.said() == ["42"]
    editor.finish(editor.prompt(session, "# once more"))
    assert len(editor.said()[0].splitlines()) == 2, "it goes on in the same workspace"
    assert editor.end_input() == 0
    with Editor(own) as later:
        later.begin()
        params = {"sessionId": session, "cwd": str(own.parent), "mcpServers": []}
        assert "result" in later.finish(later.send("session/load", params))
        first, _, second, _ = later.said()
        assert first.startswith("echo $((6 * 7))") and second == "# once more"
        end = later.finish(later.prompt(session, "# third"))
        assert end["result"]["stopReason"] == "end_turn"


@pytest.mark.parametrize(("choice", "answer"), [("approve", "thanks"), ("answer", "publish?")])
def test_a_question_is_a_permission_request(own: Path, choice: str, answer: str) -> None:
    with Editor(own, choice) as editor:
        session = editor.begin()
        editor.finish(editor.prompt(session, ASKS))
        (asked,) = editor.asked
        assert asked["toolCall"]["title"] == "publish?"
        assert answer in editor.said()[-1]
        if choice == "answer":
            editor.finish(editor.prompt(session, "yes, publish"))
            assert editor.said() == ["thanks"]


def test_a_failed_turn_says_what_was_printed_and_hides_nothing(own: Path) -> None:
    fails = "printf 'tests failed \\342\\200\\256 here'; exit 3"
    with Editor(own) as editor:
        session = editor.begin()
        editor.finish(editor.prompt(session, fails))
        (said,) = editor.said()
        assert "exited with code 3" in said and "[stdout]\ntests failed" in said
        assert "\u202e" not in said, "a mark that turns the direction of the text"
        printed = "printf 'fine \\342\\200\\256 here'; exit 0"
        editor.finish(editor.prompt(editor.begin(), printed))
        assert "\u202e" not in editor.said()[0]


def test_a_cancelled_turn_ends_its_subagent_and_the_session_goes_on(
    own: Path, editor: Editor
) -> None:
    session = editor.begin()
    number = editor.prompt(session, "[ -e ready ] && exec echo again; touch ready; sleep 60")
    until(lambda: (own / f"tasks/{session}/agents/turn-1/workspace/ready").exists())
    assert "turn-1 running" in editor.find_progress()
    editor.notify("session/cancel", {"sessionId": session})
    assert editor.finish(number)["result"] == {"stopReason": "cancelled"}
    with_root = Root(own)
    until(lambda: with_root.rows(session)["turn-1"]["status"] == "cancelled")
    with_root.release()
    assert editor.finish(editor.prompt(session, "# go on"))["result"]["stopReason"] == "end_turn"
    assert editor.said() == ["again"]


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("session/new", {"cwd": "here"}, -32602),
        ("session/prompt", {"sessionId": "no", "prompt": []}, -32602),
        ("session/load", {"sessionId": "../x", "cwd": "/"}, -32602),
        ("session/load", {"sessionId": "acp-none", "cwd": "/"}, -32603),
        ("no/such", {}, -32601),
    ],
)
def test_wrong_requests_are_refused(
    editor: Editor, method: str, params: dict[str, Any], code: int
) -> None:
    assert editor.finish(editor.send(method, params))["error"]["code"] == code
    editor.write(b"garbage")
    assert editor.next()["id"] is None
