"""The small local model: it ignores tools, so its output is constrained to one valid call.

A model this small cannot judge or plan. Which of its tools comes next is
therefore decided here: first it delegates where it can, then it writes a file
where it can, then it answers. What it puts into each call is its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from retinue.backends.constrained import parse_call, response_format
from retinue.backends.hosted import HostedModel
from retinue.domain.conversation import Call, Reply, Tool, Turn
from retinue.domain.errors import BadInput

IN_TURN = ("spawn_subagents", "write_file", "vote", "new_answer")
MOST_TOKENS = 400


class LocalModel:
    """Implements `AgentBackend` on top of the way to any OpenAI-compatible server."""

    def __init__(self, hosted: HostedModel) -> None:
        self._hosted = hosted

    async def reply(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> Reply:
        """Exactly one call, of the tool whose turn it is."""
        offered = next_tools(turns, tools)
        settings: dict[str, object] = {"max_tokens": MOST_TOKENS}
        if offered:
            known = [(tool.name, tool.description, tool.parameters) for tool in offered]
            settings["extra_body"] = {"response_format": response_format(known)}
        reply = await self._hosted.reply(_plain(turns), [], settings)
        if not offered:
            return reply
        name = f"call_{uuid.uuid4().hex[:12]}"
        try:
            tool, arguments = parse_call(reply.text, [tool.name for tool in offered])
            call = Call(id=name, tool=tool, arguments=arguments)
        except BadInput as error:
            call = Call(id=name, tool=offered[0].name, malformed=error.message)
        return replace(reply, text="", calls=(call,), source=None)

    async def close(self) -> None:
        await self._hosted.close()


def _plain(turns: Sequence[Turn]) -> list[Turn]:
    """The conversation in the only roles it was trained on."""
    plain = []
    for turn in turns:
        if turn.role == "tool":
            plain.append(Turn(role="user", text=turn.text))
        elif turn.role == "assistant":
            called = ", ".join(call.tool for call in turn.calls)
            plain.append(Turn(role="assistant", text=turn.text or f"(called {called})"))
        else:
            plain.append(turn)
    return plain


def next_tools(turns: Sequence[Turn], tools: Sequence[Tool]) -> list[Tool]:
    """The tools it may choose from now: of those in turn, the first not used since its last word.

    Voting and answering are never over, because the team decides when they are.
    """
    used = {call.tool for turn in turns for call in turn.calls}
    by_name = {tool.name: tool for tool in tools}
    for name in IN_TURN:
        if name in by_name and (name not in used or name in ("vote", "new_answer")):
            if name == "vote" and "new_answer" in by_name and "new_answer" not in used:
                continue
            return [by_name[name]]
    return list(tools)
