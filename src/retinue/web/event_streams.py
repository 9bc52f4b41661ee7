"""Server-sent events for the web page."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response, StreamingResponse

from retinue.core.errors import RetinueError
from retinue.inotify import CHANGED, CHUNK, Inotify
from retinue.web.page_steward_connection import StewardConnection
from retinue.web.security_middleware import refuse


class WatchedFolders:
    """Watcher of folders for written, created or moved files."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._inotify = Inotify()
        self._folders = folders
        self._event = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._inotify.fd, self._drain)
        self._watch()

    async def wait_changed(self, seconds: float) -> bool:
        """Return whether anything changed since the last call, or does within the time."""
        # Again in each round: a new attempt replaces the folders.
        self._watch()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        happened = self._event.is_set()
        self._event.clear()
        return happened

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._inotify.fd)
        self._inotify.close()

    def _watch(self) -> None:
        for folder in self._folders:
            # The folder may not exist yet.
            with suppress(OSError):
                self._inotify.watch(folder, CHANGED)

    def _drain(self) -> None:
        os.read(self._inotify.fd, CHUNK)
        self._event.set()


MOST_STREAMS = 128
PAGE = 200
# An idle stream sends a comment this often, which shows a closed connection.
BEAT_SECONDS = 15
RETRY_MS = 1000
# Shortest time between two messages about a child's output
SETTLE_SECONDS = 0.1


class EventStreams:
    """All streams of a server; each fetches a page of events only after the last was sent."""

    def __init__(self, link: StewardConnection) -> None:
        self._link = link
        self._open = 0

    async def stream_task(self, task: str, *, after: int, start: bool) -> Response:
        """Stream the events of a task after a number, until the task is closed."""
        first = await self._fetch_page(task, after, wait=0, start=start)
        return self._stream(self._stream_events(task, after, first))

    async def stream_root(self, *, start: bool) -> Response:
        """Stream a message whenever an event is recorded in any task."""
        first = await self._link.call("look.changes", start=start)
        return self._stream(self._stream_changes(first["changes"]))

    async def stream_subagent(self, task: str, subagent: str, *, start: bool) -> Response:
        """Stream a message whenever the subagent writes to its logs."""
        known = await self._link.call("subagent.logs", start=start, task=task, subagent=subagent)
        return self._stream(_stream_writes(known["stdout"]))

    def _stream(self, messages: AsyncIterator[str]) -> Response:
        if self._open >= MOST_STREAMS:
            later = {"retry-after": "5"}
            said, hint = "too many pages are open", "close some of them"
            return refuse(503, "too_many_streams", said, hint, later)
        return StreamingResponse(self._count_stream(messages), media_type="text/event-stream")

    async def _count_stream(self, messages: AsyncIterator[str]) -> AsyncIterator[str]:
        self._open += 1
        try:
            yield f"retry: {RETRY_MS}\n\n"
            async for message in messages:
                yield message
        except RetinueError:
            # The browser reconnects and continues after the last event.
            return
        finally:
            self._open -= 1

    async def _stream_events(
        self, task: str, after: int, page: dict[str, Any]
    ) -> AsyncIterator[str]:
        while True:
            if page["events"]:
                after = page["events"][-1]["seq"]
                yield "".join(_format_message(event, event["seq"]) for event in page["events"])
            elif page["closed"]:
                yield "event: end\ndata: {}\n\n"
                return
            else:
                yield ": \n\n"
            page = await self._fetch_page(task, after, wait=BEAT_SECONDS, start=False)

    async def _fetch_page(self, task: str, after: int, *, wait: int, start: bool) -> dict[str, Any]:
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

    async def _stream_changes(self, known: int) -> AsyncIterator[str]:
        yield ": \n\n"
        while True:
            answer = await self._link.call(
                "look.changes", start=False, after=known, wait_seconds=BEAT_SECONDS
            )
            changed = answer["changes"] != known
            known = answer["changes"]
            yield _format_message({"changes": known}) if changed else ": \n\n"


async def _stream_writes(stdout: str) -> AsyncIterator[str]:
    runtime = stdout.rpartition("/")[0]
    folders = WatchedFolders([runtime, f"{runtime.rpartition('/')[0]}/full_logs"])
    try:
        yield ": \n\n"
        while True:
            changed = await folders.wait_changed(BEAT_SECONDS)
            yield _format_message({"changed": True}) if changed else ": \n\n"
            await asyncio.sleep(SETTLE_SECONDS)
    finally:
        folders.close()


def _format_message(document: Any, seq: int | None = None) -> str:
    """Return one message; ASCII JSON contains no line end that could end it early."""
    number = "" if seq is None else f"id: {seq}\n"
    return f"{number}data: {json.dumps(document, ensure_ascii=True, separators=(',', ':'))}\n\n"
