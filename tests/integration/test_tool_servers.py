"""Members that are given the tools of MCP servers: real servers, inside the member's boundary."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.roots import Root, Row, root, until
from support.scripted import Heard, Models, Said, answer, call
from support.teams import brief, models, task_of

__all__ = ["models", "root"]

SERVERS = Path(__file__).parents[1] / "support" / "servers"
SDK = {"name": "sdk", "command": sys.executable, "args": [str(SERVERS / "official.py")]}
WAYWARD = {"name": "wild", "command": "/usr/bin/python3", "args": [str(SERVERS / "wayward.py")]}
SEEN = {"paths": [sys.prefix, sys.base_prefix, str(SERVERS)]}


def task_with(root: Root, models: Models, *servers: Row, mode: str = "inherited") -> str:
    """A task whose only member has these servers."""
    listed = [server | SEEN for server in servers]
    lines = models.config("user", coordination=f"subagent_runtime_mode: {mode}").splitlines()
    at = next(number for number, line in enumerate(lines) if "base_url" in line)
    lines.insert(at + 1, f"      mcp_servers: {json.dumps(listed)}")
    text = "\n".join(lines)
    return str(root.call("task.create", title="t", config_text=text)["task_id"])


def in_turn(models: Models, *said: Said | Callable[[str], Said]) -> list[str]:
    """The next requests are answered so; what each of them was last told comes to the list."""
    told: list[str] = []

    def script(heard: Heard) -> Said:
        told.append(heard.last)
        next_ = said[min(len(told), len(said)) - 1]
        return next_ if isinstance(next_, Said) else next_(heard.last)

    models.script = script
    return told


def denials(root: Root, task: str) -> list[Row]:
    return [e["payload"] for e in root.events(task) if e["type"] == "agent.tool_denied"]


def starts(workspace: str | Path) -> int:
    """How often the wayward one was started there."""
    return len(Path(workspace, "starts").read_text().split())


def at_work(mark: str) -> list[str]:
    """The processes of this machine that have a word among theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


