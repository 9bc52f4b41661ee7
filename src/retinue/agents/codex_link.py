"""Codex's own protocol: `codex app-server`, JSON-RPC lines without a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.agents.link import AgentTurn, ClaimedUsage, Json, LinkFailed, PermissionQuestion, Stop
from retinue.agents.process_link import (
    ProcessLink,
    as_count,
    as_dict,
    as_list,
    as_text,
    join_text,
    shorten,
)

_TOOLS = {"commandExecution", "fileChange", "mcpToolCall", "dynamicToolCall", "webSearch"}
_STOPS: dict[str, Stop] = {"completed": "end", "interrupted": "cancelled"}


class CodexLink(ProcessLink):
    """One `codex app-server` and one thread of it."""

    steers_in_turn = True
    _turn_id = ""
    _error = ""
    _usage: ClaimedUsage | None = None

    async def _open(self, session: str) -> str:
        if not self._is_running:
            await self.close()
            await self._start()
            client = {"name": "retinue", "title": "Retinue", "version": "1"}
            await self._call("initialize", {"clientInfo": client})
            self._send({"method": "initialized"})
        params: Json = {"cwd": self._launch.cwd}
        if session:
            # Without its turns: what was said before is not progress.
            known = {"threadId": session, "excludeTurns": True}
            result = await self._call("thread/resume", params | known)
        else:
            result = await self._call("thread/start", params)
        thread = as_text(as_dict(result.get("thread")).get("id"))
        if not thread:
            raise LinkFailed("the thread that it began has no id")
        return self._open_session(thread, resumed=bool(session))

    async def prompt(self, text: str, schema: Mapping[str, Any] | None = None) -> AgentTurn:
        """Send a prompt and wait until its turn is over."""
        turn = await self._begin_turn()
        self._turn_id = ""
        self._error = ""
        self._usage = None
        params = self._to_input(text)
        if schema is not None:
            params["outputSchema"] = dict(schema)
        with self._discard_unless_sent(turn):
            result = await self._call("turn/start", params)
        self._turn_id = as_text(as_dict(result.get("turn")).get("id")) or self._turn_id
        return await self._await_turn(turn)

    async def steer(self, text: str) -> bool:
        """Add a message to the running turn; False if there is none, or it is just ending."""
        if not self._has_turn or not self._turn_id:
            return False
        params = {"expectedTurnId": self._turn_id} | self._to_input(text)
        return await self._call_unless_refused("turn/steer", params)

    async def interrupt(self) -> None:
        """End the running turn."""
        if not self._has_turn or not self._turn_id:
            return
        self._interrupted = True
        # It refuses if the turn has just ended by itself.
        params = {"threadId": self.session, "turnId": self._turn_id}
        await self._call_unless_refused("turn/interrupt", params)

    def _to_input(self, text: str) -> Json:
        return {"threadId": self.session, "input": [{"type": "text", "text": text}]}

    def _on_message(self, message: Json) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            return self._settle(message.get("id"), message)
        params = as_dict(message.get("params"))
        if "id" in message:
            return self._on_request(message["id"], method, params)
        match method:
            case "turn/started":
                self._turn_id = as_text(as_dict(params.get("turn")).get("id")) or self._turn_id
            case "item/agentMessage/delta":
                self._hear_delta(as_text(params.get("delta")))
            case "item/started":
                self._on_item(as_dict(params.get("item")), done=False)
            case "item/completed":
                self._on_item(as_dict(params.get("item")), done=True)
            case "thread/tokenUsage/updated":
                # After a resume it repeats the usage of an earlier turn.
                if params.get("turnId") == self._turn_id:
                    self._on_usage(as_dict(as_dict(params.get("tokenUsage")).get("last")))
            case "error":
                self._error = as_text(as_dict(params.get("error")).get("message"))
                if params.get("willRetry"):
                    self._warn("api_retry", self._error)
            case "warning" | "configWarning" | "deprecationNotice":
                text = as_text(params.get("message")) or as_text(params.get("summary"))
                self._warn("agent_warning", text)
            case "turn/completed":
                self._on_completed(as_dict(params.get("turn")))
        return None

    def _on_item(self, item: Json, *, done: bool) -> None:
        kind = as_text(item.get("type"))
        if kind == "agentMessage":
            if done:
                self._hear_message(as_text(item.get("text")))
            return
        if kind not in _TOOLS:
            return
        call = as_text(item.get("id"))
        name = as_text(item.get("tool")) or kind
        if server := as_text(item.get("server")):
            name = f"{server}.{name}"
        command = as_text(item.get("command"))
        title = command or shorten(item.get("arguments") or item.get("changes") or "")
        arguments = as_dict(item.get("arguments")) or ({"command": command} if command else {})
        self._hear_call(call, name, title, arguments)
        if done:
            self._hear_result(call, _read_output(item), ok=item.get("status") == "completed")

    def _on_usage(self, last: Json) -> None:
        heard = self._usage or ClaimedUsage()
        self._usage = ClaimedUsage(
            input_tokens=heard.input_tokens + as_count(last.get("inputTokens")),
            output_tokens=heard.output_tokens + as_count(last.get("outputTokens")),
        )

    def _on_completed(self, turn: Json) -> None:
        stop = _STOPS.get(as_text(turn.get("status")), "error")
        error = as_text(as_dict(turn.get("error")).get("message")) or self._error
        self._finish_message()
        self._end_turn(
            AgentTurn(
                text=self._said,
                stop=stop,
                error=(error or "it told no reason") if stop == "error" else "",
                usage=self._usage,
            )
        )

    def _on_request(self, number: object, method: str, params: Json) -> None:
        if method == "mcpServer/elicitation/request":
            # Our own server asks nothing; another one is not part of the contract.
            return self._reply({"id": number, "result": {"action": "decline"}})
        if not method.endswith("/requestApproval"):
            error = {"code": -32601, "message": "not offered"}
            return self._reply({"id": number, "error": error})
        tool = "fileChange" if "fileChange" in method else "exec_command"
        title = as_text(params.get("command")) or as_text(params.get("reason"))
        granted = self._ask_policy(PermissionQuestion(tool=tool, title=title))
        decision = "accept" if granted else "decline"
        return self._reply({"id": number, "result": {"decision": decision}})


def _read_output(item: Json) -> str:
    """Return the result of a tool, or its error."""
    if text := as_text(item.get("aggregatedOutput")):
        return text
    if error := as_text(as_dict(item.get("error")).get("message")):
        return error
    result = as_dict(item.get("result"))
    changes = [as_text(as_dict(each).get("path")) for each in as_list(item.get("changes"))]
    return join_text(result.get("content")) or "\n".join(filter(None, changes))
