"""Real coding agents over their links: answer, tools, refusals, steering, interrupts, resume."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from retinue.agents.launch import AgentLaunch
from retinue.agents.link import (
    AgentLink,
    AgentTurn,
    CallStarted,
    LinkFailed,
    PermissionAsked,
    PermissionQuestion,
    TextDelta,
    Update,
)
from retinue.agents.permissions import ContractPolicy
from support.coding_agents import (
    AGENTS,
    connect_agent,
    find_agent,
    launch_agent,
    read_version,
    run_in_shell,
)
from support.prompted_model import PromptedModel, TextStep, ToolStep, prompting

BOUND_S = 120
STEERING = ("claude", "codex", "opencode")
LISTED = ("claude", "gemini", "opencode")
MASKED = ("opencode", "copilot")  # nothing but masks keeps these from running what they find
pytestmark = pytest.mark.timeout(BOUND_S * 3)


class Heard(list[Update]):
    """Updates of a link, for a test that waits for one of them."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[type[Any], asyncio.Event]] = []

    def hear(self, update: Update) -> None:
        self.append(update)
        for kind, event in self._waiting:
            if isinstance(update, kind):
                event.set()

    async def wait_for(self, kind: type[Any]) -> None:
        """Wait for the next update of a kind."""
        event = asyncio.Event()
        self._waiting.append((kind, event))
        await asyncio.wait_for(event.wait(), BOUND_S)

    def of(self, kind: type[Any]) -> list[Any]:
        return [update for update in self if isinstance(update, kind)]


class Conversation:
    """One agent in a folder of its own, its model, and what was heard."""

    def __init__(self, name: str, model: PromptedModel, folder: Path, **more: Any) -> None:
        self.name = name
        self.model = model
        self.launch: AgentLaunch = launch_agent(name, model.url, folder, **more)
        self.heard = Heard()
        tools = more.get("tools")
        self.link = self.connect(ContractPolicy(find_agent(name), tools))

    @property
    def workspace(self) -> Path:
        return Path(self.launch.cwd)

    def connect(self, policy: Any = None) -> AgentLink:
        return connect_agent(self.name, self.launch, self.heard.hear, policy)


def converse(
    name: str,
    folder: Path,
    plans: dict[str, Any],
    talk: Callable[[Conversation], Awaitable[None]],
    **more: Any,
) -> Conversation:
    """Hold a conversation with the agent; its link is closed afterwards."""

    async def run() -> Conversation:
        conversation = Conversation(name, model, folder, **more)
        try:
            async with asyncio.timeout(BOUND_S):
                await talk(conversation)
        finally:
            await conversation.link.close()
        return conversation

    with prompting(plans) as model:
        return asyncio.run(run())


async def wait_set(event: threading.Event) -> bool:
    return await asyncio.to_thread(event.wait, BOUND_S)


@pytest.mark.parametrize("name", AGENTS)
def test_the_installed_version_is_one_that_was_tried(name: str) -> None:
    assert find_agent(name).is_tested(read_version(name)), read_version(name)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_answers_runs_a_tool_and_is_resumed_by_another_process(
    name: str, tmp_path: Path
) -> None:
    plans = {
        "TOKTOOL": [run_in_shell(name, "echo MARK > made"), TextStep(text="the file is made")],
        "TOKAGAIN": [TextStep(text="I remember")],
    }

    async def talk(it: Conversation) -> None:
        session = await it.link.open()
        first = await it.link.prompt("say hello")
        assert (first.text, first.stop, first.error) == ("hello", "end", "")
        assert len(it.model.asked) == 1, "nothing else is asked of the model"
        second = await it.link.prompt("TOKTOOL please")
        assert (second.text, second.stop) == ("the file is made", "end")
        assert (it.workspace / "made").read_text() == "MARK\n"
        await it.link.close()
        it.link = it.connect()
        if find_agent(name).resume == "transcript":
            await it.link.open()
        else:
            assert await it.link.open(session) == session
        third = await it.link.prompt("TOKAGAIN what was it?")
        assert (third.text, third.stop) == ("I remember", "end")
        if find_agent(name).resume == "native":
            assert "say hello" in it.model.last_request

    it = converse(name, tmp_path, plans, talk)
    assert len(it.heard.of(CallStarted)) == 1


@pytest.mark.parametrize("name", AGENTS)
def test_a_session_that_does_not_exist_is_refused_and_a_new_one_begun(
    name: str, tmp_path: Path
) -> None:
    async def talk(it: Conversation) -> None:
        with pytest.raises(LinkFailed) as caught:
            await it.link.open("11111111-1111-4111-8111-111111111111")
        assert caught.value.code == "agent_refused"
        await it.link.open()
        assert (await it.link.prompt("say hello")).text == "hello"

    converse(name, tmp_path, {}, talk)


