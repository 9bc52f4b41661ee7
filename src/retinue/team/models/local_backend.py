"""Backend for a small local model, which is led through its tools one at a time.

A model this small ignores tools and long prompts, and can neither plan nor judge. So the code
decides the order: delegate if possible, write a file if possible, then answer. The request is
split by a rule, since the model would delegate something else. For each other tool the model
answers one short question, constrained by a schema. Its votes are valid but meaningless.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retinue.core.contract import TeamMember
from retinue.core.conversation import Call, Reply, Tool, Turn
from retinue.core.errors import BadInput
from retinue.team.models.constrained_calls import build_response_format, parse_call
from retinue.team.models.hosted_model import HostedModel

MOST_TOKENS = 160
TEMPERATURE = 0.2
MOST_SHOWN = 1200  # characters of the request and of the newest message in a prompt
SYSTEM = "You are a helpful writer. You answer in plain, short English sentences."

Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ToolQuestion:
    """Question that leads to a call of one tool."""

    question: str
    asks: Mapping[str, Any]  # JSON schema of the answer; without properties: plain text
    filled: Callable[[Arguments], Arguments]  # from the answer to the tool's arguments

    def format_question(self, tool: str) -> str:
        """Return the question with an example: with a schema alone, small models write noise."""
        names = self.asks["properties"]
        form = ", ".join(f'"{name}": "..."' for name in names)
        shown = f' Answer as JSON like {{"tool": "{tool}", "args": {{{form}}}}}.'
        return self.question + (shown if names else "")


def _make_text_schema(longest: int) -> dict[str, object]:
    return {"type": "string", "minLength": 10, "maxLength": longest}


def _make_object_schema(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


DELEGATE = "spawn_subagents"
MOST_PARTS = 3
LONGEST_PART = 400
_BETWEEN = re.compile(r"\s*(?:[;\n]|,\s+and\s|,\s|\band\b)\s*", re.IGNORECASE)
_TOPIC = re.compile(r"^(.*\s)((?:about|of|on|for|to)\s)(.+)$", re.IGNORECASE)
_SAME_AGAIN = re.compile(r"^(?:one|another(?: one)?)\s+", re.IGNORECASE)


def split_request(request: str) -> list[str]:
    """Return the parts that a request names, else two aspects of it.

    "Write a note about rivers and one about mountains" has two parts, and so has "Write a note
    about rivers and mountains".
    """
    text = " ".join(request.strip().rstrip(".").split(" "))
    first, *others = [part.strip() for part in _BETWEEN.split(text) if part.strip()] or [text]
    topic = _TOPIC.match(first)
    if not others or not topic or len(others) >= MOST_PARTS:
        whole = text[:LONGEST_PART]
        return [f"Write an introduction for: {whole}", f"Write an example for: {whole}"]
    parts = [first, *(_complete_part(other, topic[1], topic[2]) for other in others)]
    return [part[:LONGEST_PART] for part in parts]


def _complete_part(part: str, work: str, preposition: str) -> str:
    """Return a later part of a request with the words that it shares with the first."""
    if again := _SAME_AGAIN.match(part):
        return work + part[again.end() :]
    return part if _TOPIC.match(part) else work + preposition + part


def _delegate_parts(turns: Sequence[Turn]) -> Call:
    request = next((turn.text for turn in turns if turn.role == "user"), "")
    tasks = [
        {"task": part, "subagent_id": f"part-{number}", "context_paths": []}
        for number, part in enumerate(split_request(request), start=1)
    ]
    return Call(id=_make_call_id(), tool=DELEGATE, arguments={"tasks": tasks})


def _make_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:12]}"


# In the order in which the tools are used, after DELEGATE.
LEADS = {
    "write_file": ToolQuestion(
        question="Write a short text, a few sentences, for this request.",
        asks=_make_object_schema(),
        filled=lambda given: {"path": "note.md", "content": given["text"]},
    ),
    "vote": ToolQuestion(
        question="Which answer is the best? Name its author.",
        asks=_make_object_schema(agent_id={"type": "string", "maxLength": 64}),
        filled=dict,
    ),
    "new_answer": ToolQuestion(
        question="Answer the request in one or two sentences.",
        asks=_make_object_schema(content=_make_text_schema(240)),
        filled=dict,
    ),
}
EVER = ("vote", "new_answer")  # may be used repeatedly: the team decides when it is over


class LocalModelBackend:
    """Implements `AgentBackend` on top of a `HostedModel`."""

    def __init__(self, hosted: HostedModel) -> None:
        self._hosted = hosted

    async def reply(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> Reply:
        """Return a call of the next tool, or plain text if no tool is left."""
        tool = select_next_tool(turns, tools)
        if tool is not None and tool.name == DELEGATE:
            return Reply(calls=(_delegate_parts(turns),))
        lead = LEADS.get(tool.name) if tool else None
        settings: dict[str, object] = {"max_tokens": MOST_TOKENS, "temperature": TEMPERATURE}
        if tool is None or lead is None:
            return await self._hosted.reply(_build_short_prompt(turns, ""), [], settings)
        asks = _add_choices(lead.asks, turns) if tool.name == "vote" else lead.asks
        if asks["properties"]:
            known = [(tool.name, tool.description, asks)]
            settings["response_format"] = build_response_format(known)
        reply = await self._hosted.reply(
            _build_short_prompt(turns, lead.format_question(tool.name)), [], settings
        )
        call = Call(id=_make_call_id(), tool=tool.name)
        try:
            given = {"text": reply.text}
            if asks["properties"]:
                _, given = parse_call(reply.text, [tool.name])
            call = replace(call, arguments=lead.filled(given))
        except (BadInput, KeyError) as error:
            call = replace(call, malformed=str(error))
        return replace(reply, text="", calls=(call,), source=None)


def select_next_tool(turns: Sequence[Turn], tools: Sequence[Tool]) -> Tool | None:
    """Return DELEGATE or the first tool of LEADS that is offered and was not used yet."""
    used = {call.tool for turn in turns for call in turn.calls}
    offered = {tool.name: tool for tool in tools}
    for name in (DELEGATE, *LEADS):
        if name not in offered or (name in used and name not in EVER):
            continue
        # A member must answer before it votes.
        if name == "vote" and "new_answer" in offered and "new_answer" not in used:
            continue
        return offered[name]
    return None


def _build_short_prompt(turns: Sequence[Turn], question: str) -> list[Turn]:
    """Return a short prompt: one question, the request and the newest message or tool result."""
    heard = [turn for turn in turns if turn.role == "user"]
    told = [turn for turn in turns if turn.role in ("user", "tool")][1:]
    parts = [question, f"Request: {heard[0].text[:MOST_SHOWN]}" if heard else ""]
    if told:
        parts.append(f"What is known: {told[-1].text[:MOST_SHOWN]}")
    text = "\n\n".join(part for part in parts if part)
    return [Turn(role="system", text=SYSTEM), Turn(role="user", text=text)]


def _add_choices(asks: Mapping[str, Any], turns: Sequence[Turn]) -> Mapping[str, Any]:
    """Limit the choices of a vote to the authors of the answers shown last."""
    shown = [turn.text for turn in turns if turn.role == "user" and "<answer author=" in turn.text]
    authors = re.findall(r'<answer author="([^"]+)"', shown[-1]) if shown else []
    return _make_object_schema(agent_id={"type": "string", "enum": authors}) if authors else asks


def make_backend(member: TeamMember, gateway: str, token: str) -> HostedModel | LocalModelBackend:
    hosted = HostedModel(member, gateway, token)
    return LocalModelBackend(hosted) if member.wire == "local" else hosted
