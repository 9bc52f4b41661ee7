"""Claude Code's own protocol: stream-json lines in both directions."""

from __future__ import annotations

import json
import os
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

_OWN_WORDS = "<synthetic>"  # the model of messages that the program writes itself
_LIMITS = {"error_max_turns", "error_max_budget_usd"}


class ClaudeLink(ProcessLink):
    """One `claude -p` with stream-json as input and output.

    Claude reads a message that is sent during a turn at its next tool call. If the turn has no
    further tool call, Claude begins another turn for the message, and `prompt` returns that one.
    """

    steers_in_turn = True
    _schema: Mapping[str, Any] | None = None
    _sent = 0  # messages of ours in this turn
    _taken = 0  # of these, those that it repeated when it took them up

    async def _open(self, session: str) -> str:
        # A session that cannot be resumed ends the program.
        await self.close()
        self._schema = None
        self._turn = None
        self.session = session or _make_session_id()
        await self._start("--resume" if session else "--session-id", self.session)
        # Answered when its start is complete.
        await self._control({"subtype": "initialize", "hooks": None})
        return self._open_session(self.session, resumed=bool(session))

    async def prompt(self, text: str, schema: Mapping[str, Any] | None = None) -> AgentTurn:
        """Send a prompt and wait until its turn is over."""
        if schema != self._schema:
            await self._restart(schema)
        turn = await self._begin_turn()
        self._sent = self._taken = 0
        with self._discard_unless_sent(turn):
            self._send_message(text)
        return await self._await_turn(turn)

    async def steer(self, text: str) -> bool:
        """Add a message to the running turn."""
        if not self._has_turn:
            return False
        self._send_message(text)
        return True

    async def interrupt(self) -> None:
        """End the running turn."""
        if self._has_turn:
            self._interrupted = True
            await self._control({"subtype": "interrupt"})

    def _send_message(self, text: str) -> None:
        self._send(_to_user_line(text))
        self._sent += 1

    async def _restart(self, schema: Mapping[str, Any] | None) -> None:
        """Restart the program with another answer schema, which is a command-line option."""
        has_spoken = self._turn is not None
        if self._has_turn:
            await self._begin_turn()
        await self.close()
        more = () if schema is None else ("--json-schema", json.dumps(schema))
        how = "--resume" if has_spoken else "--session-id"
        await self._start(*more, how, self.session)
        self._schema = schema

    def _interrupt_again(self) -> None:
        """End the further turn in which it would answer a message sent before the interrupt."""
        self._number += 1
        key = f"retinue-{self._number}"
        request = {"subtype": "interrupt"}
        self._reply({"type": "control_request", "request_id": key, "request": request})

    async def _control(self, request: Json) -> Json:
        self._number += 1
        key = f"retinue-{self._number}"
        line = {"type": "control_request", "request_id": key, "request": request}
        message = await self._wait_for(key, line)
        response = as_dict(message.get("response"))
        if response.get("subtype") == "error":
            why = as_text(response.get("error")) or "refused"
            raise LinkFailed(f"{request['subtype']}: {why}", code="agent_refused")
        return as_dict(response.get("response"))

    def _on_message(self, message: Json) -> None:
        match message.get("type"):
            case "stream_event":
                self._on_event(message)
            case "assistant":
                self._on_assistant(message)
            case "user":
                self._on_user(message)
            case "result":
                self._on_result(message)
            case "system":
                self._on_system(message)
            case "control_response":
                self._settle(as_dict(message.get("response")).get("request_id"), message)
            case "control_request":
                self._on_request(message)

    def _on_event(self, message: Json) -> None:
        if message.get("parent_tool_use_id"):
            return  # a subagent of the vendor speaks
        event = as_dict(message.get("event"))
        if event.get("type") == "content_block_start":
            self._finish_message()
        delta = as_dict(event.get("delta"))
        if delta.get("type") == "text_delta":
            self._hear_delta(as_text(delta.get("text")))

    def _on_assistant(self, message: Json) -> None:
        if message.get("parent_tool_use_id"):
            return None
        body = as_dict(message.get("message"))
        if body.get("model") == _OWN_WORDS:
            return self._warn("agent_message", join_text(body.get("content")))
        for block in map(as_dict, as_list(body.get("content"))):
            if block.get("type") == "text":
                self._hear_message(as_text(block.get("text")))
            elif block.get("type") == "tool_use":
                arguments = as_dict(block.get("input"))
                self._hear_call(
                    as_text(block.get("id")),
                    as_text(block.get("name")),
                    shorten(arguments),
                    arguments,
                )
        return None

    def _on_user(self, message: Json) -> None:
        if message.get("isReplay"):
            self._taken += 1
            return
        if message.get("parent_tool_use_id"):
            return
        for block in map(as_dict, as_list(as_dict(message.get("message")).get("content"))):
            if block.get("type") == "tool_result":
                self._hear_result(
                    as_text(block.get("tool_use_id")),
                    join_text(block.get("content")),
                    ok=not block.get("is_error"),
                )

    def _on_system(self, message: Json) -> None:
        if message.get("subtype") == "init":
            self.session = as_text(message.get("session_id")) or self.session
            if self._interrupted and self._has_turn:
                self._interrupt_again()
        elif message.get("subtype") == "api_retry":
            status = message.get("error_status")
            self._warn("api_retry", f"the provider answered {status}; it tries again")

    def _on_result(self, message: Json) -> None:
        if not self._has_turn:
            # Before any turn: the session to resume does not exist.
            why = "; ".join(map(as_text, as_list(message.get("errors")))) or "it refused to start"
            if self._waiting:
                raise LinkFailed(why, code="agent_refused")
            return
        # A message that came too late to join is answered next, in a turn of its own. A version
        # that does not repeat messages at all must not be waited for.
        if 0 < self._taken < self._sent:
            return
        subtype = as_text(message.get("subtype"))
        text = as_text(message.get("result"))
        error = ""
        stop: Stop = "end"
        if self._interrupted:
            stop = "cancelled"
        elif subtype in _LIMITS:
            stop = "limit"
        elif message.get("stop_reason") == "refusal":
            stop = "refused"
        elif message.get("is_error") or subtype != "success":
            # It reports a refused request as success with is_error.
            stop = "error"
            named = "; ".join(map(as_text, as_list(message.get("errors"))))
            error = text or named or subtype or "it told no reason"
            text = ""
        self._finish_message()
        usage = as_dict(message.get("usage"))
        cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
        self._end_turn(
            AgentTurn(
                text=self._said if stop != "end" else text or self._said,
                stop=stop,
                error=error,
                structured=message.get("structured_output"),
                usage=ClaimedUsage(
                    input_tokens=sum(as_count(usage.get(k)) for k in ("input_tokens", *cached)),
                    output_tokens=as_count(usage.get("output_tokens")),
                ),
            )
        )

    def _on_request(self, message: Json) -> None:
        request = as_dict(message.get("request"))
        head = {"request_id": message.get("request_id")}
        if request.get("subtype") != "can_use_tool":
            response: Json = head | {"subtype": "error", "error": "not offered"}
            return self._reply({"type": "control_response", "response": response})
        arguments = as_dict(request.get("input"))
        question = PermissionQuestion(
            tool=as_text(request.get("tool_name")), title=shorten(arguments), arguments=arguments
        )
        if self._ask_policy(question):
            answer: Json = {"behavior": "allow", "updatedInput": arguments}
        else:
            answer = {"behavior": "deny", "message": "the contract does not grant this tool"}
        response = head | {"subtype": "success", "response": answer}
        return self._reply({"type": "control_response", "response": response})


def _to_user_line(text: str) -> Json:
    content = [{"type": "text", "text": text}]
    return {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        "session_id": "default",
    }


def _make_session_id() -> str:
    """Return a random UUID of version 4."""
    number = bytearray(os.urandom(16))
    number[6] = number[6] & 0x0F | 0x40
    number[8] = number[8] & 0x3F | 0x80
    text = number.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
