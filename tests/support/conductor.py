"""A model that conducts a coding agent: it calls the tools of a script, then says what they gave.

It speaks the four wire formats. Where it stands in its script it tells from the request itself,
by counting the tool results in it, so it needs no memory and no order of requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.upstream import named, serving, sse

Document = dict[str, Any]
Step = tuple[str, Document]  # the end of a tool's name, and its arguments
USAGE = {"input_tokens": 10, "output_tokens": 5}


@dataclass
class Conductor:
    script: Sequence[Step]
    insists: bool = False  # on tools that it was not offered, too
    port: int = 0
    offered: set[str] = field(default_factory=set)  # every tool that any request offered
    results: list[str] = field(default_factory=list)  # of the longest request
    asked: list[tuple[str, Document]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        document = json.loads(body) if body else {}
        self.asked.append((request.path, document))
        form = next((f for f in FORMS if f.matches(request.path)), None)
        if form is None or request.method != "POST":
            return web.json_response(
                {"data": [], "models": [], "input_tokens": 1, "totalTokens": 1}
            )
        names = dict(form.tools(document))
        self.offered |= set(names)
        results = form.results(document)
        if len(results) > len(self.results):
            self.results = results
        step = self._step(names, len(results))
        final = "DONE " + (results[-1][:2000] if results else "nothing")
        events = form.says(final, document) if step is None else form.calls(step, document)
        if not form.streams(request, document):
            return web.json_response(form.whole())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        await response.write_eof()
        return response

    def _step(self, names: Document, done: int) -> tuple[str, str, Document, int] | None:
        if done >= len(self.script):
            return None
        end, arguments = self.script[done]
        found = next((name for name in names if name.endswith(end)), end if self.insists else None)
        return None if found is None else (found, names.get(found, ""), arguments, done)


class Messages:
    """Anthropic's."""

    def matches(self, path: str) -> bool:
        return path.endswith("/messages")

    def streams(self, request: web.BaseRequest, document: Document) -> bool:
        return bool(document.get("stream"))

    def tools(self, document: Document) -> Iterator[tuple[str, str]]:
        return ((tool["name"], "") for tool in document.get("tools") or [] if "name" in tool)

    def results(self, document: Document) -> list[str]:
        return [
            json.dumps(block.get("content"))
            for message in document.get("messages", [])
            if isinstance(message.get("content"), list)
            for block in message["content"]
            if block.get("type") == "tool_result"
        ]

    def says(self, text: str, document: Document) -> list[bytes]:
        block = {"type": "text", "text": ""}
        return self._events(block, {"type": "text_delta", "text": text}, "end_turn", document)

    def calls(self, step: tuple[str, str, Document, int], document: Document) -> list[bytes]:
        name, _, arguments, number = step
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        return self._events(block, delta, "tool_use", document)

    def whole(self) -> Document:
        return {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": "ok"}],
            "stop_reason": "end_turn",
            "usage": USAGE,
        }

    def _events(
        self, block: Document, delta: Document, reason: str, document: Document
    ) -> list[bytes]:
        start = self.whole() | {"content": [], "stop_reason": None}
        end = {"stop_reason": reason, "stop_sequence": None}
        return [
            named({"type": "message_start", "message": start | {"model": document.get("model")}}),
            named({"type": "content_block_start", "index": 0, "content_block": block}),
            named({"type": "content_block_delta", "index": 0, "delta": delta}),
            named({"type": "content_block_stop", "index": 0}),
            named({"type": "message_delta", "delta": end, "usage": USAGE}),
            named({"type": "message_stop"}),
        ]


