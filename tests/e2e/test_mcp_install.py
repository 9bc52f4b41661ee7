"""The first minute: installing the server, choosing subagents, hearing of their ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.test_mcp import ASKS, give, play, refusal
from support.mcp import BOUND_S, ENVIRONMENT, SPAWN, Raw, task
from support.roots import Root, held


def run(folder: Path, *words: str, text: str = "", **variables: str) -> tuple[int, str, str]:
    environment = ENVIRONMENT | {"HOME": str(folder), "PATH": "/usr/bin:/bin"} | variables
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "retinue", *words],
        cwd=folder,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_subagents_are_offered_and_a_choice_is_written_and_counts(tmp_path: Path) -> None:
    key = {"ANTHROPIC_API_KEY": "k"}
    code, out, _ = run(tmp_path, "mcp", "install", "cursor", "--yes", **key)
    assert code == 0 and "subagents can be: @anthropic (ANTHROPIC_API_KEY is set)" in out
    assert not (tmp_path / ".retinue").exists()
    words = ("mcp", "install", "cursor", "--subagents", "@anthropic")
    code, out, err = run(tmp_path, *words, **key)
    assert code == 2 and "+  - id: anthropic" in out and "not_confirmed" in err
    assert not (tmp_path / ".retinue").exists(), "a refused change leaves nothing"
    with held(tmp_path / ".retinue"):
        code, out, _ = run(tmp_path, *words, "--yes", "--json", **key)
        document = json.loads(out)
        assert document["changed"] and document["config"] == str(tmp_path / ".retinue/config.yaml")
        code, out, err = run(tmp_path, *words, "--yes", **key)
        assert code != 0 and "already configures subagents" in err
        code, _, err = run(tmp_path, "task", "create", "--title", "t", **key)
        assert code == 0, f"the root is trusted: {err}"


def test_an_unavailable_choice_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    code, _, err = run(
        tmp_path, "mcp", "install", "cursor", "--subagents", "@gemini", "--yes", OPENAI_API_KEY="k"
    )
    assert code == 2 and "available: @openai" in err and list(tmp_path.iterdir()) == []


def test_a_choice_needs_no_client(tmp_path: Path) -> None:
    key = {"OPENAI_API_KEY": "k"}
    code, _, err = run(tmp_path, "mcp", "install", **key)
    assert code == 2 and "name a client: claude, " in err
    with held(tmp_path / ".retinue"):
        code, out, _ = run(tmp_path, "mcp", "install", "--subagents", "@openai", "--yes", **key)
        assert code == 0 and "config.yaml was created" in out
        assert [each.name for each in tmp_path.iterdir()] == [".retinue"]


def test_a_server_without_a_backend_says_what_helps(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(ENVIRONMENT, "HOME", str(tmp_path))
    root = tmp_path / "project" / ".retinue"
    root.parent.mkdir()

    async def scene(connected: Any) -> None:
        listed = await connected.call_tool("list_subagents", {})
        command = "or run: retinue model install"
        assert command in listed.structured_content["problem"]
        assert command in "\n".join(block.text for block in listed.content)
        assert command in await refusal(connected, SPAWN, tasks=[task("echo 1", "a")])
        root.mkdir(mode=0o700)
        text = "agents: [{id: c, backend: {type: command, argv: [sh]}}]"
        (root / "config.yaml").write_text(text)
        assert "problem" not in await give(connected, "list_subagents")

    with held(root):
        play(root, scene)


def test_a_hook_hears_of_each_end_once_and_keeps_the_agent_from_missing_it(own: Path) -> None:
    def hook(event: str, **more: Any) -> str:
        given = json.dumps({"hook_event_name": event, **more})
        code, out, err = run(own.parent, "--root", str(own), "mcp", "news", text=given)
        assert (code, err) == (0, "")
        return out

    with Raw(own) as server:
        assert hook("Stop") == ""
        given = {"tasks": [task("echo a", "a")], "background": True}
        server.open().answer(server.call(SPAWN, given))
        with_root = Root(own)
        with_root.call("subagent.wait_all", task="mcp", timeout_seconds=BOUND_S)
        with_root.release()
        told = json.loads(hook("PostToolUse"))["hookSpecificOutput"]
        assert (
            told["hookEventName"] == "PostToolUse" and "a (completed)" in told["additionalContext"]
        )
        assert hook("PostToolUse") == "", "once"
        stop = json.loads(hook("Stop"))
        assert stop["decision"] == "block" and "a (completed)" in stop["reason"]
        assert "such as list_subagents" in stop["reason"]
        assert json.loads(hook("Stop", stop_hook_active=True)) == {}
        listed = server.answer(server.call("list_subagents", {}))["result"]["structuredContent"]
        assert [each["subagent_id"] for each in listed["background_results"]] == ["a"]
        assert hook("Stop") == "", "it was read"
        server.answer(server.call(SPAWN, {"tasks": [task(ASKS, "asks")], "background": True}))
        with_root.call("subagent.wait_any", task="mcp", timeout_seconds=BOUND_S)
        with_root.release()
        assert "ended or ask: asks (blocked)" in json.loads(hook("Stop"))["reason"]
        server.answer(server.call("list_subagents", {}))
    assert hook("Stop") == ""