@pytest.mark.requirement("R101", "R141")
@pytest.mark.parametrize("mode", ["isolated", "inherited"])
@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_a_member_calls_the_tools_of_an_official_server(
    root: Root, models: Models, mode: str, era: str
) -> None:
    told = in_turn(
        models,
        call("mcp__sdk__add", a=2, b=40),
        call("mcp__sdk__note", text="hello"),
        call("mcp__sdk__fail", why="for a reason"),
        call("mcp__sdk__add", a="two"),
        answer("added"),
    )
    server = SDK | {"args": [*SDK["args"], era]}
    (result,) = root.run(task_with(root, models, server, mode=mode), brief())
    assert (result["status"], result["answer"]) == ("completed", "added"), (result, told)
    assert {"mcp__sdk__add", "mcp__sdk__note", "read_file"} <= set(models.heard[-1].tools), told
    assert told[1] == "42" and told[2] == "noted"
    assert told[3] == "error: Error executing tool fail"
    assert (told[4].startswith("error:") and "'b'" in told[4]) or "\nb\n" in told[4], told[4]
    assert Path(result["workspace"], "noted.txt").read_text() == "hello"


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_a_server_has_no_more_than_its_configuration_gives_it(
    root: Root, models: Models, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = in_turn(models, call("mcp__sdk__look"), answer("looked"))
    server = SDK | {"env": {"TOKEN": "is ${LANG}", "PLAIN": "1"}}
    (result,) = root.run(task_with(root, models, server, mode=mode), brief())
    assert result["success"], (result, told)
    seen = json.loads(told[1])
    assert seen["cwd"] == result["workspace"] and {"TOKEN", "PLAIN"} <= set(seen["variables"])
    assert seen["token"] == f"is {os.environ['LANG']}"
    assert not [name for name in seen["variables"] if "RETINUE" in name or "KEY" in name]
    if mode == "isolated":
        assert seen["network"] != "a way out"
        assert (seen["uid"] == os.getuid()) is (os.getuid() != 0)


def test_the_variable_of_a_server_is_in_no_contract_and_no_command(
    root: Root, models: Models
) -> None:
    told = in_turn(models, call("run_command", command="env"), answer("x"))
    task = task_with(root, models, SDK | {"env": {"TOKEN": "${PATH}"}})
    (result,) = root.run(task, brief(subagent_id="quiet"))
    assert result["success"] and "RETINUE_VARIABLE_" not in told[1] and "PATH=" in told[1]
    contract = (root.folder(task, "quiet") / "contract.json").read_text()
    assert "${PATH}" in contract and os.environ["PATH"] not in contract


@pytest.mark.requirement("R101", "R141")
def test_the_contract_decides_which_tools_of_a_server_can_be_used(
    root: Root, models: Models
) -> None:
    told = in_turn(
        models, call("mcp__sdk__note", text="x"), call("mcp__sdk__add", a=1, b=1), answer("x")
    )
    task = task_with(root, models, SDK)
    (result,) = root.run(task, brief(allowed_tools=["read_file", "mcp__sdk__add"]))
    assert result["success"]
    assert set(models.heard[-1].tools) == {"read_file", "mcp__sdk__add", "new_answer"}
    assert told[1].startswith("refused: mcp__sdk__note is not allowed") and told[2] == "2"
    assert [each["tool"] for each in denials(root, task)] == ["mcp__sdk__note"]


def test_a_server_of_which_nothing_is_allowed_is_not_started(root: Root, models: Models) -> None:
    in_turn(models, answer("x"))
    task = task_with(root, models, WAYWARD)
    (result,) = root.run(task, brief(allowed_tools=["read_file"]))
    assert result["success"] and not Path(result["workspace"], "starts").exists()


def test_the_configuration_can_choose_among_the_tools_of_a_server(
    root: Root, models: Models
) -> None:
    in_turn(models, answer("x"))
    chosen = SDK | {"allowed_tools": ["add", "look"], "exclude_tools": ["look"]}
    root.run(task_with(root, models, chosen), brief())
    assert [name for name in models.heard[-1].tools if "mcp" in name] == ["mcp__sdk__add"]


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_whatever_a_server_does_is_a_message_to_act_on(
    root: Root, models: Models, mode: str
) -> None:
    asked = ["crash", "huge", "long", "picture", "nothing", "asks", "depth", "later"]
    told = in_turn(models, *(call(f"mcp__wild__{each}") for each in asked), answer("went on"))
    (result,) = root.run(task_with(root, models, WAYWARD, mode=mode), brief())
    assert (result["status"], result["answer"]) == ("completed", "went on"), (result, told)
    crash, huge, long, picture, nothing, asks, depth, later = told[1:9]
    assert crash == "error: the MCP server wild: it ended (exit code 1): out of cheese"
    assert "more than 8 MiB" in huge and "70000 characters left out" in long
    assert "image image/png: 4 characters" in picture and "not an object" in nothing
    assert asks == "told -32601" and later == "did later"
    assert depth == "[data with more than 100 levels, not shown]"
    assert starts(result["workspace"]) == 2, "once, and again after the crash"


def test_a_server_that_is_silent_or_talks_nonsense_costs_a_call_its_time(
    root: Root, models: Models
) -> None:
    told = in_turn(models, call("mcp__wild__garbage"), call("mcp__wild__hang"), answer("went on"))
    (result,) = root.run(task_with(root, models, WAYWARD | {"timeout_seconds": 0.4}), brief())
    assert result["answer"] == "went on" and result["execution_time_seconds"] < 20
    assert "no answer to tools/call within 0.4 seconds; 2 lines" in told[1]
    assert "no answer to tools/call within 0.4 seconds" in told[2]


def test_a_server_that_keeps_ending_is_left_alone(root: Root, models: Models) -> None:
    dying = [call(f"mcp__wild__{way}") for way in ("die", "die_oddly", "die", "die")]
    told = in_turn(models, *dying, answer("enough"))
    (result,) = root.run(task_with(root, models, WAYWARD), brief())
    assert result["answer"] == "enough" and starts(result["workspace"]) == 3
    assert "it ended (killed by SIGKILL)" in told[1] and "is not started again" in told[4]
    assert "it ended (killed by signal 40)" in told[2]


def test_names_that_no_vendor_takes_or_that_clash_are_made_fit_and_apart(
    root: Root, models: Models
) -> None:
    told = in_turn(models, lambda last: call(odd[1]), answer("x"))
    odd: list[str] = []

    def choose(heard: Heard) -> Said:
        told.append(heard.last)
        odd[:] = sorted(name for name in heard.tools if "odd_name" in name)
        return call(odd[1]) if len(told) == 1 else answer("x")

    models.script = choose
    (result,) = root.run(task_with(root, models, WAYWARD), brief())
    assert result["success"] and odd[0] == "mcp__wild__odd_name_" and len(odd) == 2
    assert told[1] == "did odd name?"
    names = [name for name in models.heard[-1].tools if "mcp" in name]
    assert len(names) == len(set(names)) and sum("twice" in name for name in names) == 1
    assert all(len(name) <= 64 for name in names)
    first = models.heard[-1].words
    assert "Left out of the MCP server wild" in first and "a tool without a name" in first
    assert "'deep' has a schema with more than 100 levels" in first


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_an_unavailable_server_is_reported_and_recorded_and_the_work_goes_on(
    root: Root, models: Models, mode: str
) -> None:
    in_turn(models, answer("without"))
    broken = {"name": "broken", "command": "/bin/sh", "args": ["-c", "echo no licence >&2; exit 3"]}
    task = task_with(root, models, broken, SDK, mode=mode)
    (result,) = root.run(task, brief())
    assert result["answer"] == "without"
    assert "MCP server broken cannot be used: it ended (exit code 3): no licence" in (
        models.heard[-1].words
    )
    assert "mcp__sdk__add" in models.heard[-1].tools
    assert [each["tool"] for each in denials(root, task)] == ["mcp__broken__*"]


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
@pytest.mark.parametrize("way", ["stubborn", "mute"])
def test_no_server_outlives_its_team(root: Root, models: Models, mode: str, way: str) -> None:
    """Neither one that will not go, nor one that has not even come, nor what it started."""
    mark = f"mark-{uuid.uuid4()}"
    seen: list[int] = []

    def look(last: str) -> Said:
        seen.append(len(at_work(mark)))
        return answer("done")

    in_turn(models, call("mcp__wild__leave"), look)
    task = task_with(root, models, WAYWARD | {"args": [*WAYWARD["args"], mark, way]}, mode=mode)
    if way == "mute":
        (name,) = root.spawn(task, brief(subagent_id="waits"))
        until(lambda: at_work(mark))
        root.call("subagent.cancel", task=task, subagent=name)
    else:
        (result,) = root.run(task, brief())
        assert result["answer"] == "done" and seen == [2], "itself, and what it started"
    assert not at_work(mark)


def test_each_member_of_a_team_has_servers_of_its_own(root: Root, models: Models) -> None:
    def script(heard: Heard) -> Said:
        if "mcp__wild__later" not in heard.words:
            return call("mcp__wild__later")
        if "present answers" in heard.words and "Your answer was chosen" not in heard.words:
            return Said(calls=[("vote", {"agent_id": "shared_agent_1"})])
        return answer(f"answer of {heard.model}")

    models.script = script
    listed = json.dumps([WAYWARD | SEEN])
    lines = models.config("one", "two", coordination="subagent_runtime_mode: inherited")
    text = "\n".join(
        line + (f"\n      mcp_servers: {listed}" if "base_url" in line else "")
        for line in lines.splitlines()
    )
    task = str(root.call("task.create", title="t", config_text=text)["task_id"])
    (result,) = root.run(task, brief(subagent_id="shared"))
    assert result["success"], result
    homes = [Path(result["workspace"], f"shared_agent_{number}") for number in (1, 2)]
    assert [starts(home) for home in homes] == [1, 1]


@pytest.fixture
def port() -> Iterator[int]:
    """Where an official server answers over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    argv = [sys.executable, str(SERVERS / "official.py"), "http", str(number)]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as server:
        until(lambda: answers(number))
        yield number
        server.kill()


def answers(port: int) -> bool:
    with socket.socket() as way:
        return way.connect_ex(("127.0.0.1", port)) == 0


def test_a_member_calls_the_tools_of_servers_at_an_address(
    root: Root, models: Models, port: int
) -> None:
    told = in_turn(
        models, call("mcp__far__add", a=2, b=40), call("mcp__far__fail", why="x"), answer("added")
    )
    far = {"type": "streamable-http", "paths": []}
    servers = [
        far | {"name": "far", "url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-A": "${PATH}"}},
        far | {"name": "lost", "url": f"http://127.0.0.1:{port}/elsewhere"},
    ]
    lines = models.config("user", coordination="subagent_runtime_mode: inherited").splitlines()
    at = next(number for number, line in enumerate(lines) if "base_url" in line)
    lines.insert(at + 1, f"      mcp_servers: {json.dumps(servers)}")
    task = str(root.call("task.create", title="t", config_text="\n".join(lines))["task_id"])
    (result,) = root.run(task, brief())
    assert (result["status"], result["answer"]) == ("completed", "added"), (result, told)
    assert told[1] == "42" and told[2] == "error: Error executing tool fail"
    assert "MCP server lost cannot be used: it answered with HTTP 404" in models.heard[-1].words


@pytest.mark.parametrize(
    ("server", "code", "why"),
    [
        ({"command": "no-such-program"}, "server_not_ready", "cannot be found"),
        ({"command": "sh", "env": {"A": "${NO_SUCH_ONE}"}}, "server_not_ready", "NO_SUCH_ONE"),
        ({"command": "sh", "paths": ["not/there"]}, "server_not_ready", "not/there"),
        ({"type": "streamable-http", "url": "http://[::1]:9"}, "server_unreachable", "no network"),
    ],
)
def test_a_server_that_could_not_be_there_is_refused_before_anything_exists(
    root: Root, models: Models, server: Row, code: str, why: str
) -> None:
    lines = models.config("user").splitlines()
    at = next(number for number, line in enumerate(lines) if "base_url" in line)
    lines.insert(at + 1, f"      mcp_servers: {json.dumps([server | {'name': 'x'}])}")
    task = str(root.call("task.create", title="t", config_text="\n".join(lines))["task_id"])
    before = root.counts()
    refused = root.refusal("subagent.spawn", task=task, tasks=[brief()])
    assert refused.code == code and why in refused.message
    assert root.counts() == before and not root.rows(task)


def test_a_tool_of_an_unknown_server_is_unknown(root: Root, models: Models) -> None:
    task = task_of(root, models, "user")
    tools = ["mcp__ghost__*"]
    refused = root.refusal("subagent.spawn", task=task, tasks=[brief(allowed_tools=tools)])
    assert refused.code == "unknown_tool"
