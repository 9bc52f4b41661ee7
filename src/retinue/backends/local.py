"""The small local model: led through its tools, one at a time, its output held to a schema.

A model this small ignores tools, loses itself in a long prompt and can neither
plan nor judge. So which tool comes next is decided here: first it delegates
where it can, then it writes a file where it can, then it answers. It is asked
one short question for each, and only what it can fill in is asked of it. Its
words are its own; the order is ours. Its votes are valid, and mean nothing.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retinue.backends.constrained import parse_call, response_format
from retinue.backends.hosted import HostedModel
from retinue.domain.conversation import Call, Reply, Tool, Turn
from retinue.domain.errors import BadInput

MOST_TOKENS = 300
TEMPERATURE = 0.2
MOST_SHOWN = 1200  # characters of each thing it is reminded of
SYSTEM = "You are a helpful writer. You answer in plain, short English sentences."

Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Lead:
    """How one tool is put to the model: a question, what it fills in, and what we make of it."""

    question: str
    asks: Mapping[str, Any]  # a JSON schema; without properties it answers in plain words
    filled: Callable[[Arguments], Arguments]

    def put(self, tool: str) -> str:
        """The question, with the form of its answer: without that, a schema only makes noise."""
        names = self.asks["properties"]
        form = ", ".join(f'"{name}": "..."' for name in names)
        shown = f' Answer as JSON like {{"tool": "{tool}", "args": {{{form}}}}}.'
        return self.question + (shown if names else "")


def _text(longest: int) -> dict[str, object]:
    return {"type": "string", "minLength": 10, "maxLength": longest}


def _asks(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _two_tasks(given: Arguments) -> Arguments:
    parts = [given["first_task"], given["second_task"]]
    return {
        "tasks": [
            {"task": part, "subagent_id": f"part-{number}", "context_paths": []}
            for number, part in enumerate(parts, start=1)
        ]
    }


LEADS = {
    "spawn_subagents": Lead(
        question="Split this request into two small writing tasks, one sentence each.",
        asks=_asks(first_task=_text(160), second_task=_text(160)),
        filled=_two_tasks,
    ),
    "write_file": Lead(
        question="Write a short text, a few sentences, for this request.",
        asks=_asks(),
        filled=lambda given: {"path": "note.md", "content": given["text"]},
    ),
    "vote": Lead(
        question="Which answer is the best? Name its author.",
        asks=_asks(agent_id={"type": "string", "maxLength": 64}),
        filled=dict,
    ),
    "new_answer": Lead(
        question="Answer the request in one or two sentences.",
        asks=_asks(content=_text(240)),
        filled=dict,
    ),
}
EVER = ("vote", "new_answer")  # the team decides when these are over


class LocalModel:
    """Implements `AgentBackend` on top of the way to any OpenAI-compatible server."""

    def __init__(self, hosted: HostedModel) -> None:
        self._hosted = hosted

    async def reply(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> Reply:
        """One call of the tool whose turn it is; without any tool to lead to, plain words."""
        tool = next_tool(turns, tools)
        lead = LEADS.get(tool.name) if tool else None
        settings: dict[str, object] = {"max_tokens": MOST_TOKENS, "temperature": TEMPERATURE}
        if tool is None or lead is None:
            return await self._hosted.reply(_short(turns, ""), [], settings)
        asks = _with_choices(lead.asks, turns) if tool.name == "vote" else lead.asks
        if asks["properties"]:
            known = [(tool.name, tool.description, asks)]
            settings["response_format"] = response_format(known)
        reply = await self._hosted.reply(_short(turns, lead.put(tool.name)), [], settings)
        call = Call(id=f"call_{uuid.uuid4().hex[:12]}", tool=tool.name)
        try:
            given = {"text": reply.text}
            if asks["properties"]:
                _, given = parse_call(reply.text, [tool.name])
            call = replace(call, arguments=lead.filled(given))
        except (BadInput, KeyError) as error:
            call = replace(call, malformed=str(error))
        return replace(reply, text="", calls=(call,), source=None)


def next_tool(turns: Sequence[Turn], tools: Sequence[Tool]) -> Tool | None:
    """The tool whose turn it is: the first that was not used yet, in the order they are led."""
    used = {call.tool for turn in turns for call in turn.calls}
    offered = {tool.name: tool for tool in tools}
    for name in LEADS:
        if name not in offered or (name in used and name not in EVER):
            continue
        if name == "vote" and "new_answer" in offered and "new_answer" not in used:
            continue
        return offered[name]
    return None


def _short(turns: Sequence[Turn], question: str) -> list[Turn]:
    """What it can hold in mind: the request, the newest thing it was told, and one question."""
    heard = [turn for turn in turns if turn.role == "user"]
    told = [turn for turn in turns if turn.role in ("user", "tool")][1:]
    parts = [question, f"Request: {heard[0].text[:MOST_SHOWN]}" if heard else ""]
    if told:
        parts.append(f"What is known: {told[-1].text[:MOST_SHOWN]}")
    text = "\n\n".join(part for part in parts if part)
    return [Turn(role="system", text=SYSTEM), Turn(role="user", text=text)]


def _with_choices(asks: Mapping[str, Any], turns: Sequence[Turn]) -> Mapping[str, Any]:
    """Only those who have answered can be named."""
    shown = [turn.text for turn in turns if turn.role == "user" and "<answer author=" in turn.text]
    authors = re.findall(r'<answer author="([^"]+)"', shown[-1]) if shown else []
    return _asks(agent_id={"type": "string", "enum": authors}) if authors else asks
