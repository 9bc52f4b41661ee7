"""Client of the local model: finds or starts its server process and keeps it running."""

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

from retinue.files import hold_descriptor
from retinue.gateway.local_model.model_server import IDLE_VARIABLE, SOCKET
from retinue.gateway.local_model.weights import SMOLLM2, missing
from retinue.sockets import make_address

LOG = "server.log"
MOST_AT_ONCE = 4  # requests of one steward; more would only wait in the server
TRIES = 3
START_SECONDS = 30.0
LOAD_SECONDS = 120.0
LARGEST_LOG = 1024 * 1024
PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")


class NoLocalModel(Exception):
    """The local model cannot be used; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class ModelEndpoint:
    url: str
    key: str


class LocalModel:
    """Client of the model server, shared by all requests of this process."""

    name = SMOLLM2.name

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._starting = asyncio.Lock()

    def find_problem(self) -> str | None:
        return missing(self.folder)

    def is_running(self) -> bool:
        connection = self._connect_socket()
        if connection is not None:
            connection.close()
        return connection is not None

    @asynccontextmanager
    async def acquire_endpoint(self) -> AsyncIterator[ModelEndpoint]:
        """Yield the address and key of the model; the server runs at least as long.

        Raises:
            NoLocalModel: the model is not installed or does not start.
        """
        if why := self.find_problem():
            raise NoLocalModel(why)
        # The open connection tells the server that it is in use.
        async with self._slots:
            writer, endpoint = await self._connect_server()
            try:
                yield endpoint
            finally:
                writer.close()

    async def _connect_server(self) -> tuple[asyncio.StreamWriter, ModelEndpoint]:
        # Try again if the server ends between connect and answer: it may just have been idle.
        for _ in range(TRIES):
            connection = self._connect_socket()
            if connection is None:
                # Connect again under the lock: another request may have started the server.
                async with self._starting:
                    connection = self._connect_socket() or await self._start()
            if connection is None:
                continue
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            try:
                endpoint = await self._read_endpoint(reader)
            except BaseException:
                writer.close()
                raise
            if endpoint is not None:
                return writer, endpoint
            writer.close()
        raise NoLocalModel(
            f"the local model's process ended before it answered; {self.folder / LOG} may say why"
        )

    async def _read_endpoint(self, reader: asyncio.StreamReader) -> ModelEndpoint | None:
        """Read the address of the model; return None if the server was just ending."""
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                line = await reader.readline()
        except TimeoutError:
            raise NoLocalModel(
                f"the local model was not loaded within {LOAD_SECONDS:g} s"
            ) from None
        except ConnectionError:
            return None
        if not line.endswith(b"\n"):
            return None
        answer = json.loads(line)
        if "error" in answer:
            raise NoLocalModel(str(answer["error"]))
        return ModelEndpoint(url=str(answer["url"]), key=str(answer["key"]))

    def _connect_socket(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            with make_address(self.folder / SOCKET) as address:
                connection.connect(address)
        except OSError:
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    async def _start(self) -> socket.socket | None:
        """Start the server, unless another process just did, and connect to it."""
        try:
            await asyncio.to_thread(_start, self.folder)
        except OSError as error:
            raise NoLocalModel(f"the local model's process cannot be started: {error}") from error
        return self._connect_socket()


def _start(folder: Path) -> None:
    """Start the server and wait until it listens, or finds that another one does."""
    # Only these variables: the server must not see any provider's key.
    environment = {
        name: os.environ[name] for name in (*PASSED_VARIABLES, IDLE_VARIABLE) if name in os.environ
    }
    read_end, write_end = os.pipe()
    with hold_descriptor(read_end):
        # The server has the only other copy of this end: its exit reads as end of file.
        with hold_descriptor(write_end), hold_descriptor(_open_log(folder)) as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "retinue.gateway.local_model.model_server",
                    folder,
                    str(write_end),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
                pass_fds=[write_end],
                start_new_session=True,
            )
        # The server may outlive this process. If it ends first, wait() reaps the zombie.
        threading.Thread(target=process.wait, daemon=True).start()
        # The server writes a word, or ends and closes the pipe.
        poll = select.poll()
        poll.register(read_end, select.POLLIN)
        poll.poll(START_SECONDS * 1000)


def _open_log(folder: Path) -> int:
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if os.fstat(log).st_size > LARGEST_LOG:
        os.ftruncate(log, 0)
    return log
