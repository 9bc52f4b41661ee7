"""A model whose script depends on the prompt: a keyword of a user's message selects the steps.

It speaks the four wire formats of the conductor. A step is a tool call, or text; text may be
written in slow pieces, and the model remembers whether the client went away meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.conductor import FORMS, USAGE, Document
from support.upstream import named, serving, sse

PIECE_SECONDS = 0.05
MOST_CALLS = 12


@dataclass(frozen=True, kw_only=True)
class ToolStep:
    tool: str
    arguments: Document


@dataclass(frozen=True, kw_only=True)
class TextStep:
    text: str
    slow: bool = False  # written for twenty seconds, unless the client goes away


Plan = Sequence[ToolStep | TextStep]


@dataclass
class PromptedModel:
    plans: Mapping[str, Plan]  # by a keyword of the prompt
    port: int = 0
    status: int = 200  # of every answer
    slow_pieces: int = 400
    offered: set[str] = field(default_factory=set)
    asked: list[Document] = field(default_factory=list)  # requests for an answer
    aborted: threading.Event = field(default_factory=threading.Event)
    streaming: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def last_request(self) -> str:
        return json.dumps(self.asked[-1])

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        document = json.loads(body) if body else {}
        form = next((each for each in FORMS if each.matches(request.path)), None)
        if form is None or request.method != "POST":
            return web.json_response({"data": [], "models": [], "totalTokens": 1})
        self.asked.append(document)
        if self.status != 200:
            said = {"type": "refused", "message": "the budget is used up"}
            return web.json_response({"error": said}, status=self.status)
        names = dict(form.tools(document))
        self.offered |= set(names)
        step, number = self._find_step(document)
        if not form.streams(request, document):
            return web.json_response(form.whole())
        if isinstance(step, ToolStep):
            called = (step.tool, names.get(step.tool, ""), step.arguments, number)
            return await self._write(request, form.calls(called, document))
        if step.slow:
            return await self._write_slowly(request, form, document)
        return await self._write(request, form.says(step.text, document))

    def _find_step(self, document: Document) -> tuple[ToolStep | TextStep, int]:
        """Return the step that follows the results since the last prompt with a keyword."""
        plan: Plan = [TextStep(text="hello")]
        done = before = 0
        for kind, text in _list_entries(document):
            key = next((each for each in self.plans if each in text), None)
            if kind == "user" and key is not None:
                plan = self.plans[key]
                before += done
                done = 0
            done += kind == "result"
        if before + done > MOST_CALLS:  # an agent that does not keep its results
            return TextStep(text="too many calls"), before + done
        return plan[min(done, len(plan) - 1)], before + done

    async def _write(self, request: web.BaseRequest, events: Sequence[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        # Claude takes messages with the same id for parts of one.
        unique = f'"id": "m{len(self.asked)}"'.encode()
        for event in events:
            await response.write(event.replace(b'"id": "m"', unique))
        await response.write_eof()
        return response

    async def _write_slowly(
        self, request: web.BaseRequest, form: Any, document: Document
    ) -> web.StreamResponse:
        begin, piece = _PIECES[type(form).__name__](document)
        # What ends a message of this form; its own first events have been written then.
        ends = form.says("", document)[len(begin) + 1 :] if begin else form.says("", document)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for event in begin:
                await response.write(event)
            for _ in range(self.slow_pieces):
                await response.write(piece)
                self.streaming.set()
                await asyncio.sleep(PIECE_SECONDS)
        except (ConnectionError, asyncio.CancelledError):
            self.aborted.set()
            raise
        for event in ends:
            await response.write(event)
        await response.write_eof()
        return response


def _list_entries(document: Document) -> Iterator[tuple[str, str]]:
    """Yield what users and tools said, in order: ("user" or "result", text)."""
    for message in [*document.get("messages", []), *document.get("input", [])]:
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"text": content}]
        if message.get("role") == "tool" or message.get("type") == "function_call_output":
            yield "result", json.dumps(message)
        elif message.get("role") in ("user", "system"):  # Claude tells of steering as the system
            for block in blocks:
                is_result = block.get("type") == "tool_result"
                yield ("result" if is_result else "user"), str(block.get("text") or "")
    for message in document.get("contents", []):
        for part in message.get("parts", []):
            if "functionResponse" in part:
                yield "result", json.dumps(part)
            elif message.get("role") == "user":
                yield "user", str(part.get("text") or "")


def _piece_messages(document: Document) -> tuple[list[bytes], bytes]:
    start = {"id": "slow", "type": "message", "role": "assistant", "content": [], "usage": USAGE}
    message = start | {"model": document.get("model"), "stop_reason": None}
    block = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": "word "}
    return [
        named({"type": "message_start", "message": message}),
        named({"type": "content_block_start", "index": 0, "content_block": block}),
    ], named({"type": "content_block_delta", "index": 0, "delta": delta})


def _piece_responses(document: Document) -> tuple[list[bytes], bytes]:
    item = {"type": "message", "id": "i", "role": "assistant", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    place = {"item_id": "i", "output_index": 0, "content_index": 0}
    return [
        named({"type": "response.created", "response": {"id": "r"}}),
        named({"type": "response.output_item.added", "output_index": 0, "item": item}),
        named({"type": "response.content_part.added", **place, "part": part}),
    ], named({"type": "response.output_text.delta", **place, "delta": "word "})


def _piece_chat(document: Document) -> tuple[list[bytes], bytes]:
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = {"role": "assistant", "content": "word "}
    return [], sse(base | {"choices": [{"index": 0, "delta": delta}]})


def _piece_generate(document: Document) -> tuple[list[bytes], bytes]:
    content = {"role": "model", "parts": [{"text": "word "}]}
    return [], sse({"candidates": [{"content": content, "index": 0}], "modelVersion": "m"})


_PIECES = {
    "Messages": _piece_messages,
    "Responses": _piece_responses,
    "Chat": _piece_chat,
    "Generate": _piece_generate,
}


@contextmanager
def prompting(plans: Mapping[str, Plan]) -> Iterator[PromptedModel]:
    model = PromptedModel(plans)
    with serving(model.answer) as model.port:
        yield model
