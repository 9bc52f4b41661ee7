"""Agent Client Protocol, version 1: Gemini CLI, opencode, Goose, Copilot and any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.agents.launch import SERVER, AgentLaunch
from retinue.agents.link import (
    AgentTurn,
    ClaimedUsage,
    Json,
    LinkFailed,
    Observer,
    PermissionPolicy,
    PermissionQuestion,
    Stop,
)
from retinue.agents.process_link import (
    ConnectAgent,
    ProcessLink,
    as_count,
    as_dict,
    as_list,
    as_text,
    join_text,
    shorten,
)
from retinue.agents.profiles import AgentProfile

_STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "cancelled": "cancelled",
    "max_tokens": "limit",
    "max_turn_requests": "limit",
    "refusal": "refused",
}
_CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


class AcpLink(ProcessLink):
    """One ACP agent and one session of it."""

    version = "2.0"

    def __init__(
        self,
        launch: AgentLaunch,
        observer: Observer,
        policy: PermissionPolicy,
        profile: AgentProfile,
        *,
        connect: ConnectAgent | None = None,
    ) -> None:
        super().__init__(launch, observer, policy, connect=connect)
        self._profile = profile
        # A second prompt joins the running turn of some agents; it cancels that of others.
        self._joins_prompts = profile.steer == "in_turn"
        self.steers_in_turn = self._joins_prompts
        self._capabilities: Json = {}
        self._steering = ""  # method of an extension by which it can be steered
        self._is_loading = False
        self._message_id = ""
        self._pending: set[int] = set()  # prompts of the running turn that were not answered

    async def _open(self, session: str) -> str:
        if not self._is_running:
            await self.close()
            await self._start()
            await self._initialize()
        params: Json = {"cwd": self._launch.cwd, "mcpServers": self._list_servers()}
        # What an agent repeats of an earlier conversation is not progress.
        self._is_loading = True
        try:
            if session:
                await self._call(self._find_resume_method(), params | {"sessionId": session})
                begun = session
            else:
                begun = as_text((await self._call("session/new", params)).get("sessionId"))
        finally:
            self._is_loading = False
        if not begun:
            raise LinkFailed("the session that it began has no id")
        return self._open_session(begun, resumed=bool(session))

    async def prompt(self, text: str, schema: Mapping[str, Any] | None = None) -> AgentTurn:
        """Send a prompt and wait until its turn is over; ACP cannot carry the schema."""
        turn = await self._begin_turn()
        self._message_id = ""
        self._pending.clear()
        with self._discard_unless_sent(turn):
            self._send_prompt(text)
        return await self._await_turn(turn)

    async def steer(self, text: str) -> bool:
        """Add a message to the running turn, where the agent can do that."""
        if not self._has_turn:
            return False
        if self._steering:
            return await self._call_unless_refused(self._steering, self._to_prompt(text))
        if self._joins_prompts:
            self._send_prompt(text)
        return self._joins_prompts

    async def interrupt(self) -> None:
        """End the running turn."""
        if self._has_turn:
            self._interrupted = True
            params = {"sessionId": self.session}
            self._send({"jsonrpc": "2.0", "method": "session/cancel", "params": params})

    async def _initialize(self) -> None:
        client = {"name": "retinue", "version": "1"}
        result = await self._call(
            "initialize",
            {"protocolVersion": 1, "clientCapabilities": _CAPABILITIES, "clientInfo": client},
        )
        if result.get("protocolVersion") != 1:
            raise LinkFailed(f"it speaks version {shorten(result.get('protocolVersion'))} of ACP")
        self._capabilities = as_dict(result.get("agentCapabilities"))
        steering = as_dict(as_dict(result.get("_meta")).get("steering"))
        if steering.get("supported"):
            self._steering = "_session/steering"
            self.steers_in_turn = True

    def _list_servers(self) -> list[Json]:
        server = self._launch.tool_server
        if server is None:
            return []
        if not as_dict(self._capabilities.get("mcpCapabilities")).get("http"):
            self._warn("no_tool_server", "it takes no MCP servers over HTTP")
            return []
        header = {"name": "Authorization", "value": f"Bearer {server.token}"}
        return [{"type": "http", "name": SERVER, "url": server.url, "headers": [header]}]

    def _find_resume_method(self) -> str:
        sessions = as_dict(self._capabilities.get("sessionCapabilities"))
        if sessions.get("resume") is not None:
            return "session/resume"
        if self._capabilities.get("loadSession"):
            return "session/load"
        raise LinkFailed("it cannot resume sessions", code="agent_refused")

    def _to_prompt(self, text: str) -> Json:
        return {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]}

    def _send_prompt(self, text: str) -> None:
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": "session/prompt"}
        self._send(request | {"params": self._to_prompt(text)})
        self._pending.add(self._number)

    def _on_message(self, message: Json) -> None:
        method = message.get("method")
        params = as_dict(message.get("params"))
        if not isinstance(method, str):
            self._on_answer(message)
        elif method == "session/update":
            if not self._is_loading and params.get("sessionId") in (self.session, None):
                self._on_update(as_dict(params.get("update")))
        elif method == "session/request_permission":
            self._on_permission(message.get("id"), params)
        elif "id" in message:
            error = {"code": -32601, "message": "not offered"}
            self._reply({"jsonrpc": "2.0", "id": message["id"], "error": error})

    def _on_answer(self, message: Json) -> None:
        number = message.get("id")
        if not isinstance(number, int) or number not in self._pending:
            return self._settle(number, message)
        self._pending.discard(number)
        if self._pending:  # prompts that joined the turn end with it
            return None
        self._finish_message()
        result = as_dict(message.get("result"))
        error = as_dict(message.get("error"))
        stop = _STOPS.get(as_text(result.get("stopReason")), "error")
        if self._interrupted:
            stop = "cancelled"
        said = " ".join(filter(None, (as_text(error.get("message")), _read_data(error))))
        self._end_turn(
            AgentTurn(
                text=self._said,
                stop=stop,
                error=(said or "it told no reason") if stop == "error" else "",
                usage=_read_usage(result),
            )
        )
        return None

    def _on_update(self, update: Json) -> None:
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            self._on_chunk(update)
        elif kind in ("tool_call", "tool_call_update"):
            call = as_text(update.get("toolCallId"))
            title = as_text(update.get("title"))
            arguments = as_dict(update.get("rawInput"))
            tool = self._read_tool(update)
            self._hear_call(call, tool, title or shorten(arguments), arguments)
            status = update.get("status")
            if status in ("completed", "failed"):
                self._hear_result(call, _read_result(update), ok=status == "completed")

    def _on_chunk(self, update: Json) -> None:
        text = as_text(as_dict(update.get("content")).get("text"))
        if self._profile.own_words and text.startswith(self._profile.own_words):
            return self._warn("agent_message", text)
        message_id = as_text(update.get("messageId"))
        if message_id != self._message_id:
            if not message_id:
                # Agents that number the model's messages write their own words without one.
                return self._warn("agent_message", text)
            self._finish_message()
            self._message_id = message_id
        return self._hear_delta(text)

    def _read_tool(self, update: Json) -> str:
        """Return the tool's name if the agent sends it, else its kind."""
        return self._read_name(update) or as_text(update.get("kind")) or "other"

    def _read_name(self, call: Json) -> str:
        meta = as_dict(call.get("_meta"))
        goose = as_dict(as_dict(meta.get("goose")).get("toolCall"))
        told = (call.get("name"), meta.get("toolName"), goose.get("toolName"))
        name = next(filter(None, map(as_text, told)), "")
        if not name and self._profile.names_tools_in == "id":
            name = as_text(call.get("toolCallId")).rpartition("__")[0]
        elif not name and self._profile.names_tools_in == "title":
            # Only the first title is the name; later ones say what the tool does.
            is_first = call.get("sessionUpdate") == "tool_call" and call.get("status") == "pending"
            name = as_text(call.get("title")) if is_first else ""
        return name

    def _on_permission(self, number: object, params: Json) -> None:
        call = as_dict(params.get("toolCall"))
        question = PermissionQuestion(
            tool=self._read_name(call),
            kind=as_text(call.get("kind")),
            title=as_text(call.get("title")),
            arguments=as_dict(call.get("rawInput")),
        )
        wanted = "allow_once" if self._ask_policy(question) else "reject_once"
        options = map(as_dict, as_list(params.get("options")))
        chosen = next((each for each in options if each.get("kind") == wanted), None)
        outcome: Json = {"outcome": "cancelled"}
        if chosen is not None:
            outcome = {"outcome": "selected", "optionId": chosen.get("optionId")}
        self._reply({"jsonrpc": "2.0", "id": number, "result": {"outcome": outcome}})


def _read_result(update: Json) -> str:
    text = join_text(update.get("content"))
    if not text and (output := update.get("rawOutput")):
        text = output if isinstance(output, str) else shorten(output)
    return text


def _read_data(error: Json) -> str:
    data = error.get("data")
    return f"({shorten(data)})" if data else ""


def _read_usage(result: Json) -> ClaimedUsage | None:
    usage = as_dict(result.get("usage"))
    if not usage:
        return None
    return ClaimedUsage(
        input_tokens=as_count(usage.get("inputTokens")),
        output_tokens=as_count(usage.get("outputTokens")),
    )
