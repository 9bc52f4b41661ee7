"""The official ACP library, as editors use it, drives a Retinue team."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from clients.test_agents import project
from e2e.test_acp import is_progress
from support.agents import BINARIES
from support.mcp import ENVIRONMENT

__all__ = ["project"]

BOUND_S = 60
ASKS = (
    'if grep -q "be [s]low" "$RETINUE_BRIEF"; then sleep 60; fi; '
    'if grep -q "## [A]nswer" "$RETINUE_BRIEF"; then echo thanks; else '
    """printf '{"status":"blocked","questions":["publish?"]}' > "$RETINUE_FINAL"; fi; exit 0"""
)
CLIENT = """\
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import { client, ndJsonStream, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";
const [cwd, text, program, ...words] = process.argv.slice(2);
const agent = spawn(program, words, { cwd, stdio: ["pipe", "pipe", "inherit"] });
const stream = ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const seen = [];
let heard = () => {};
const app = client()
  .onNotification("session/update", ({ params }) => { seen.push(params.update); heard(); })
  .onRequest("session/request_permission", ({ params }) => {
    seen.push({ sessionUpdate: "permission", title: params.toolCall.title });
    return { outcome: { outcome: "selected", optionId: params.options[0].optionId } };
  });
await app.connectWith(stream, async (cx) => {
  await cx.request("initialize", { protocolVersion: PROTOCOL_VERSION, clientCapabilities: {} });
  const { sessionId } = await cx.request("session/new", { cwd, mcpServers: [] });
  const prompt = [{ type: "text", text }];
  const end = await cx.request("session/prompt", { sessionId, prompt });
  const asked = seen.splice(0);
  await cx.request("session/load", { sessionId, cwd, mcpServers: [] });
  const loaded = seen.splice(0);
  const slow = { sessionId, prompt: [{ type: "text", text: "# be slow" }] };
  const turn = cx.request("session/prompt", slow);
  await new Promise((resolve) => { heard = resolve; });
  await cx.notify("session/cancel", { sessionId });
  console.log(JSON.stringify({ end, asked, loaded, cancelled: await turn }));
});
agent.stdin.end();
"""


def test_an_acp_client_asks_answers_loads_and_cancels(project: Path, tmp_path: Path) -> None:
    # Imports are resolved from the place of the script.
    (tmp_path / "node_modules").symlink_to(BINARIES.parent)
    script = tmp_path / "client.mjs"
    script.write_text(CLIENT)
    ours = [sys.executable, "-m", "retinue", "--root", str(project / ".retinue"), "acp"]
    ended = subprocess.run(
        [str(BINARIES / "node"), str(script), str(project), ASKS, *ours],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["end"] == {"stopReason": "end_turn"}
    kinds = [each["sessionUpdate"] for each in told["asked"] if not is_progress(each)]
    assert kinds == ["tool_call", "permission", "tool_call_update", "agent_message_chunk"]
    assert told["asked"][1]["title"] == "publish?"
    assert told["asked"][-1]["content"]["text"] == "thanks"
    assert [each["content"]["text"] for each in told["loaded"]][-1] == "thanks"
    assert told["cancelled"] == {"stopReason": "cancelled"}
