"""Events for tools that a coding agent's model calls although its contract does not grant them."""

from __future__ import annotations

import json

import pytest

from support.conductor import Step, conducting
from support.roots import Root, Row

AGENT = """#!/usr/bin/python3
import json, os, urllib.request
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"}
for count in range(5):
    results = [{"type": "tool_result", "tool_use_id": str(n), "content": "-"} for n in range(count)]
    messages = [{"role": "user", "content": results or "go"}]
    body = {"model": "m", "max_tokens": 9, "stream": True, "tools": [{"name": "Read"}]}
    data = json.dumps(body | {"messages": messages}).encode()
    print(len(urllib.request.urlopen(urllib.request.Request(url, data, headers)).read()))
"""
CONFIG = """
agents: [{{id: m, backend: {{type: anthropic, model: m, base_url: "{url}"}}}}]
orchestrator: {{coordination: {{subagent_min_timeout: 0.1}}}}
"""
# Stands for Gemini CLI: it does nothing that it did not offer, and tells nobody of such calls.
GEMINI = """#!/usr/bin/python3
import json, os, sys, urllib.request
url = os.environ["GOOGLE_GEMINI_BASE_URL"] + "/v1beta/models/m:streamGenerateContent?alt=sse"
headers = {"x-goog-api-key": os.environ["GEMINI_API_KEY"], "content-type": "application/json"}
tools = [{"functionDeclarations": [{"name": "read_file"}]}]
def say(**message):
    print(json.dumps({"jsonrpc": "2.0"} | message), flush=True)
def work():
    parts = [{"text": "go"}]
    for _ in range(3):
        body = {"contents": [{"role": "user", "parts": parts}], "tools": tools}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request).read()
        parts.append({"functionResponse": {"name": "any", "response": {}}})
    piece = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "done"}}
    say(method="session/update", params={"sessionId": "s", "update": piece})
for line in sys.stdin:
    asked = json.loads(line)
    match asked["method"]:
        case "initialize":
            say(id=asked["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
        case "session/new":
            say(id=asked["id"], result={"sessionId": "s"})
        case "session/prompt":
            work()
            say(id=asked["id"], result={"stopReason": "end_turn"})
"""
SCRIPT: list[Step] = [("Bash", {"command": "x"}), ("Read", {}), ("Bash", {}), ("Write\n", {})]


@pytest.mark.requirement("R101")
def test_each_tool_that_was_not_offered_is_recorded_once(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    agent = root.path.parent / "claude"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    with conducting(SCRIPT, insists=True) as model:
        config = CONFIG.format(url=model.url)
        task = str(root.call("task.create", title="t", config_text=config)["task_id"])
        work = {"argv": [str(agent), "-p", "go"], "context_paths": [str(agent)]}
        held = work | {"subagent_id": "held", "allowed_tools": ["read_file"]}
        for result in root.run(task, held, work | {"subagent_id": "free"}):
            assert result["status"] == "completed", result
    denied = {name: denials(root, task, name) for name in ("held", "free")}
    assert [each["tool"] for each in denied["held"]] == ["Bash", "Write"]
    assert {each["member"] for each in denied["held"]} == {"held"}
    assert "contract does not grant" in denied["held"][0]["reason"]
    assert not denied["free"]


@pytest.mark.requirement("R101")
def test_a_member_is_named_with_the_tool_that_its_program_did_not_offer(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "key")
    program = fresh.path.parent / "gemini"
    program.write_text(GEMINI)
    program.chmod(0o755)
    with conducting([("run_shell_command", {}), ("read_file", {})], insists=True) as model:
        provider = {"type": "gemini", "model": "m", "base_url": model.url}
        agent = {"type": "gemini_cli", "program": str(program)}
        config = {
            "agents": [{"id": "reader", "backend": agent}],
            "providers": [{"id": "p", "backend": provider}],
        }
        task = fresh.call("task.create", title="t", config_text=json.dumps(config))["task_id"]
        brief = {"task": "go", "agent": "reader", "context_paths": [], "subagent_id": "held"}
        (result,) = fresh.run(task, brief | {"allowed_tools": ["read_file"]})
        (free,) = fresh.run(task, brief | {"subagent_id": "free"})
    assert (result["status"], result["answer"]) == ("completed", "done"), result
    assert free["status"] == "completed", free
    (denied,) = denials(fresh, task, "held")
    assert (denied["tool"], denied["member"]) == ("run_shell_command", "held_agent_1"), denied
    assert not denials(fresh, task, "free")


def denials(root: Root, task: str, subagent: str) -> list[Row]:
    events = root.events(task, subagent)
    return [each["payload"] for each in events if each["type"] == "agent.tool_denied"]
