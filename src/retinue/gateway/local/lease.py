"""The way to the local model: its process found, or started, and told that it is needed."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from retinue.gateway.local.process import IDLE_VARIABLE, SOCKET
from retinue.gateway.local.weights import SMOLLM2, missing

LOG = "server.log"
AT_ONCE = 4  # of one steward: more would only wait elsewhere
TRIES = 3
START_SECONDS = 30.0
LOAD_SECONDS = 120.0
LARGEST_LOG = 1024 * 1024
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")


class NoLocalModel(Exception):
    """It cannot be used here; the message says why, and what to run."""


@dataclass(frozen=True, kw_only=True)
class Place:
    url: str
    key: str


class LocalModel:
    """One for all who ask in this process; the model itself is in a process of its own."""

    name = SMOLLM2.name

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._starting = asyncio.Lock()

    def missing(self) -> str | None:
        return missing(self.folder)

    def runs(self) -> bool:
        connection = self._dial()
        if connection is not None:
            connection.close()
        return connection is not None

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Place]:
        """The model is there for as long as this lasts.

        Raises:
            NoLocalModel: it is not installed, or does not start.
        """
        if why := self.missing():
            raise NoLocalModel(why)
        async with self._turns:
            writer, place = await self._reach()
            try:
                yield place
            finally:
                writer.close()

    async def _reach(self) -> tuple[asyncio.StreamWriter, Place]:
        for _ in range(TRIES):
            connection = self._dial()
            if connection is None:
                async with self._starting:
                    connection = self._dial() or await self._start()
            if connection is None:
                continue
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            try:
                place = await self._told(reader)
            except BaseException:
                writer.close()
                raise
            if place is not None:
                return writer, place
            writer.close()
        raise NoLocalModel(
            f"the local model's process ended before it answered; {self.folder / LOG} may say why"
        )

    async def _told(self, reader: asyncio.StreamReader) -> Place | None:
        """Where the model is; None when its process was just ending."""
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                line = await reader.readline()
        except TimeoutError:
            raise NoLocalModel(f"it was not loaded within {LOAD_SECONDS:g} s") from None
        except ConnectionError:
            return None
        if not line.endswith(b"\n"):
            return None
        answer = json.loads(line)
        if "error" in answer:
            raise NoLocalModel(str(answer["error"]))
        return Place(url=str(answer["url"]), key=str(answer["key"]))

    def _dial(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            place = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                connection.connect(f"/proc/self/fd/{place}/{SOCKET}")
            finally:
                os.close(place)
        except OSError:
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    async def _start(self) -> socket.socket | None:
        """A connection to a process that was started for it, by us or just now by another."""
        try:
            await asyncio.to_thread(_start, self.folder)
        except OSError as error:
            raise NoLocalModel(f"its process could not be started: {error}") from error
        return self._dial()


def _start(folder: Path) -> None:
    """The process listens, or another one holds its place. It knows no key of any provider."""
    known = {name: os.environ[name] for name in (*PASSED_ON, IDLE_VARIABLE) if name in os.environ}
    ours, theirs = os.pipe()
    try:
        log = _open_log(folder)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "retinue.gateway.local.process", folder, str(theirs)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=known,
                pass_fds=[theirs],
                start_new_session=True,
            )
        finally:
            os.close(log)
            os.close(theirs)
        # It may outlive us; if we outlive it, it is to leave nothing.
        threading.Thread(target=process.wait, daemon=True).start()
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        poll.poll(START_SECONDS * 1000)
    finally:
        os.close(ours)


def _open_log(folder: Path) -> int:
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if os.fstat(log).st_size > LARGEST_LOG:
        os.ftruncate(log, 0)
    return log
