"""Models of the well-known vendors and of any OpenAI-compatible server, each in its own format.

A child sees the gateway alone: the key it shows there is its attempt's token.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from retinue.backends.http import Answer, Unanswered, post
from retinue.domain.contract import TeamMember
from retinue.domain.conversation import ModelFailed, OutOfBudget, Reply, Tool, Turn
from retinue.wire.vendors import chat, generate, messages
from retinue.wire.vendors.exchange import Faulted, Format, Unreadable, documents, message_of
from retinue.wire.vendors.rates import RATES_HEADER, rates_from_text

FORMATS: dict[str, Format] = {"anthropic": messages, "gemini": generate}  # all others: chat
PAYMENT_REQUIRED = 402
PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
TRIES = 5
PATIENT_TRIES = 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0

Sleep = Callable[[float], Any]


class Refused(Exception):
    """The gateway, or the provider behind it, answered with an error."""

    def __init__(self, answer: Answer) -> None:
        said = answer.body.decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            said = message_of(json.loads(said)) or said
        super().__init__(f"{answer.head.status}: {said}")
        self.status = answer.head.status


class HostedModel:
    """Implements `AgentBackend` for one member."""

    def __init__(
        self, member: TeamMember, gateway: str, token: str, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._format: Format = FORMATS.get(member.wire, chat)
        self._model = member.model or "default"
        self._place = f"{gateway}/{member.route}"
        self._token = token
        self._sleep = sleep

    async def reply(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        settings: Mapping[str, object] | None = None,
    ) -> Reply:
        """What the model says next; settings go into the request as they are.

        Raises:
            OutOfBudget: nothing may be spent any more.
            ModelFailed: it did not answer, and trying again does not help.
        """
        asking = self._format.asking(self._model, self._token, turns, tools)
        body = json.dumps(asking.document | dict(settings or {})).encode()
        for attempt in count():
            try:
                answer = await post(self._place + asking.path, asking.headers, body)
                return self._heard(answer)
            except (Unanswered, Refused, Faulted, Unreadable) as error:
                said = str(error)[:500]
                if isinstance(error, Refused) and error.status == PAYMENT_REQUIRED:
                    raise OutOfBudget(said) from error
                if attempt + 1 >= _tries(error):
                    raise ModelFailed(said) from error
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
            await self._sleep(pause * random.uniform(0.5, 1.0))
        raise AssertionError("count() does not end")

    def _heard(self, answer: Answer) -> Reply:
        if answer.head.status != 200:
            raise Refused(answer)
        rates = rates_from_text(answer.head.get(RATES_HEADER))
        try:
            return self._format.heard(documents(answer.body), rates)
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            raise Unreadable(f"the answer is not what this vendor documents: {error}") from error


def _tries(error: Exception) -> int:
    """How often it is worth asking.

    A provider that is overloaded may answer soon. Where nobody answers at all, the gateway is
    gone with its steward, and comes back with the next one.
    """
    if isinstance(error, Unanswered):
        return PATIENT_TRIES
    if isinstance(error, Refused):
        return TRIES if error.status in PASSING else 1
    return TRIES if isinstance(error, Faulted) else 1
