"""A provider that the tests run: all four wire formats, and it remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KEYS = {
    "UP_OPENAI_KEY": "sk-real-openai",
    "UP_ANTHROPIC_KEY": "sk-real-anthropic",
    "UP_GEMINI_KEY": "real-gemini",
}
WORDS = ("Hello", " there", ", friend")
INPUT, OUTPUT, CACHED, REASONING = 21, 9, 5, 4

Document = dict[str, Any]


LARGE = 1 << 20  # to take more apart would hold up the test that watches others meanwhile


@dataclass
class Asked:
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Upstream:
    """Answers until its context ends; each knob may be turned while it runs."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    refuse: Callable[[int], bool] = lambda number: False  # by the request's number: 429
    refusal: Document = field(default_factory=lambda: {"error": {"message": "slow down"}})
    hold_after: int | None = None  # a stream stops after so many pieces, for ever
    cut_after: int | None = None  # a stream is cut after so many pieces
    usage: bool = True  # whether it says what an answer took
    held: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def config(self) -> str:
        """Agents for the head of a configuration, one for each vendor."""
        kinds = [
            ("openai", f"{self.url}/v1", "UP_OPENAI_KEY", "gpt-4o-mini"),
            ("anthropic", self.url, "UP_ANTHROPIC_KEY", "claude-sonnet-4-5"),
            ("gemini", self.url, "UP_GEMINI_KEY", "gemini-2.5-flash"),
        ]
        lines = ["agents:"]
        for kind, url, key, model in kinds:
            lines += [f"  - id: {kind}_agent", "    backend:", f"      type: {kind}"]
            lines += [f"      model: {model}", f"      base_url: {url}"]
            lines += [f"      api_key_env: {key}"]
        return "\n".join(lines)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(Asked(request.path, request.query_string, headers, body))
        if self.refuse(len(self.asked)):
            return web.json_response(self.refusal, status=429)
        document = json.loads(body) if 0 < len(body) < LARGE else {}
        if request.method == "GET":
            return web.json_response({"data": [{"id": "gpt-4o-mini"}], "models": []})
        pieces, whole = self._said(request, document)
        if pieces is None:
            return web.json_response(whole)
        return await self._stream(request, pieces)

    async def _stream(self, request: web.BaseRequest, pieces: list[bytes]) -> web.StreamResponse:
        kind = "text/event-stream" if pieces[0].startswith((b"data", b"event")) else ""
        response = web.StreamResponse(headers={"Content-Type": kind or "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for number, piece in enumerate(pieces):
            if number == self.cut_after and request.transport is not None:
                request.transport.abort()
                break
            if number == self.hold_after:
                self.held.set()
                await asyncio.Event().wait()
            await response.write(piece)
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    def _said(
        self, request: web.BaseRequest, document: Document
    ) -> tuple[list[bytes] | None, Document]:
        path = request.path
        if path.endswith("/chat/completions"):
            options = document.get("stream_options") or {}
            stated = self.usage and (not document.get("stream") or options.get("include_usage"))
            return chat(document, stated=bool(stated))
        if path.endswith("/responses"):
            return responses(document)
        if path.endswith("/messages"):
            return messages(document)
        return gemini(path, "alt=sse" in request.query_string)


def chat(document: Document, *, stated: bool) -> tuple[list[bytes] | None, Document]:
    usage = {
        "prompt_tokens": INPUT,
        "completion_tokens": OUTPUT,
        "total_tokens": INPUT + OUTPUT,
        "prompt_tokens_details": {"cached_tokens": CACHED},
        "completion_tokens_details": {"reasoning_tokens": REASONING},
    }
    base = {"id": "c1", "created": 1, "model": document.get("model")}
    if not document.get("stream"):
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole = base | {"object": "chat.completion", "choices": [choice]}
        return None, whole | ({"usage": usage} if stated else {})
    base |= {"object": "chat.completion.chunk"}
    parts: list[Document] = [
        base | {"choices": [{"index": 0, "delta": {"content": word}}]} for word in WORDS
    ]
    parts.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if stated:
        parts.append(base | {"choices": [], "usage": usage})
    return [sse(part) for part in parts] + [b"data: [DONE]\n\n"], {}


def responses(document: Document) -> tuple[list[bytes] | None, Document]:
    usage = {
        "input_tokens": INPUT,
        "input_tokens_details": {"cached_tokens": CACHED},
        "output_tokens": OUTPUT,
        "output_tokens_details": {"reasoning_tokens": REASONING},
        "total_tokens": INPUT + OUTPUT,
    }
    text = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
    message = {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
    whole: Document = {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "model": document.get("model"),
        "status": "completed",
        "output": [message | {"content": [text]}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
    if not document.get("stream"):
        return None, whole
    begun = whole | {"status": "in_progress", "output": [], "usage": None}
    events: list[Document] = [{"type": "response.created", "response": begun}]
    place = {"item_id": "m1", "output_index": 0, "content_index": 0, "logprobs": []}
    events += [{"type": "response.output_text.delta", "delta": word} | place for word in WORDS]
    events.append({"type": "response.completed", "response": whole})
    return [named(each | {"sequence_number": n}) for n, each in enumerate(events)], {}


def messages(document: Document) -> tuple[list[bytes] | None, Document]:
    usage = {
        "input_tokens": INPUT - CACHED,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": CACHED,
        "output_tokens": OUTPUT,
    }
    whole: Document = {
        "id": "msg1",
        "type": "message",
        "role": "assistant",
        "model": document.get("model"),
        "content": [{"type": "text", "text": "".join(WORDS)}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }
    if not document.get("stream"):
        return None, whole
    begun = whole | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    block = {"type": "text", "text": ""}
    events: list[Document] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": block},
    ]
    for word in WORDS:
        delta = {"type": "text_delta", "text": word}
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
    events.append({"type": "content_block_stop", "index": 0})
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": OUTPUT}})
    events.append({"type": "message_stop"})
    return [named(each) for each in events], {}


def gemini(path: str, in_events: bool) -> tuple[list[bytes] | None, Document]:
    def piece(text: str, written: int, *, last: bool) -> Document:
        candidate: Document = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
        if last:
            candidate["finishReason"] = "STOP"
        usage = {
            "promptTokenCount": INPUT,
            "candidatesTokenCount": written,
            "thoughtsTokenCount": REASONING,
            "cachedContentTokenCount": CACHED,
            "totalTokenCount": INPUT + written + REASONING,
        }
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": "gemini-2.5-flash",
        }

    if ":streamGenerateContent" not in path:
        return None, piece("".join(WORDS), OUTPUT - REASONING, last=True)
    last = len(WORDS) - 1
    parts = [
        piece(word, OUTPUT - REASONING if n == last else n, last=n == last)
        for n, word in enumerate(WORDS)
    ]
    if in_events:
        return [sse(part) for part in parts], {}
    texts = [json.dumps(part).encode() for part in parts]
    return [b"[" + texts[0], *(b",\n" + text for text in texts[1:]), b"]"], {}


def sse(document: Document) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def named(document: Document) -> bytes:
    return f"event: {document['type']}\n".encode() + sse(document)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=1 << 28)


@contextmanager
def serving(answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> Iterator[int]:
    """Somebody who answers so, at a port of its own, in a thread of its own."""
    ready: Future[int] = Future()
    over = threading.Event()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        protocol = web.Server(
            answer, request_factory=_request, access_log=None, handler_cancellation=True
        )
        server = await loop.create_server(protocol, "127.0.0.1", 0)
        ready.set_result(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(over.wait)
        server.close()
        await protocol.shutdown(0.01)  # 0 would be for ever

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        yield ready.result(10)
    finally:
        over.set()
        thread.join(10)


@contextmanager
def provider(**knobs: Any) -> Iterator[Upstream]:
    upstream = Upstream(**knobs)
    with serving(upstream.answer) as upstream.port:
        yield upstream
