#!/usr/bin/env python3
"""A small coding agent that speaks ACP: it has a shell, takes MCP servers, and saves its sessions.

What it says and does is decided by the model at MODEL_URL, in OpenAI's chat format. Like some real
agents it reports success whatever the provider said. Its first argument may ask for a fault:
`old` (an unknown version of the protocol), `deaf` (it neither asks a model nor listens),
`forgetful` (it resumes a session without what was said in it).
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
SESSIONS = Path(os.environ["AGENT_HOME"], "sessions")
SHELL = {"type": "object", "properties": {"command": {"type": "string"}}}
writing = threading.Lock()


def send(message: Json) -> None:
    with writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        sys.stdout.flush()


class Cancelled(Exception):
    pass


class Session:
    def __init__(self, name: str, servers: list[Json]) -> None:
        self.name = name
        self.servers = servers
        self.file = SESSIONS / f"{name}.json"
        self.messages: list[Json] = []
        if self.file.exists() and FAULT != "forgetful":
            self.messages = json.loads(self.file.read_text())
        self.cancelled = False
        self.connection: http.client.HTTPConnection | None = None
        self.command: subprocess.Popen[str] | None = None

    def update(self, what: str, **facts: Any) -> None:
        update = {"sessionUpdate": what} | facts
        send({"method": "session/update", "params": {"sessionId": self.name, "update": update}})

    def cancel(self) -> None:
        self.cancelled = True
        if self.connection is not None and self.connection.sock is not None:
            self.connection.sock.shutdown(2)
        if self.command is not None:
            os.killpg(self.command.pid, signal.SIGKILL)

    def prompt(self, number: int, text: str) -> None:
        """Ask the model and carry out its calls until it has no more."""
        self.cancelled = False
        self.messages.append({"role": "user", "content": text})
        try:
            if FAULT == "deaf":
                threading.Event().wait()
            while self.step():
                pass
            stop = "end_turn"
        except Cancelled:
            stop = "cancelled"
        SESSIONS.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.messages))
        send({"id": number, "result": {"stopReason": stop}})

    def step(self) -> bool:
        """Take one answer of the model; return whether the turn goes on."""
        tools = self.list_tools()
        try:
            text, calls = self.ask(tools)
        except OSError as fault:
            if self.cancelled:
                raise Cancelled from None
            self.update("agent_message_chunk", content={"type": "text", "text": f"Done. {fault}"})
            return False
        said: Json = {"role": "assistant", "content": text}
        self.messages.append(said | ({"tool_calls": calls} if calls else {}))
        for call in calls:
            result = self.use(call, tools)
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if self.cancelled:
                raise Cancelled
        return bool(calls)

    def ask(self, tools: dict[str, Json]) -> tuple[str, list[Json]]:
        """Stream one answer, telling its words as they come."""
        place = urllib.parse.urlsplit(os.environ["MODEL_URL"])
        connection = http.client.HTTPConnection(place.netloc)
        self.connection = connection
        offered = [
            {"type": "function", "function": {"name": name, "parameters": tool["schema"]}}
            for name, tool in tools.items()
        ]
        body = {"model": os.environ["MODEL"], "stream": True, "messages": self.messages}
        key = os.environ["MODEL_KEY"]
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        text, calls = "", []
        try:
            connection.request(
                "POST",
                f"{place.path}/chat/completions",
                json.dumps(body | {"tools": offered}),
                headers,
            )
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(f"status {response.status}")
            for line in response:
                if self.cancelled:
                    raise Cancelled
                if line.startswith(b"data: [DONE]"):
                    break  # without waiting for the end of the connection, as Codex does
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    piece = choice["delta"].get("content") or ""
                    text += piece
                    if piece:
                        content = {"type": "text", "text": piece}
                        self.update("agent_message_chunk", content=content)
                    calls += choice["delta"].get("tool_calls") or []
        except http.client.HTTPException as fault:
            raise OSError(str(fault)) from None
        finally:
            self.connection = None
            connection.close()
        if self.cancelled:
            raise Cancelled
        return text, calls

    def list_tools(self) -> dict[str, Json]:
        tools: dict[str, Json] = {"shell": {"schema": SHELL, "server": None}}
        for server in self.servers:
            for tool in self.call_server(server, "tools/list", {})["tools"]:
                tools[tool["name"]] = {"schema": tool["inputSchema"], "server": server}
        return tools

    def call_server(self, server: Json, method: str, params: Json) -> Json:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {each["name"]: each["value"] for each in server["headers"]}
        request = urllib.request.Request(
            server["url"], json.dumps(body).encode(), headers | {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            result: Json = json.loads(response.read())["result"]
        return result

    def use(self, call: Json, tools: dict[str, Json]) -> str:
        name = call["function"]["name"]
        arguments = json.loads(call["function"]["arguments"])
        facts = {"toolCallId": call["id"], "title": name, "rawInput": arguments}
        self.update("tool_call", kind="execute", status="in_progress", **facts)
        server = tools[name]["server"]
        if server is None:
            result = self.run(arguments["command"])
        else:
            answer = self.call_server(server, "tools/call", {"name": name, "arguments": arguments})
            result = "".join(part["text"] for part in answer["content"])
        shown = [{"type": "content", "content": {"type": "text", "text": result}}]
        self.update("tool_call_update", status="completed", content=shown, **facts)
        return result

    def run(self, command: str) -> str:
        pipe = subprocess.PIPE
        self.command = subprocess.Popen(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        output, _ = self.command.communicate()
        self.command = None
        return output


def main() -> None:
    sessions: dict[str, Session] = {}
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if method == "initialize":
            capabilities = {"loadSession": True, "mcpCapabilities": {"http": True}}
            version = 99 if FAULT == "old" else 1
            result: Json = {"protocolVersion": version, "agentCapabilities": capabilities}
            send({"id": message["id"], "result": result})
        elif method == "session/new":
            name = os.urandom(8).hex()
            sessions[name] = Session(name, params["mcpServers"])
            send({"id": message["id"], "result": {"sessionId": name}})
        elif method == "session/load":
            name = params["sessionId"]
            sessions[name] = session = Session(name, params["mcpServers"])
            for each in session.messages:
                kind = "user_message_chunk" if each["role"] == "user" else "agent_message_chunk"
                session.update(kind, content={"type": "text", "text": each["content"] or ""})
            send({"id": message["id"], "result": {}})
        elif method == "session/prompt":
            text = "".join(part["text"] for part in params["prompt"])
            session = sessions[params["sessionId"]]
            given = (message["id"], text)
            threading.Thread(target=session.prompt, args=given, daemon=True).start()
        elif method == "session/cancel" and FAULT != "deaf":
            sessions[params["sessionId"]].cancel()


if __name__ == "__main__":
    main()
