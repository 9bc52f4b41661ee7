"""Client of the gateway's report about the requests of a coding agent.

An agent's own report is not enough: some say "done" after the provider refused them. The gateway
has seen each request, and serves the report on the child's loopback.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from retinue.core.conversation import ReplyUsage

SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class TrafficReport:
    """Counts since the attempt began, and the newest request that ended."""

    requests: int = 0
    answered: int = 0
    running: int = 0
    status: int = 0
    error: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    over_budget: bool = False  # the contract's budget is used up
    recalled: bool = False  # a request held the expected words

    def count_since(self, before: TrafficReport) -> ReplyUsage:
        return ReplyUsage(
            input_tokens=self.input_tokens - before.input_tokens,
            output_tokens=self.output_tokens - before.output_tokens,
            cost=self.cost - before.cost,
        )


class AgentTraffic:
    """Reader of one member's report."""

    def __init__(self, gateway: str, member: str, token: str) -> None:
        self._place = gateway.removeprefix("http://")
        self._member = member
        self._token = token

    async def read(self, *, idle: bool = False, expect: Sequence[str] = ()) -> TrafficReport | None:
        """Return the report; None if there is no answer.

        Args:
            idle: wait until no request runs.
            expect: words by which further requests show that the agent knows its conversation.
        """
        asked = [("expect", text) for text in expect] + ([("idle", "1")] if idle else [])
        query = f"?{urlencode(asked)}" if asked else ""
        head = (
            f"GET /@{self._member}/{query} HTTP/1.1\r\nhost: {self._place}\r\n"
            f"authorization: Bearer {self._token}\r\nconnection: close\r\n\r\n"
        )
        host, _, port = self._place.partition(":")
        body = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(SECONDS):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(head.encode())
                    body = await reader.read()
                finally:
                    writer.close()
        status, _, text = body.partition(b"\r\n\r\n")
        if b" 200 " not in status[:20]:
            return None
        return _parse_report(text)


def _parse_report(text: bytes) -> TrafficReport | None:
    try:
        found: dict[str, Any] = json.loads(text)
        return TrafficReport(**found)
    except (ValueError, TypeError):
        return None
