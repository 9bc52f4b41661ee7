"""Connection to an MCP server that runs as a process of the child, with one message per line.

The server is inside the child's isolation, as untrusted as everything there, and ends with it.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import killpg
from pathlib import Path

from retinue.processes import LineReader, StderrTail
from retinue.team.tools import mcp_messages
from retinue.team.tools.command_tool import describe_end, kill_group, wait_ended

LONGEST_LINE = 8 * 1024 * 1024
TOO_LONG = f"it answered with more than {LONGEST_LINE >> 20} MiB; ask for less"
MOST_UNREAD = 1024 * 1024  # unread bytes after which the server's own requests get no reply
KEPT_STDERR = 2000  # bytes of its end
REST_SECONDS = 0.2  # after its exit, for the rest of its output to arrive
GRACE_SECONDS = 0.5  # to exit after its input is closed, and again after SIGTERM


class ServerGone(mcp_messages.McpError):
    """The server has ended."""


class StdioConnection:
    """One server process and its pipes."""

    def __init__(self, argv: Sequence[str], home: Path, environment: Mapping[str, str]) -> None:
        self._argv = list(argv)
        self._home = home
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, asyncio.Future[mcp_messages.Message]] = {}
        self._errors = StderrTail(KEPT_STDERR)
        self._stray = 0  # lines of output that are not messages
        self.over = ""  # how it ended; empty while it runs

    async def open(self) -> None:
        """Start the server.

        Raises:
            OSError: it cannot be started.
        """
        process = self._start_process()
        try:
            await self._connect(process)
        except BaseException:
            kill_group(process)
            raise
        self._watching = asyncio.create_task(self._watch(process))
        self._process = process

    def _start_process(self) -> subprocess.Popen[bytes]:
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
        self._lines = LineReader(LONGEST_LINE, self._on_line)
        self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        self._output, _ = await loop.connect_read_pipe(lambda: self._lines, process.stdout)
        self._failing, _ = await loop.connect_read_pipe(lambda: self._errors, process.stderr)

    async def send_request(self, message: mcp_messages.Message) -> mcp_messages.Message:
        """Send a request and return its answer.

        Raises:
            McpError: the server has ended, or its answer is too long.
        """
        if self.over:
            raise ServerGone(self.over)
        number = mcp_messages.read_number(message)
        answer: asyncio.Future[mcp_messages.Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self.tell(message)
            return await answer
        finally:
            del self._waiting[number]

    def tell(self, message: mcp_messages.Message) -> None:
        if not self.over and not self._input.is_closing():
            self._input.write(mcp_messages.to_line(message))

    @property
    def remark(self) -> str:
        """Note that may explain a missing answer."""
        return f"; {self._stray} lines of its output were not messages" if self._stray else ""

    async def close(self) -> None:
        """Stop the server and its process group."""
        if self._process is None:
            return
        # The order that MCP prescribes: close its input, then SIGTERM, then SIGKILL.
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

    def _on_line(self, line: bytes | None) -> None:
        # The id of a line that is too long is unknown, so all open requests fail.
        if line is None:
            return self._fail(mcp_messages.McpError(TOO_LONG))
        message = mcp_messages.parse(line)
        if message is None:
            self._stray += bool(line.strip())
            return None
        number = mcp_messages.find_answered_number(message)
        waiting = self._waiting.get(number) if number is not None else None
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        # A server that sends requests but reads no replies must not fill our memory.
        elif self._input.get_write_buffer_size() < MOST_UNREAD and (
            reply := mcp_messages.reply_to(message)
        ):
            self.tell(reply)
        return None

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        await wait_ended(process)
        # Bounded: a process that it started may keep its output open.
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                await asyncio.gather(self._lines.over.wait(), self._errors.over.wait())
        last = "".join(self._errors.lines[-1:])[:400]
        self.over = f"it ended ({describe_end(process)})" + (f": {last}" if last else "")
        self._fail(ServerGone(self.over))

    def _fail(self, why: mcp_messages.McpError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(why)