class Responses:
    """OpenAI's newer one."""

    def matches(self, path: str) -> bool:
        return path.endswith("/responses")

    def streams(self, request: web.BaseRequest, document: Document) -> bool:
        return True

    def tools(self, document: Document) -> Iterator[tuple[str, str]]:
        for tool in document.get("tools") or []:
            for inner in tool.get("tools") or []:
                yield inner["name"], tool["name"]
            if tool.get("type") == "function":
                yield tool["name"], ""

    def results(self, document: Document) -> list[str]:
        return [
            json.dumps(item.get("output"))
            for item in document.get("input", [])
            if isinstance(item, dict) and item.get("type") == "function_call_output"
        ]

    def says(self, text: str, document: Document) -> list[bytes]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "i", "role": "assistant", "content": content}
        return self._events(item)

    def calls(self, step: tuple[str, str, Document, int], document: Document) -> list[bytes]:
        name, space, arguments, number = step
        item = {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": name,
            "arguments": json.dumps(arguments),
        }
        return self._events(item | ({"namespace": space} if space else {}))

    def whole(self) -> Document:
        return {}

    def _events(self, item: Document) -> list[bytes]:
        usage = USAGE | {"total_tokens": 15}
        done = {"id": "r", "status": "completed", "output": [item], "usage": usage}
        return [
            named({"type": "response.created", "response": {"id": "r"}}),
            named({"type": "response.output_item.added", "output_index": 0, "item": item}),
            named({"type": "response.output_item.done", "output_index": 0, "item": item}),
            named({"type": "response.completed", "response": done}),
        ]


class Chat:
    """OpenAI's older one, which most others speak, too."""

    def matches(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def streams(self, request: web.BaseRequest, document: Document) -> bool:
        return bool(document.get("stream"))

    def tools(self, document: Document) -> Iterator[tuple[str, str]]:
        return ((tool["function"]["name"], "") for tool in document.get("tools") or [])

    def results(self, document: Document) -> list[str]:
        return [
            json.dumps(message.get("content"))
            for message in document.get("messages", [])
            if message.get("role") == "tool"
        ]

    def says(self, text: str, document: Document) -> list[bytes]:
        return self._chunks({"role": "assistant", "content": text}, "stop")

    def calls(self, step: tuple[str, str, Document, int], document: Document) -> list[bytes]:
        name, _, arguments, number = step
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        return self._chunks({"role": "assistant", "tool_calls": [call]}, "tool_calls")

    def whole(self) -> Document:
        message = {"role": "assistant", "content": "ok"}
        return {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    def _chunks(self, delta: Document, reason: str) -> list[bytes]:
        base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return [
            sse(base | {"choices": [{"index": 0, "delta": delta}]}),
            sse(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}),
            sse(base | {"choices": [], "usage": usage}),
            b"data: [DONE]\n\n",
        ]


class Generate:
    """Gemini's."""

    def matches(self, path: str) -> bool:
        return "enerateContent" in path

    def streams(self, request: web.BaseRequest, document: Document) -> bool:
        return "streamGenerateContent" in request.path

    def tools(self, document: Document) -> Iterator[tuple[str, str]]:
        for tool in document.get("tools") or []:
            for each in tool.get("functionDeclarations") or []:
                yield each["name"], ""

    def results(self, document: Document) -> list[str]:
        return [
            json.dumps(part["functionResponse"].get("response"))
            for content in document.get("contents", [])
            for part in content.get("parts", [])
            if "functionResponse" in part
        ]

    def says(self, text: str, document: Document) -> list[bytes]:
        return [sse(self._piece({"text": text}))]

    def calls(self, step: tuple[str, str, Document, int], document: Document) -> list[bytes]:
        name, _, arguments, number = step
        call = {"id": f"f{number}", "name": name, "args": arguments}
        return [sse(self._piece({"functionCall": call}))]

    def whole(self) -> Document:
        return self._piece({"text": "{}"})

    def _piece(self, part: Document) -> Document:
        content = {"role": "model", "parts": [part]}
        counts = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        candidate = {"content": content, "finishReason": "STOP", "index": 0}
        return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": "m"}


FORMS: tuple[Any, ...] = (Messages(), Responses(), Chat(), Generate())


@contextmanager
def conducting(script: Sequence[Step], *, insists: bool = False) -> Iterator[Conductor]:
    conductor = Conductor(script, insists)
    with serving(conductor.answer) as conductor.port:
        yield conductor
