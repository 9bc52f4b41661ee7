"""MCP servers as processes of this very child: a message a line, over their pipes.

They are inside the child's boundary, as untrusted as everything there, and end with it.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import killpg
from pathlib import Path

from retinue.executors.commands import ended, how_ended, kill_group
from retinue.wire import rpc

LONGEST_LINE = 8 * 1024 * 1024
TOO_LONG = f"it answered with more than {LONGEST_LINE >> 20} MiB; ask for less"
MOST_UNREAD = 1024 * 1024  # bytes that a server leaves lying; until then it is answered
KEPT_WORDS = 2000  # bytes of what it wrote last to its errors
REST_SECONDS = 0.2  # for what it said before its end to arrive
GRACE_SECONDS = 0.5  # to end by itself, and again after it was asked to


class Gone(rpc.Failed):
    """Nobody is there to answer any more."""


class Program:
    def __init__(self, argv: Sequence[str], home: Path, environment: Mapping[str, str]) -> None:
        self._argv = list(argv)
        self._home = home
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, asyncio.Future[rpc.Message]] = {}
        self._errors = _Tail()
        self._stray = 0  # lines that are no messages
        self.over = ""  # how it ended, once it has

    async def open(self) -> None:
        """It runs.

        Raises:
            OSError: it cannot be started.
        """
        process = self._started()
        try:
            await self._connect(process)
        except BaseException:
            kill_group(process)
            raise
        self._watching = asyncio.create_task(self._watch(process))
        self._process = process

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._argv,
            cwd=self._home,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    async def _connect(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        self._lines = _Lines(self._hear)
        self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        self._output, _ = await loop.connect_read_pipe(lambda: self._lines, process.stdout)
        self._failing, _ = await loop.connect_read_pipe(lambda: self._errors, process.stderr)

    async def exchange(self, message: rpc.Message) -> rpc.Message:
        """What it answers to a request.

        Raises:
            Failed: no answer can come.
        """
        if self.over:
            raise Gone(self.over)
        number = rpc.number_of(message)
        answer: asyncio.Future[rpc.Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self.tell(message)
            return await answer
        finally:
            del self._waiting[number]

    def tell(self, message: rpc.Message) -> None:
        if not self.over and not self._input.is_closing():
            self._input.write(rpc.to_line(message))

    @property
    def remark(self) -> str:
        """What may explain a silence."""
        return f"; {self._stray} lines of its output were no messages" if self._stray else ""

    async def close(self) -> None:
        """It has ended, by itself if it would, and nothing that it started is left."""
        if self._process is None:
            return
        if not self._watching.done():
            self._input.close()
            await asyncio.wait({self._watching}, timeout=GRACE_SECONDS)
        if not self._watching.done():
            with suppress(ProcessLookupError, PermissionError):
                killpg(self._process.pid, signal.SIGTERM)
            await asyncio.wait({self._watching}, timeout=GRACE_SECONDS)
        kill_group(self._process)
        await asyncio.wait({self._watching})
        for pipe in (self._input, self._output, self._failing):
            pipe.close()
        self._process = None

    def _hear(self, line: bytes | None) -> None:
        if line is None:
            return self._fail(rpc.Failed(TOO_LONG))
        message = rpc.parse(line)
        if message is None:
            self._stray += bool(line.strip())
            return None
        number = rpc.answered(message)
        waiting = self._waiting.get(number) if number is not None else None
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        elif self._input.get_write_buffer_size() < MOST_UNREAD and (reply := rpc.reply_to(message)):
            self.tell(reply)
        return None

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        await ended(process)
        with suppress(TimeoutError):  # whoever holds its output open need not be waited for
            async with asyncio.timeout(REST_SECONDS):
                await asyncio.gather(self._lines.over.wait(), self._errors.over.wait())
        last = self._errors.last
        self.over = f"it ended ({how_ended(process)})" + (f": {last}" if last else "")
        self._fail(Gone(self.over))

    def _fail(self, why: rpc.Failed) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(why)


class _Lines(asyncio.Protocol):
    """Whole lines, as they come; of one that is too long, only that it was."""

    def __init__(self, hear: Callable[[bytes | None], None]) -> None:
        self._hear = hear
        self._held: list[bytes] = []
        self._size = 0
        self.over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._hold(piece)
            line = b"".join(self._held)
            self._hear(line if self._size <= LONGEST_LINE else None)
            self._held, self._size = [], 0
        self._hold(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= LONGEST_LINE:
            self._held.append(piece)
        else:
            self._held = []


class _Tail(asyncio.Protocol):
    """The last words of a stream that nobody reads otherwise."""

    def __init__(self) -> None:
        self._kept = b""
        self.over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-KEPT_WORDS:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    @property
    def last(self) -> str:
        """The last line that says anything."""
        lines = self._kept.decode("utf-8", "replace").splitlines()
        return next((line.strip()[:400] for line in reversed(lines) if line.strip()), "")
