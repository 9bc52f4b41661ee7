"""A model provider that says what a script tells it to, in OpenAI's chat format."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from support.upstream import serving, sse

Document = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """One reply: words, calls, or a refusal."""

    text: str = ""
    calls: list[tuple[str, Document | str]] = field(default_factory=list)
    status: int = 200
    wait: bool = False  # for ever, until the request is given up
    hold: bool = False  # it says its words, and then nothing more until the request is given up
    lingers: bool = False  # all is said, but the answer is not ended until the client goes
    until: Callable[[], bool] = lambda: True  # what has to hold before it is said
    raw: bytes = b""  # instead of anything well formed


def answer(content: str) -> Said:
    return Said(calls=[("new_answer", {"content": content})])


def vote(member: str) -> Said:
    return Said(calls=[("vote", {"agent_id": member, "reason": "best"})])


def call(tool: str, **arguments: Any) -> Said:
    return Said(calls=[(tool, arguments)])


@dataclass(frozen=True)
class Heard:
    """A request, as a script needs it."""

    model: str
    document: Document
    number: int  # of this model's requests, from 1

    @property
    def last(self) -> str:
        return str(self.document["messages"][-1].get("content"))

    @property
    def tools(self) -> list[str]:
        return [each["function"]["name"] for each in self.document.get("tools") or []]

    @property
    def words(self) -> str:
        return json.dumps(self.document["messages"])


Script = Callable[[Heard], Said]


class Models:
    """Serves on loopback from a thread of its own; `script` may be changed at any time."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.heard: list[Heard] = []
        self.holding = threading.Event()  # an answer has begun that will not end
        self.given_up = threading.Event()  # nobody waits for it any longer
        self._numbers: dict[str, itertools.count[int]] = {}
        self._serving = serving(self._answer)
        self.port = 0

    def __enter__(self) -> Models:
        self.port = self._serving.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)

    def config(self, *models: str, coordination: str = "", agents: str = "") -> str:
        """A configuration whose members are these models, in order."""
        lines = ["agents:"]
        for model in models:
            lines += [f"  - id: {model}", "    backend:", "      type: chatcompletion"]
            lines += [f"      model: {model}", f"      base_url: http://127.0.0.1:{self.port}/v1"]
        lines += ["orchestrator:", "  coordination:", "    subagent_min_timeout: 0.1"]
        lines += [f"    {line}" for line in coordination.splitlines()]
        return "\n".join(lines) + "\n" + agents

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        document = json.loads(await request.read())
        model = document["model"]
        number = next(self._numbers.setdefault(model, itertools.count(1)))
        heard = Heard(model, document, number)
        self.heard.append(heard)
        said = self.script(heard)
        if said.hold:
            self.holding.clear()
            self.given_up.clear()
        if said.wait:
            await asyncio.Event().wait()
        while not said.until():  # noqa: ASYNC110 - what a test waits for has no event
            await asyncio.sleep(0.005)
        if said.status != 200:
            body = {"error": {"message": said.text or "no", "type": "x", "code": "x"}}
            return web.json_response(body, status=said.status)
        if said.raw:
            return web.Response(body=said.raw, content_type="text/event-stream")
        return await self._stream(request, model, said)

    async def _stream(self, request: web.BaseRequest, model: str, said: Said) -> web.StreamResponse:
        shared = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": model}
        calls = [
            {
                "index": index,
                "id": f"call_{len(self.heard)}_{index}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": given if isinstance(given, str) else json.dumps(given),
                },
            }
            for index, (name, given) in enumerate(said.calls)
        ]
        delta: Document = {"role": "assistant", "content": said.text or None}
        if calls:
            delta["tool_calls"] = calls
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        chunks: list[Document] = [
            {**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {
                **shared,
                "choices": [
                    {
                        "index": 0,
                        "delta": {},
                        "finish_reason": "tool_calls" if calls else "stop",
                    }
                ],
            },
            {**shared, "choices": [], "usage": usage},
        ]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(sse(chunk))
            if said.hold:
                self.holding.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.given_up.set()
        await response.write(b"data: [DONE]\n\n")
        if said.lingers:
            await asyncio.Event().wait()
        await response.write_eof()
        return response


ACP_AGENT = Path(__file__).parent / "servers" / "acp_agent.py"


def acp_member(name: str, *arguments: str, **terms: Any) -> Document:
    """Return a configured coding agent: a scripted ACP program that asks the model `name`."""
    env = {"MODEL_URL": "{base_url}", "MODEL_KEY": "{token}", "MODEL": "{model}"}
    backend = {
        "type": "acp",
        "argv": [str(ACP_AGENT), *arguments],
        "wire": "chat",
        "model": name,
        "env": env | {"AGENT_HOME": "{home}"},
    }
    return {"id": name, "backend": backend | terms}
