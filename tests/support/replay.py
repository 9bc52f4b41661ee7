"""Recorded agents without a process: each line of ours releases what the agent wrote after it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from retinue.agents.launch import AgentLaunch
from retinue.agents.link import Json, LinkFailed
from retinue.connections import LineBuffer

RECORDINGS = Path(__file__).parents[1] / "unit" / "agents" / "recordings"
PATIENCE = 20  # rounds of the event loop
Hear = Callable[[bytes | None], None]


def read_recording(name: str) -> list[dict[str, Any]]:
    lines = (RECORDINGS / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def split_outputs(entries: Iterable[dict[str, Any]]) -> list[list[bytes]]:
    """Return what the agent wrote, in parts; each follows one line that it was sent."""
    parts: list[list[bytes]] = []
    for entry in entries:
        if "in" in entry:
            parts.append([])
        else:
            parts[-1].append(json.dumps(entry["out"]).encode() + b"\n")
    return parts


class ReplayedAgent:
    """Connection to a recording; it ends after `most` bytes, where that is given.

    An impatient one also ends when it is sent nothing more, as after an answer that the link did
    not understand.
    """

    def __init__(
        self, parts: list[list[bytes]], most: int | None = None, *, impatient: bool = False
    ) -> None:
        self.parts = parts
        self.most = most
        self.impatient = impatient
        self.written: list[Json] = []
        self.over = ""
        self.can_reply = True

    def __call__(
        self,
        argv: Iterable[str],
        launch: AgentLaunch,
        hear: Hear,
        report_end: Callable[[LinkFailed], None],
    ) -> ReplayedAgent:
        self.argv = tuple(argv)
        self._hear = hear
        self._report_end = report_end
        self._buffer = LineBuffer()
        self._left = list(self.parts)
        return self

    async def start(self) -> None:
        pass

    def write(self, message: Json) -> None:
        if self.over:
            raise LinkFailed(self.over, code="agent_ended")
        self.written.append(message)
        lines = self._left.pop(0) if self._left else []
        # Later, as from a pipe: the caller has to wait for the answer by then.
        asyncio.get_running_loop().call_soon(self._deliver, b"".join(lines))

    async def close(self) -> None:
        self.over = "closed"

    def _deliver(self, data: bytes) -> None:
        if self.over:
            return
        is_last = self.most is not None and len(data) >= self.most
        if self.most is not None:
            data = data[: self.most]
            self.most -= len(data)
        for line in self._buffer.take_lines(data):
            self._hear(bytes(line or b""))
        if is_last or not self._left:
            if rest := self._buffer.take_rest():
                self._hear(bytes(rest))
            self._end()
        elif self.impatient:
            self._wait_for_more(len(self.written), PATIENCE)

    def _wait_for_more(self, written: int, rounds: int) -> None:
        if rounds == 0 and len(self.written) == written:
            self._end()
        elif rounds:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._wait_for_more, written, rounds - 1)

    def _end(self) -> None:
        if not self.over:
            self.over = "it ended (exit code 1)"
            self._report_end(LinkFailed(self.over, code="agent_ended"))