@pytest.mark.parametrize("name", LISTED)
def test_tools_that_were_not_granted_are_neither_offered_nor_carried_out(
    name: str, tmp_path: Path
) -> None:
    plans = {"TOKDENY": [run_in_shell(name, "echo no > denied"), TextStep(text="I could not")]}

    async def talk(it: Conversation) -> None:
        (it.workspace / "seed").write_text("seed\n")
        await it.link.open()
        turn = await it.link.prompt("TOKDENY please")
        assert turn.stop in ("end", "cancelled"), turn
        assert not (it.workspace / "denied").exists()
        assert run_in_shell(name, "").tool not in it.model.offered
        assert it.model.offered, "the granted ones are offered"

    converse(name, tmp_path, plans, talk, tools=("read_file", "list_files"))


@pytest.mark.parametrize("name", [*LISTED, "codex"])
def test_an_agent_without_tools_writes_nothing(name: str, tmp_path: Path) -> None:
    plans = {"TOKDENY": [run_in_shell(name, "echo no > denied"), TextStep(text="I could not")]}

    async def talk(it: Conversation) -> None:
        await it.link.open()
        await it.link.prompt("TOKDENY please")
        assert list(it.workspace.iterdir()) == []

    converse(name, tmp_path, plans, talk, tools=())


def test_a_permission_that_claude_asks_for_is_refused_by_the_contract(tmp_path: Path) -> None:
    class Never:
        def grants(self, question: PermissionQuestion) -> bool:
            return False

    plans = {"TOKDENY": [run_in_shell("claude", "echo no > denied"), TextStep(text="refused")]}

    async def talk(it: Conversation) -> None:
        asking = tuple(word for word in it.launch.argv if word != "bypassPermissions")
        words = tuple(word for word in asking if word != "--permission-mode")
        it.launch = AgentLaunch(argv=words, environment=it.launch.environment, cwd=it.launch.cwd)
        it.link = it.connect(Never())
        await it.link.open()
        turn = await it.link.prompt("TOKDENY please")
        assert (turn.text, turn.stop) == ("refused", "end"), "the model goes on"
        assert not (it.workspace / "denied").exists()

    it = converse("claude", tmp_path, plans, talk)
    (asked,) = it.heard.of(PermissionAsked)
    assert (asked.tool, asked.granted) == ("Bash", False)


@pytest.mark.parametrize("name", AGENTS)
def test_an_interrupt_ends_a_stream_and_the_next_prompt_is_answered(
    name: str, tmp_path: Path
) -> None:
    plans = {"TOKSLOW": [TextStep(text="", slow=True)], "TOKNEXT": [TextStep(text="next answer")]}

    async def talk(it: Conversation) -> None:
        await it.link.open()
        turn = asyncio.ensure_future(it.link.prompt("TOKSLOW please"))
        await it.heard.wait_for(TextDelta)
        began = asyncio.get_running_loop().time()
        await it.link.interrupt()
        cut = await turn
        assert asyncio.get_running_loop().time() - began < 3
        assert cut.stop == "cancelled"
        assert cut.text.startswith("word"), "what was said is kept"
        assert await wait_set(it.model.aborted), "the request is aborted upstream"
        after = await it.link.prompt("TOKNEXT please")
        assert (after.text, after.stop) == ("next answer", "end")

    converse(name, tmp_path, plans, talk)


@pytest.mark.parametrize("name", AGENTS)
def test_a_message_joins_the_running_turn_where_the_profile_says_so(
    name: str, tmp_path: Path
) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    plans = {
        # The command ends when the message has been sent.
        "TOKWAIT": [run_in_shell(name, f"cat {fifo}"), TextStep(text="not steered")],
        "TOKSTEER": [TextStep(text="steered")],
    }

    async def talk(it: Conversation) -> None:
        await it.link.open()
        turn = asyncio.ensure_future(it.link.prompt("TOKWAIT please"))
        await it.heard.wait_for(CallStarted)
        opened = await asyncio.to_thread(os.open, fifo, os.O_WRONLY)
        steered = await it.link.steer("TOKSTEER use blue")
        assert steered == (name in STEERING) == it.link.steers_in_turn
        if steered:
            # Some take the message a moment after they were sent it.
            await asyncio.sleep(0.5)
        os.close(opened)
        ended: AgentTurn = await turn
        assert ended.text == ("steered" if steered else "not steered")
        assert ended.stop == "end"
        assert len(it.model.asked) == 2

    converse(name, tmp_path, plans, talk)


