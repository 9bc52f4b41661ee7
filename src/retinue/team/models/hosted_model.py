"""Backend for hosted models and OpenAI-compatible servers, each in its vendor's format.

Requests go to the gateway, with the attempt's token as the key.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from retinue.core.contract import TeamMember
from retinue.core.conversation import ModelFailed, OutOfBudget, Reply, Tool, Turn
from retinue.gateway.vendors import find_vendor
from retinue.gateway.vendors.base import (
    RATES_HEADER,
    UnreadableAnswer,
    VendorError,
    parse_documents,
    rates_from_text,
    read_error_message,
)
from retinue.team.models.http_framing import (
    LARGEST_HEAD,
    MalformedResponse,
    ResponseHead,
    make_body_reader,
    read_head,
)
from retinue.version import VERSION

PIECE = 64 * 1024
LARGEST_ANSWER = 256 * 1024 * 1024
END_OF_HEAD = b"\r\n\r\n"


class Unanswered(Exception):
    """No complete HTTP answer came; the message says why."""


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    head: ResponseHead
    body: bytes


async def send_request(url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
    """Send a POST request to `http://host:port/path` and return the complete answer.

    Raises:
        Unanswered: the connection failed, or the answer was cut or is not HTTP.
    """
    place, _, path = url.removeprefix("http://").partition("/")
    host, _, port = place.partition(":")
    head = {
        "host": place,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "accept-encoding": "identity",
        "user-agent": f"retinue/{VERSION}",
        "connection": "close",
        **headers,
    }
    lines = [f"POST /{path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    request = "\r\n".join(lines).encode() + END_OF_HEAD + body
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, (host, int(port)))
            await loop.sock_sendall(connection, request)
            return await _read_answer(connection)
        except OSError as fault:
            why = fault.strerror or fault
            raise Unanswered(f"no answer from {place}: {why}") from fault
        except MalformedResponse as fault:
            raise Unanswered(f"no answer in HTTP from {place}: {fault}") from fault


async def _read_answer(connection: socket.socket) -> HttpAnswer:
    """Read one answer; return at its last byte, even if the connection stays open."""
    loop = asyncio.get_running_loop()
    data = b""
    while END_OF_HEAD not in data:
        more = await loop.sock_recv(connection, PIECE)
        data += more
        if not more or len(data) > LARGEST_HEAD + PIECE:
            raise MalformedResponse(f"its head does not end, after {len(data)} bytes")
    told, _, rest = data.partition(END_OF_HEAD)
    head = read_head(told)
    body = make_body_reader(head)
    pieces = [body.feed(rest)]
    size = len(rest)
    while not body.whole:
        more = await loop.sock_recv(connection, PIECE)
        size += len(more)
        # Without a stated length, the end of the connection ends the body.
        if not more and body.is_complete():
            break
        if not more or size > LARGEST_ANSWER:
            raise MalformedResponse(f"it was cut after {size} bytes")
        pieces.append(body.feed(more))
    return HttpAnswer(head=head, body=b"".join(pieces))


PAYMENT_REQUIRED = 402  # the gateway's status for a budget that is used up
# Temporary errors, worth a retry.
PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
TRIES = 5
PATIENT_TRIES = 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0

Sleep = Callable[[float], Any]


class RequestRefused(Exception):
    """Error response of the gateway or of the provider behind it."""

    def __init__(self, answer: HttpAnswer) -> None:
        said = answer.body.decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            said = read_error_message(json.loads(said)) or said
        super().__init__(f"{answer.head.status}: {said}")
        self.status = answer.head.status


class HostedModel:
    """Implements `AgentBackend` for one member."""

    def __init__(
        self, member: TeamMember, gateway: str, token: str, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._vendor = find_vendor(member.wire)
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
        """Return the model's next turn; `settings` are added to the request unchanged.

        Raises:
            OutOfBudget: the budget is used up.
            ModelFailed: there is no answer, and no retry is left or useful.
        """
        asking = self._vendor.build_request(self._model, self._token, turns, tools)
        body = json.dumps(asking.document | dict(settings or {})).encode()
        for attempt in count():
            try:
                answer = await send_request(self._place + asking.path, asking.headers, body)
                return self._parse_answer(answer)
            except (Unanswered, RequestRefused, VendorError, UnreadableAnswer) as error:
                said = str(error)[:500]
                if isinstance(error, RequestRefused) and error.status == PAYMENT_REQUIRED:
                    raise OutOfBudget(said) from error
                if attempt + 1 >= _count_tries(error):
                    raise ModelFailed(said) from error
            # Jitter keeps members of a team from retrying at the same moment.
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
            await self._sleep(pause * random.uniform(0.5, 1.0))
        raise AssertionError("count() does not end")

    def _parse_answer(self, answer: HttpAnswer) -> Reply:
        if answer.head.status != 200:
            raise RequestRefused(answer)
        rates = rates_from_text(answer.head.get(RATES_HEADER))
        try:
            return self._vendor.parse_reply(parse_documents(answer.body), rates)
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            raise UnreadableAnswer(
                f"the answer is not what this vendor documents: {error}"
            ) from error


def _count_tries(error: Exception) -> int:
    """Return how many tries an error is worth."""
    # No answer at all: the steward is gone with its gateway, and a new one may take its place.
    if isinstance(error, Unanswered):
        return PATIENT_TRIES
    if isinstance(error, RequestRefused):
        return TRIES if error.status in PASSING else 1
    return TRIES if isinstance(error, VendorError) else 1
