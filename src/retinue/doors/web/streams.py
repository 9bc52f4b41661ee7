"""Server-sent events: what is recorded reaches the page as it happens, each once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from retinue.domain.errors import RetinueError
from retinue.doors.web.guard import refuse
from retinue.doors.web.link import Link
from retinue.doors.web.watching import Folders

MOST_STREAMS = 128
PAGE = 200
BEAT_SECONDS = 15  # how long nothing is said while nothing happens
RETRY_MS = 1000
SETTLE_SECONDS = 0.1  # a child's writing, told at most so often


class Streams:
    """All streams of a server. A page is fetched when the last one was taken, never earlier."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._open = 0

    async def of_task(self, task: str, *, after: int, start: bool) -> Response:
        """Every event of a task after that number, until the task is closed."""
        first = await self._page(task, after, wait=0, start=start)
        return self._stream(self._events(task, after, first))

    async def of_root(self, *, start: bool) -> Response:
        """A word whenever anything was recorded in any task."""
        first = await self._link.call("look.changes", start=start)
        return self._stream(self._changes(first["changes"]))

    async def of_subagent(self, task: str, subagent: str, *, start: bool) -> Response:
        """A word whenever the subagent wrote anything into its logs."""
        known = await self._link.call("subagent.logs", start=start, task=task, subagent=subagent)
        return self._stream(_writings(known["stdout"]))

    def _stream(self, messages: AsyncIterator[str]) -> Response:
        if self._open >= MOST_STREAMS:
            later = {"retry-after": "5"}
            said, hint = "too many pages are open", "close some of them"
            return refuse(503, "too_many_streams", said, hint, later)
        return StreamingResponse(self._counted(messages), media_type="text/event-stream")

    async def _counted(self, messages: AsyncIterator[str]) -> AsyncIterator[str]:
        self._open += 1
        try:
            yield f"retry: {RETRY_MS}\n\n"
            async for message in messages:
                yield message
        except RetinueError:
            return  # the page asks again from where it was
        finally:
            self._open -= 1

    async def _events(self, task: str, after: int, page: dict[str, Any]) -> AsyncIterator[str]:
        while True:
            if page["events"]:
                after = page["events"][-1]["seq"]
                yield "".join(_message(event, event["seq"]) for event in page["events"])
            elif page["closed"]:
                yield "event: end\ndata: {}\n\n"
                return
            else:
                yield ": \n\n"
            page = await self._page(task, after, wait=BEAT_SECONDS, start=False)

    async def _page(self, task: str, after: int, *, wait: int, start: bool) -> dict[str, Any]:
        page: dict[str, Any] = await self._link.call(
            "look.events",
            start=start,
            task=task,
            after=after,
            limit=PAGE,
            wait_seconds=wait,
            whole=True,
        )
        return page

    async def _changes(self, known: int) -> AsyncIterator[str]:
        yield ": \n\n"
        while True:
            answer = await self._link.call(
                "look.changes", start=False, after=known, wait_seconds=BEAT_SECONDS
            )
            changed = answer["changes"] != known
            known = answer["changes"]
            yield _message({"changes": known}) if changed else ": \n\n"


async def _writings(stdout: str) -> AsyncIterator[str]:
    runtime = stdout.rpartition("/")[0]
    folders = Folders([runtime, f"{runtime.rpartition('/')[0]}/full_logs"])
    try:
        yield ": \n\n"
        while True:
            changed = await folders.changed(BEAT_SECONDS)
            yield _message({"changed": True}) if changed else ": \n\n"
            await asyncio.sleep(SETTLE_SECONDS)
    finally:
        folders.close()


def _message(document: Any, seq: int | None = None) -> str:
    """One message. ASCII JSON has no line end in it, so nothing can end the message early."""
    number = "" if seq is None else f"id: {seq}\n"
    return f"{number}data: {json.dumps(document, ensure_ascii=True, separators=(',', ':'))}\n\n"
