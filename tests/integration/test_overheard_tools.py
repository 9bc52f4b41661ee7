"""Events for tools that a coding agent's model calls although its contract does not grant them."""

from __future__ import annotations

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


def denials(root: Root, task: str, subagent: str) -> list[Row]:
    events = root.events(task, subagent)
    return [each["payload"] for each in events if each["type"] == "agent.tool_denied"]
