"""A model that conducts a coding agent: it calls the tools of a script, then says what they gave.

It speaks the four wire formats. Where it stands in its script it tells from the request itself,
by counting the tool results in it, so it needs no memory and no order of requests.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.upstream import named, serving, sse

Document = dict[str, Any]
Step = tuple[str, Document]  # the end of a tool's name, and its arguments
Called = tuple[str, str, Document, int]  # name, namespace, arguments, place in the script
USAGE = {"input_tokens": 10, "output_tokens": 5}
KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key")


@dataclass
class Conductor:
    script: Sequence[Step]
    insists: bool = False  # on tools that it was not offered, too
    words: str = ""  # said before each call
    holds: Callable[[str], bool] = lambda asked: False  # whether an answer begins and never ends
    refuses: Callable[[int], bool] = lambda number: False  # by the request's number: 429
    holding: threading.Event = field(default_factory=threading.Event)
    given_up: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    offered: set[str] = field(default_factory=set)  # every tool that any request offered
    results: list[str] = field(default_factory=list)  # of the longest request
    asked: list[tuple[str, Document]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)  # with which it was asked

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        document = json.loads(body) if body else {}
        self.asked.append((request.path, document))
        self.keys |= {request.headers[name] for name in KEY_HEADERS if name in request.headers}
        form = next((f for f in FORMS if f.matches(request.path)), None)
        if form is None or request.method != "POST":
            return web.json_response(
                {"data": [], "models": [], "input_tokens": 1, "totalTokens": 1}
            )
        if self.refuses(len(self.asked)):
            error = {"type": "rate_limit_error", "message": "slow down", "code": 429}
            headers = {"retry-after": "0"}
            return web.json_response({"error": error}, status=429, headers=headers)
        if form.streams(request, document) and self.holds(body.decode()):
            return await self._hold(request, form.begins("half an answer", document))
        names = dict(form.tools(document))
        self.offered |= set(names)
        results = form.results(document)
        if len(results) > len(self.results):
            self.results = results
        step = self._step(names, len(results))
        final = "DONE " + (results[-1][:2000] if results else "nothing")
        if step is None:
            events = form.says(final, document)
        else:
            events = form.calls(step, document, self.words)
        if not form.streams(request, document):
            return web.json_response(form.whole())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        await response.write_eof()
        return response

    async def _hold(self, request: web.BaseRequest, events: list[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        self.holding.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()
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
        part = (block, {"type": "text_delta", "text": text})
        return self._events([part], "end_turn", document)

    def begins(self, text: str, document: Document) -> list[bytes]:
        return self.says(text, document)[:3]

    def calls(self, step: Called, document: Document, words: str = "") -> list[bytes]:
        name, _, arguments, number = step
        block: Document = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        text: tuple[Document, Document] = (
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": words},
        )
        parts = [text, (block, delta)] if words else [(block, delta)]
        return self._events(parts, "tool_use", document)

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
        self, parts: Sequence[tuple[Document, Document]], reason: str, document: Document
    ) -> list[bytes]:
        start = self.whole() | {"content": [], "stop_reason": None, "model": document.get("model")}
        end = {"stop_reason": reason, "stop_sequence": None}
        events: list[Document] = [{"type": "message_start", "message": start}]
        for index, (block, delta) in enumerate(parts):
            events += [
                {"type": "content_block_start", "index": index, "content_block": block},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        events += [{"type": "message_delta", "delta": end, "usage": USAGE}]
        return [named(each) for each in [*events, {"type": "message_stop"}]]


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
        return self._events(self._message(text))

    def begins(self, text: str, document: Document) -> list[bytes]:
        item = self._message("") | {"content": []}
        delta = {"item_id": "i", "output_index": 0, "content_index": 0, "delta": text}
        return [
            named({"type": "response.created", "response": {"id": "r"}}),
            named({"type": "response.output_item.added", "output_index": 0, "item": item}),
            named({"type": "response.output_text.delta"} | delta),
        ]

    def calls(self, step: Called, document: Document, words: str = "") -> list[bytes]:
        name, space, arguments, number = step
        item = {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": name,
            "arguments": json.dumps(arguments),
        }
        item |= {"namespace": space} if space else {}
        return self._events(*([self._message(words)] if words else []), item)

    def whole(self) -> Document:
        return {}

    def _message(self, text: str) -> Document:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {"type": "message", "id": "i", "role": "assistant", "content": content}

    def _events(self, *items: Document) -> list[bytes]:
        usage = USAGE | {"total_tokens": 15}
        done = {"id": "r", "status": "completed", "output": list(items), "usage": usage}
        events: list[Document] = [{"type": "response.created", "response": {"id": "r"}}]
        for index, item in enumerate(items):
            place = {"output_index": index, "item": item}
            events += [{"type": "response.output_item.added"} | place]
            events += [{"type": "response.output_item.done"} | place]
        return [named(each) for each in [*events, {"type": "response.completed", "response": done}]]


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

    def begins(self, text: str, document: Document) -> list[bytes]:
        return self.says(text, document)[:1]

    def calls(self, step: Called, document: Document, words: str = "") -> list[bytes]:
        name, _, arguments, number = step
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        said = {"content": words} if words else {}
        return self._chunks({"role": "assistant", "tool_calls": [call]} | said, "tool_calls")

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

    def begins(self, text: str, document: Document) -> list[bytes]:
        piece = self._piece({"text": text})
        del piece["candidates"][0]["finishReason"]
        return [sse(piece)]

    def calls(self, step: Called, document: Document, words: str = "") -> list[bytes]:
        name, _, arguments, number = step
        call = {"id": f"f{number}", "name": name, "args": arguments}
        return [sse(self._piece(*([{"text": words}] if words else []), {"functionCall": call}))]

    def whole(self) -> Document:
        return self._piece({"text": "{}"})

    def _piece(self, *parts: Document) -> Document:
        content = {"role": "model", "parts": list(parts)}
        counts = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        candidate = {"content": content, "finishReason": "STOP", "index": 0}
        return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": "m"}


FORMS: tuple[Any, ...] = (Messages(), Responses(), Chat(), Generate())


@contextmanager
def conducting(
    script: Sequence[Step], *, insists: bool = False, **more: Any
) -> Iterator[Conductor]:
    conductor = Conductor(script, insists, **more)
    with serving(conductor.answer) as conductor.port:
        yield conductor