def test_a_message_that_comes_too_late_for_claudes_turn_is_answered_in_it(tmp_path: Path) -> None:
    plans = {"TOKSLOW": [TextStep(text="", slow=True)], "TOKSTEER": [TextStep(text="steered")]}

    async def talk(it: Conversation) -> None:
        it.model.slow_pieces = 20
        await it.link.open()
        turn = asyncio.ensure_future(it.link.prompt("TOKSLOW please"))
        await it.heard.wait_for(TextDelta)
        assert await it.link.steer("TOKSTEER use blue")
        assert (await turn).text == "steered"

    converse("claude", tmp_path, plans, talk)


def test_an_interrupt_ends_claudes_turn_with_a_message_that_still_waits(tmp_path: Path) -> None:
    plans = {"TOKSLOW": [TextStep(text="", slow=True)], "TOKNEXT": [TextStep(text="next answer")]}

    async def talk(it: Conversation) -> None:
        await it.link.open()
        turn = asyncio.ensure_future(it.link.prompt("TOKSLOW please"))
        await it.heard.wait_for(TextDelta)
        assert await it.link.steer("TOKSLOW even more")
        await it.link.interrupt()
        assert (await turn).stop == "cancelled"
        assert (await it.link.prompt("TOKNEXT please")).text == "next answer"

    converse("claude", tmp_path, plans, talk)


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("status", [401, 402])
def test_a_refusal_of_the_provider_ends_the_turn_soon(
    name: str, status: int, tmp_path: Path
) -> None:
    async def talk(it: Conversation) -> None:
        await it.link.open()
        it.model.status = status
        async with asyncio.timeout(15):
            turn = await it.link.prompt("say hello")
        # Copilot reports an error as its answer: the gateway knows better.
        assert turn.stop == "error" or name in ("copilot", "goose"), turn
        assert turn.error or turn.text

    converse(name, tmp_path, {}, talk)


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_an_answer_by_schema_is_asked_of_the_model(name: str, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"type": "string"}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    found = {"colour": "blue"}
    answer: Any = TextStep(text=json.dumps(found))
    if name == "claude":
        answer = ToolStep(tool="StructuredOutput", arguments=found)
    plans = {"TOKSCHEMA": [answer, TextStep(text="done")]}

    async def talk(it: Conversation) -> None:
        await it.link.open()
        assert (await it.link.prompt("say hello")).text == "hello"
        turn = await it.link.prompt("TOKSCHEMA please", schema)
        assert turn.stop == "end"
        assert (turn.structured or json.loads(turn.text)) == found
        assert "colour" in it.model.last_request
        assert "say hello" in it.model.last_request

    converse(name, tmp_path, plans, talk)


@pytest.mark.parametrize("name", AGENTS)
def test_nothing_that_lies_in_the_workspace_runs_by_itself(name: str, tmp_path: Path) -> None:
    """Where flags cannot prevent it, the masks of the profile hide it."""

    async def talk(it: Conversation) -> None:
        plant(it.workspace, tmp_path / "ran")
        for number, mask in enumerate(it.launch.masks if name in MASKED else ()):
            (it.workspace / mask).rename(tmp_path / f"masked{number}")
        await it.link.open()
        assert (await it.link.prompt("say hello")).text == "hello"

    converse(name, tmp_path, {}, talk)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def plant(workspace: Path, ran: Path) -> None:
    """Put hooks, servers and plugins of every vendor into a workspace."""

    def run(who: str) -> str:
        return f"echo {who} >> {ran}"

    hook = {"hooks": [{"type": "command", "command": run("hook")}]}
    server = {"command": "/bin/sh", "args": ["-c", run("server")]}
    servers = {"mcpServers": {"planted": server}}
    hooks = {"hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook]}}
    files = {
        ".claude/settings.json": json.dumps(hooks),
        ".mcp.json": json.dumps(servers),
        ".codex/config.toml": (
            f'[mcp_servers.planted]\ncommand = "/bin/sh"\nargs = ["-c", "{run("codex")}"]\n'
        ),
        ".gemini/settings.json": json.dumps(servers | hooks),
        ".opencode/plugin/planted.js": (
            "import {execSync} from 'child_process';\n"
            f"export const Planted = async () => {{ execSync('{run('plugin')}'); return {{}} }}\n"
        ),
        "opencode.json": json.dumps({"mcp": {"planted": {"type": "local", "command": ["sh"]}}}),
        "opencode.jsonc": "{}",
        ".github/hooks/planted.json": json.dumps({"version": 1} | hooks),
        ".github/copilot/settings.json": json.dumps(hooks),
        ".github/mcp.json": json.dumps(servers),
        ".vscode/mcp.json": json.dumps({"servers": {"planted": server}}),
    }
    for path, text in files.items():
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(text)
