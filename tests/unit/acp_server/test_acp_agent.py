"""An editor's session: which subagents are its turns, and whose results are its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from retinue.acp_server.acp_agent import AcpAgent
from retinue.core.errors import NotFound
from retinue.mcp_server.effective_limits import ParentLink
from retinue.mcp_server.stdio_transport import Sink, StdioLines

BOUND_S = 20.0
RESULT = {
    "subagent_id": "turn-1",
    "status": "completed",
    "success": True,
    "answer": "mine",
    "workspace": "/w",
}
ASKS = RESULT | {"status": "blocked", "success": False, "questions": ["publish?"]}
Message = dict[str, Any]


class Editor:
    """Client and steward of an agent, in memory."""

    def __init__(self, *, outcome: Any = None) -> None:
        self.outcome = outcome
        self.said: list[Message] = []
        self.answered: dict[int, asyncio.Event] = {}
        self.ends = [
            {"agentInstance": "helper", "result": RESULT | {"answer": "not mine"}},
            {"agentInstance": "turn-1", "result": RESULT},
        ]
        self.continued: list[str] = []
        self.lines = StdioLines()
        self._number = 0

    async def call(self, verb: str, **params: Any) -> Any:
        answers: dict[str, Callable[[], Any]] = {
            "task.list": list,
            "parent.spawn": lambda: {"results": [ASKS]},
            "gate.list": lambda: [
                {"agentInstance": "turn-1", "state": "open", "gate_id": "turn-1-1"}
            ],
            "gate.approve": dict,
            "parent.wait": lambda: self.ends.pop(0),
            "subagent.list": lambda: [
                {"subagent_id": "turn-1", "status": "completed"},
                {"subagent_id": "turn-2", "status": "completed", "continues": "turn-1"},
                {"subagent_id": "helper", "status": "completed"},
            ],
            "subagent.show": lambda: {"contract": {"step": {"description": params["subagent"]}}},
        }
        if verb == "task.show":
            return {"task_id": params["task"], "state": "open"}
        if verb == "parent.continue":
            self.continued.append(params["subagent"])
            return RESULT
        if verb not in answers:
            raise NotFound(f"no {verb}")
        return answers[verb]()

    async def send(self, line: bytes) -> None:
        message = json.loads(line)
        self.said.append(message)
        if message.get("method") == "session/request_permission":
            self._write({"jsonrpc": "2.0", "id": message["id"], "result": self.outcome})
        elif "method" not in message:
            self.answered[message["id"]].set()

    async def ask(self, method: str, **params: Any) -> Message:
        self._number += 1
        number = self._number
        self.answered[number] = asyncio.Event()
        self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        await self.answered[number].wait()
        return next(each for each in self.said if each.get("id") == number and "method" not in each)

    def texts(self, kind: str) -> list[str]:
        updates = [
            each["params"]["update"] for each in self.said if "update" in each.get("params", ())
        ]
        return [each["content"]["text"] for each in updates if each["sessionUpdate"] == kind]

    def _write(self, message: Message) -> None:
        self.lines.data_received(json.dumps(message).encode() + b"\n")


def play(editor: Editor, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def staged() -> None:
        agent = AcpAgent(cast(ParentLink, editor), cast(Sink, editor), {})
        serving = asyncio.create_task(agent.serve(editor.lines))
        async with asyncio.timeout(BOUND_S):
            await scene()
            editor.lines.eof_received()
            await serving

    asyncio.run(staged())


def prompt(text: str) -> list[Message]:
    return [{"type": "text", "text": text}]


def test_an_approved_turn_is_answered_by_its_own_result() -> None:
    editor = Editor(outcome={"outcome": {"outcome": "selected", "optionId": "approve"}})

    async def scene() -> None:
        session = (await editor.ask("session/new", cwd="/"))["result"]["sessionId"]
        end = await editor.ask("session/prompt", sessionId=session, prompt=prompt("x"))
        assert end["result"] == {"stopReason": "end_turn"}
        assert editor.texts("agent_message_chunk") == ["mine"]

    play(editor, scene)


@pytest.mark.parametrize("outcome", [None, "approve", {"outcome": "approve"}, {"outcome": []}])
def test_an_answer_to_a_permission_request_may_have_any_form(outcome: Any) -> None:
    editor = Editor(outcome=outcome)

    async def scene() -> None:
        session = (await editor.ask("session/new", cwd="/"))["result"]["sessionId"]
        end = await editor.ask("session/prompt", sessionId=session, prompt=prompt("x"))
        assert end["result"] == {"stopReason": "end_turn"}
        (said,) = editor.texts("agent_message_chunk")
        assert "publish?" in said

    play(editor, scene)


def test_a_loaded_session_has_its_turns_and_not_what_these_delegated() -> None:
    editor = Editor()

    async def scene() -> None:
        loaded = await editor.ask("session/load", sessionId="acp-1", cwd="/")
        assert loaded["result"] == {}
        assert editor.texts("user_message_chunk") == ["turn-1", "turn-2"]
        await editor.ask("session/prompt", sessionId="acp-1", prompt=prompt("x"))
        assert editor.continued == ["turn-2"]

    play(editor, scene)
