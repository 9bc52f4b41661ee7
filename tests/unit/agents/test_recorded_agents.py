"""Each dialect is fed with what real agents wrote: whole, cut, noisy, with unknown fields."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from retinue.agents.launch import AgentLaunch, ToolServerAddress
from retinue.agents.link import (
    AgentTurn,
    CallFinished,
    CallStarted,
    LinkFailed,
    LinkWarning,
    RawLine,
    SessionOpened,
    TextDelta,
    Update,
    WholeMessage,
)
from support.coding_agents import AGENTS, connect_agent
from support.replay import ReplayedAgent, read_recording, split_outputs

LAUNCH = AgentLaunch(argv=("agent",), environment={}, cwd="/workspace")
BOUND_S = 10.0  # a replay waits for nothing: one that hangs does so for ever
HUGE = 8 * 1024 * 1024
SHELLS = {
    "claude": "Bash",
    "codex": "commandExecution",
    "gemini": "run_shell_command",
    "opencode": "bash",
    "goose": "shell",
    "copilot": "execute",
}


class Heard(list[Update]):
    """Updates in the order in which they were reported."""

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [update for update in self if isinstance(update, kinds)]


async def converse(name: str, agent: ReplayedAgent, heard: Heard) -> list[AgentTurn]:
    """Have the recorded conversation; return its turns."""
    link = connect_agent(name, LAUNCH, heard.append, connect=agent)
    turns = []
    async with asyncio.timeout(BOUND_S):
        await link.open()
        turns.append(await link.prompt("say hello"))
        turns.append(await link.prompt("use the TOKTOOL"))
    return turns


@pytest.mark.parametrize("name", AGENTS)
def test_a_recorded_conversation_is_understood(name: str) -> None:
    heard = Heard()
    agent = ReplayedAgent(split_outputs(read_recording(name)))
    first, second = asyncio.run(converse(name, agent, heard))
    assert (first.text, first.stop) == ("hello", "end")
    assert (second.text, second.stop) == ("it printed MARK", "end")
    assert len(heard.of(SessionOpened)) == 1 and heard.of(SessionOpened)[0].session
    (call,) = heard.of(CallStarted)
    assert call.tool == SHELLS[name]
    (result,) = heard.of(CallFinished)
    assert (result.call, result.tool, result.ok) == (call.call, call.tool, True)
    assert [each.text for each in heard.of(WholeMessage)] == ["hello", "it printed MARK"]
    assert "".join(each.text for each in heard.of(TextDelta)) in ("helloit printed MARK", "")


@pytest.mark.parametrize("name", AGENTS)
def test_noise_and_unknown_fields_and_messages_change_nothing(name: str) -> None:
    def disturb(line: bytes) -> list[bytes]:
        message = json.loads(line)
        message["unknown_field"] = {"deep": [1, None, {"x": "y"}]}
        return [
            b"npm warn something\n",
            b"\xff\xfe\x00 not text\n",
            b"[1, 2]\n",
            b"\n",
            b'{"type": "from_the_future", "method": "from/theFuture", "params": {"a": 1}}\n',
            b"[" * 100_000 + b"\n",
            json.dumps(message).encode() + b"\r\n",
        ]

    plain, noisy = Heard(), Heard()
    parts = split_outputs(read_recording(name))
    turns = asyncio.run(converse(name, ReplayedAgent(parts), plain))
    disturbed = [[each for line in part for each in disturb(line)] for part in parts]
    assert asyncio.run(converse(name, ReplayedAgent(disturbed), noisy)) == turns

    def without_lines(updates: Heard) -> list[Update]:
        random = (RawLine, SessionOpened)  # Claude's session has a new id each time
        return [update for update in updates if not isinstance(update, random)]

    assert without_lines(noisy) == without_lines(plain)


@pytest.mark.parametrize("name", AGENTS)
def test_a_huge_line_is_read_as_any_other(name: str) -> None:
    def enlarge(line: bytes) -> bytes:
        message = json.loads(line)
        message["padding"] = "x" * HUGE
        return json.dumps(message).encode() + b"\n"

    parts = split_outputs(read_recording(name))
    parts[-1][-1] = enlarge(parts[-1][-1])
    turns = asyncio.run(converse(name, ReplayedAgent(parts), Heard()))
    assert turns[-1].text == "it printed MARK"


@pytest.mark.parametrize("name", AGENTS)
def test_a_stream_that_ends_at_any_byte_ends_the_link_at_once(name: str) -> None:
    parts = split_outputs(read_recording(name))
    # Without the end of the last line, everything has been said.
    size = sum(len(line) for part in parts for line in part) - 2

    async def end_at_each() -> None:
        for most in range(size):
            with pytest.raises(LinkFailed) as caught:
                await converse(name, ReplayedAgent(parts, most), Heard())
            assert caught.value.code == "agent_ended", most

    asyncio.run(end_at_each())


@pytest.mark.parametrize("name", AGENTS)
def test_values_of_a_wrong_type_never_break_the_link(name: str) -> None:
    """Each value of each message in turn becomes something else; it is ignored or named."""
    recorded = read_recording(name)

    async def try_each() -> None:
        for number, entry in enumerate(recorded):
            for changed in list_changes(entry.get("out")):
                parts = split_outputs(
                    [*recorded[:number], {"out": changed}, *recorded[number + 1 :]]
                )
                try:
                    agent = ReplayedAgent(parts, impatient=True)
                    turns = await converse(name, agent, Heard())
                except LinkFailed as error:
                    assert error.code in ("agent_protocol", "agent_ended", "agent_refused")
                else:
                    assert all(isinstance(turn.text, str) for turn in turns)

    asyncio.run(try_each())


def list_changes(value: Any) -> list[Any]:
    """Return copies of a JSON value, in each of which one value has another type."""
    if not isinstance(value, dict):
        return []
    found = []
    for key, inner in value.items():
        replacements: list[Any] = [7, None, "word", [None], {}]
        found += [value | {key: other} for other in replacements if type(other) is not type(inner)]
        found += [value | {key: changed} for changed in list_changes(inner)]
    return found


def test_the_answer_is_the_text_after_the_last_tool_call() -> None:
    turn, heard = run_updates(
        chunk("I will look."), call("pending"), call("completed"), chunk("Found "), chunk("it.")
    )
    assert turn.text == "Found it."
    assert [each.text for each in heard.of(WholeMessage)] == ["I will look.", "Found it."]


def test_of_numbered_messages_only_the_last_counts() -> None:
    turn, _ = run_updates(
        chunk("Warning: old version."),
        chunk("First.", "m1"),
        chunk("Second", "m2"),
        chunk("Deprecated option."),
        chunk(" one.", "m2"),
    )
    assert turn.text == "Second one."


def test_only_one_time_permissions_are_given() -> None:
    agent = ReplayedAgent(updates_to_parts([ask(["allow_always", "allow_once", "reject_once"])]))
    talk("goose", agent)
    assert agent.written[-1]["result"]["outcome"] == {
        "outcome": "selected",
        "optionId": "allow_once",
    }
    agent = ReplayedAgent(updates_to_parts([ask(["allow_always"])]))
    talk("goose", agent)
    assert agent.written[-1]["result"]["outcome"] == {"outcome": "cancelled"}


def test_messages_repeated_while_a_session_loads_are_not_progress() -> None:
    capabilities = {"loadSession": True}
    parts = [
        [to_line(result(1, {"protocolVersion": 1, "agentCapabilities": capabilities}))],
        [to_line(chunk("old words")), to_line(call("completed")), to_line(result(2, {}))],
    ]
    heard = Heard()

    async def load() -> None:
        link = connect_agent("goose", LAUNCH, heard.append, connect=ReplayedAgent(parts))
        assert await link.open("s1") == "s1"

    asyncio.run(load())
    assert [each for each in heard if not isinstance(each, RawLine)] == [
        SessionOpened(session="s1", resumed=True)
    ]


def test_another_version_of_the_protocol_is_refused() -> None:
    agent = ReplayedAgent([[to_line(result(1, {"protocolVersion": 2}))]])
    with pytest.raises(LinkFailed, match="version 2") as caught:
        talk("goose", agent)
    assert caught.value.code == "agent_protocol"
    assert agent.over == "closed"


@pytest.mark.parametrize(("session", "is_ended"), [("", True), ("s1", False)])
def test_only_an_agent_that_refuses_to_resume_goes_on(session: str, is_ended: bool) -> None:
    initialized = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
    refused = {"id": 2, "error": {"message": "unknown session"}}
    # A last part that is empty keeps the program running.
    agent = ReplayedAgent([[to_line(result(1, initialized))], [to_line(refused)], []])

    async def begin() -> None:
        link = connect_agent("goose", LAUNCH, Heard().append, connect=agent)
        with pytest.raises(LinkFailed, match="unknown session"):
            await link.open(session)

    asyncio.run(begin())
    assert (agent.over == "closed") is is_ended


@pytest.mark.parametrize("name", AGENTS)
def test_a_prompt_that_cannot_be_sent_leaves_no_turn_behind(name: str) -> None:
    agent = ReplayedAgent(split_outputs(read_recording(name)))

    async def prompt_twice() -> None:
        link = connect_agent(name, LAUNCH, Heard().append, connect=agent)
        await link.open()
        agent.over = "it ended (exit code 1)"
        async with asyncio.timeout(BOUND_S):
            for _ in range(2):
                with pytest.raises(LinkFailed) as caught:
                    await link.prompt("say hello")
                assert caught.value.code == "agent_ended"

    asyncio.run(prompt_twice())


def test_the_tool_server_is_named_to_agents_that_take_one() -> None:
    server = ToolServerAddress(url="http://127.0.0.1:1/mcp", token="t")
    launch = AgentLaunch(argv=("agent",), environment={}, cwd="/w", tool_server=server)
    agent = ReplayedAgent(updates_to_parts([], capabilities={"mcpCapabilities": {"http": True}}))

    async def begin() -> None:
        await connect_agent("goose", launch, Heard().append, connect=agent).open()

    asyncio.run(begin())
    (named,) = agent.written[1]["params"]["mcpServers"]
    assert (named["url"], named["headers"][0]["value"]) == (server.url, "Bearer t")


def test_claudes_success_with_an_error_is_an_error() -> None:
    began = {"type": "control_response", "response": {"request_id": "retinue-1"}}
    retry = {"type": "system", "subtype": "api_retry", "error_status": 401}
    ended = {"type": "result", "subtype": "success", "is_error": True, "result": "API Error: 401"}
    # A last part that is empty keeps the program running.
    parts = [[to_line(began)], [to_line(retry), to_line(ended)], []]
    turn, heard = talk("claude", ReplayedAgent(parts))
    assert (turn.text, turn.stop, turn.error) == ("", "error", "API Error: 401")
    (warning,) = heard.of(LinkWarning)
    assert (warning.code, "401" in warning.text) == ("api_retry", True)


def test_codex_tells_why_a_turn_failed() -> None:
    parts = [
        [to_line({"id": 1, "result": {}})],
        [],  # the notification that it is initialized
        [to_line({"id": 2, "result": {"thread": {"id": "t1"}}})],
        [
            to_line({"id": 3, "result": {"turn": {"id": "u1"}}}),
            to_line({"method": "error", "params": {"error": {"message": "401"}}}),
            to_line({"method": "turn/completed", "params": {"turn": {"status": "failed"}}}),
        ],
        [],
    ]
    turn, _ = talk("codex", ReplayedAgent(parts))
    assert (turn.text, turn.stop, turn.error) == ("", "error", "401")


def test_what_copilot_says_itself_is_no_answer() -> None:
    own = chunk("Info: Disabled tools: task, web_fetch")
    turn, heard = talk("copilot", ReplayedAgent(updates_to_parts([own, chunk("Found it.")])))
    assert turn.text == "Found it."
    assert [each.code for each in heard.of(LinkWarning)] == ["agent_message"]


def run_updates(*updates: dict[str, Any]) -> tuple[AgentTurn, Heard]:
    return talk("goose", ReplayedAgent(updates_to_parts(list(updates))))


def talk(name: str, agent: ReplayedAgent) -> tuple[AgentTurn, Heard]:
    heard = Heard()

    async def prompt() -> AgentTurn:
        link = connect_agent(name, LAUNCH, heard.append, connect=agent)
        async with asyncio.timeout(BOUND_S):
            await link.open()
            return await link.prompt("go")

    return asyncio.run(prompt()), heard


def updates_to_parts(
    updates: list[dict[str, Any]], capabilities: dict[str, Any] | None = None
) -> list[list[bytes]]:
    begun = {"protocolVersion": 1, "agentCapabilities": capabilities or {}}
    ended = [*updates, result(3, {"stopReason": "end_turn"})]
    return [
        [to_line(result(1, begun))],
        [to_line(result(2, {"sessionId": "s1"}))],
        [to_line(each) for each in ended],
        [],
    ]


def to_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def result(number: int, value: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": value}


def update_of(update: dict[str, Any]) -> dict[str, Any]:
    return {"method": "session/update", "params": {"sessionId": "s1", "update": update}}


def chunk(text: str, message: str | None = None) -> dict[str, Any]:
    content = {"type": "text", "text": text}
    update = {"sessionUpdate": "agent_message_chunk", "content": content, "messageId": message}
    return update_of(update)


def call(status: str) -> dict[str, Any]:
    kind = "tool_call" if status == "pending" else "tool_call_update"
    return update_of({"sessionUpdate": kind, "toolCallId": "c1", "status": status, "kind": "read"})


def ask(kinds: list[str]) -> dict[str, Any]:
    options = [{"optionId": kind, "kind": kind, "name": kind} for kind in kinds]
    params = {"sessionId": "s1", "toolCall": {"toolCallId": "c1", "kind": "edit"}}
    return {
        "id": "p1",
        "method": "session/request_permission",
        "params": params | {"options": options},
    }
