"""Process of a coding agent and what every dialect does with it.

The agent is as untrusted as everything in the child: a line may be cut, huge, or no message at
all. Lines that are not JSON objects are ignored. A message without a field that its dialect
requires fails the link with `agent_protocol`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from retinue.agents.launch import AgentLaunch
from retinue.agents.link import (
    MOST_KEPT,
    AgentTurn,
    CallFinished,
    CallStarted,
    Json,
    LinkFailed,
    LinkWarning,
    Observer,
    PermissionAsked,
    PermissionPolicy,
    PermissionQuestion,
    RawLine,
    SessionOpened,
    TextDelta,
    WholeMessage,
)
from retinue.core.result import signal_name
from retinue.processes import LineReader, StderrTail, wait_exit

LONGEST_LINE = 16 * 1024 * 1024
KEPT_STDERR = 4000  # bytes of its end
REST_SECONDS = 0.2  # after its exit, for the rest of its output to arrive
GRACE_SECONDS = 1.0  # to exit after its input is closed, and again after SIGTERM
MOST_WARNINGS = 50  # different ones that are reported
MOST_UNREAD = 4 * 1024 * 1024  # unread bytes after which the agent's own requests get no reply


class AgentProcess:
    """The running program and its pipes, in a process group of its own."""

    def __init__(
        self,
        argv: Iterable[str],
        launch: AgentLaunch,
        hear: Callable[[bytes | None], None],
        report_end: Callable[[LinkFailed], None],
    ) -> None:
        """Args:
        hear: called with each line of output, and with None for one that is too long.
        report_end: called once, when the program has ended or closed its output.
        """
        self._argv = list(argv)
        self._launch = launch
        self._report_end = report_end
        self._lines = LineReader(LONGEST_LINE, hear, self._output_closed)
        self._errors = StderrTail(KEPT_STDERR)
        self.over = ""  # how it ended; empty while it runs

    async def start(self) -> None:
        """Start the program.

        Raises:
            LinkFailed: `agent_not_started`.
        """
        try:
            self._process = self._spawn()
        except (OSError, ValueError) as error:
            raise LinkFailed(
                f"{self._argv[0]} cannot be started: {error}", code="agent_not_started"
            ) from error
        # The watcher comes first: whatever fails below, the process is reaped.
        self._watching = asyncio.create_task(self._watch())
        try:
            await self._connect_pipes()
        except BaseException:  # cancellation included: `close` needs the pipes
            self._signal_group(signal.SIGKILL)
            raise

    async def _connect_pipes(self) -> None:
        loop = asyncio.get_running_loop()
        self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        self._output, _ = await loop.connect_read_pipe(lambda: self._lines, self._process.stdout)
        self._failing, _ = await loop.connect_read_pipe(lambda: self._errors, self._process.stderr)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._argv,
            cwd=self._launch.cwd,
            env=dict(self._launch.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    @property
    def can_reply(self) -> bool:
        """Whether the program reads its input; otherwise unread replies would fill our memory."""
        return self._input.get_write_buffer_size() < MOST_UNREAD

    def write(self, message: Json) -> None:
        """Write one line.

        Raises:
            LinkFailed: `agent_ended`.
        """
        if self.over or self._input.is_closing():
            raise LinkFailed(self.over or "it no longer reads its input", code="agent_ended")
        self._input.write(json.dumps(message, ensure_ascii=True).encode() + b"\n")

    async def close(self) -> None:
        """End the program and its process group, within about two seconds."""
        try:
            self._input.close()
            await asyncio.wait({self._watching}, timeout=GRACE_SECONDS)
            if not self._watching.done():
                self._signal_group(signal.SIGTERM)
                await asyncio.wait({self._watching}, timeout=GRACE_SECONDS)
        finally:
            if not self._watching.done():
                self._signal_group(signal.SIGKILL)
        await asyncio.wait({self._watching})
        for pipe in (self._input, self._output, self._failing):
            pipe.close()

    async def _watch(self) -> None:
        await wait_exit(self._process.pid)
        # Commands that it left behind. It is not reaped yet, so the number is still its own.
        self._signal_group(signal.SIGKILL)
        self._process.wait()
        # Bounded: a process that left the group may keep the output open.
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                await asyncio.gather(self._lines.over.wait(), self._errors.over.wait())
        code = self._process.returncode
        end = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
        last = " | ".join(self._errors.lines)[-600:]
        self._end(f"it ended ({end})" + (f": {last}" if last else ""))

    def _output_closed(self) -> None:
        # If it exits soon, `_watch` tells more about its end. If not, this is the end.
        loop = asyncio.get_running_loop()
        loop.call_later(2 * REST_SECONDS, self._end, "it closed its output")

    def _end(self, how: str) -> None:
        if not self.over:
            self.over = how
            self._report_end(LinkFailed(how, code="agent_ended"))

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


class AgentConnection(Protocol):
    """Program at the other end of a link."""

    over: str

    @property
    def can_reply(self) -> bool: ...
    async def start(self) -> None: ...
    def write(self, message: Json) -> None: ...
    async def close(self) -> None: ...


# Its words, the launch, and whom to tell of lines and of the end: as AgentProcess takes them.
ConnectAgent = Callable[
    [Iterable[str], AgentLaunch, Callable[[bytes | None], None], Callable[[LinkFailed], None]],
    AgentConnection,
]


class ProcessLink:
    """Base of the dialects: requests, the running turn, and what was said in it."""

    steers_in_turn = False
    version = ""  # of the protocol in each message; only some have one

    def __init__(
        self,
        launch: AgentLaunch,
        observer: Observer,
        policy: PermissionPolicy,
        *,
        connect: ConnectAgent | None = None,
    ) -> None:
        """Args: connect: makes the connection to the program; a process unless a test says so."""
        self.session = ""
        self._connect: ConnectAgent = connect or AgentProcess
        self._launch = launch
        self._observe = observer
        self._policy = policy
        self._process: AgentConnection | None = None
        self._waiting: dict[Hashable, asyncio.Future[Json]] = {}
        self._turn: asyncio.Future[AgentTurn] | None = None
        self._number = 0
        self._calls: dict[str, str] = {}  # id of an open call -> tool
        self._said = ""  # last whole message after the last tool event
        self._partial = ""  # message that is being written
        self._interrupted = False
        self._warned: set[LinkWarning] = set()

    async def open(self, session: str = "") -> str:
        """Start the program; begin a session, or resume this one. Return the session's id."""
        try:
            return await self._open(session)
        except LinkFailed as error:
            # After a refusal to resume a session, a new one can begin. After any other failure
            # nothing more is asked of the program, and it must not go on and spend the budget.
            if not session or error.code != "agent_refused":
                await self.close()
            raise

    async def _open(self, session: str) -> str:
        raise NotImplementedError

    async def close(self) -> None:
        """End the program: EOF, 1 s, SIGTERM, 1 s, SIGKILL of its process group."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()

    def _on_message(self, message: Json) -> None:
        """Handle one message of the agent.

        Raises:
            LinkFailed: it lacks what the dialect requires.
        """
        raise NotImplementedError

    async def _start(self, *more: str) -> None:
        argv = (*self._launch.argv, *more)
        process = self._connect(argv, self._launch, self._on_line, self._fail)
        await process.start()
        self._process = process

    @property
    def _is_running(self) -> bool:
        return self._process is not None and not self._process.over

    def _send(self, message: Json) -> None:
        if self._process is None:
            raise LinkFailed("it is not open", code="agent_ended")
        self._process.write(message)

    def _reply(self, message: Json) -> None:
        """Answer a request of the agent, unless it does not read or has ended."""
        if self._process is not None and self._process.can_reply:
            with suppress(LinkFailed):
                self._process.write(message)

    async def _call(self, method: str, params: Json) -> Json:
        """Send a JSON-RPC request; return its result.

        Raises:
            LinkFailed: `agent_refused` if the answer is an error.
        """
        self._number += 1
        head: Json = {"jsonrpc": self.version} if self.version else {}
        request = head | {"id": self._number, "method": method, "params": params}
        message = await self._wait_for(self._number, request)
        if "error" in message:
            error = as_dict(message["error"])
            data = error.get("data")
            detail = f" ({shorten(data)})" if data else ""
            said = f"{method}: {as_text(error.get('message')) or 'refused'}{detail}"
            raise LinkFailed(said, code="agent_refused", raw=json.dumps(message).encode())
        return as_dict(message.get("result"))

    async def _call_unless_refused(self, method: str, params: Json) -> bool:
        """Send a JSON-RPC request; return False if the answer is an error."""
        try:
            await self._call(method, params)
        except LinkFailed as error:
            if error.code == "agent_refused":
                return False
            raise
        return True

    async def _wait_for(self, key: Hashable, request: Json) -> Json:
        """Send a request and wait for the message that settles it."""
        waiting: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiting
        try:
            self._send(request)
            return await waiting
        finally:
            self._waiting.pop(key, None)

    def _settle(self, key: object, message: Json) -> None:
        waiting = self._waiting.get(key) if isinstance(key, Hashable) else None
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    async def _begin_turn(self) -> asyncio.Future[AgentTurn]:
        """Wait until an earlier turn is over, then begin one."""
        if self._turn is not None and not self._turn.done():
            await asyncio.wait({self._turn})
        self._said = ""
        self._partial = ""
        self._interrupted = False
        self._turn = asyncio.get_running_loop().create_future()
        return self._turn

    @contextmanager
    def _discard_unless_sent(self, turn: asyncio.Future[AgentTurn]) -> Iterator[None]:
        """End a turn whose prompt cannot be sent: no later prompt must wait for its end."""
        try:
            yield
        except LinkFailed:
            turn.cancel()
            raise

    def _end_turn(self, turn: AgentTurn) -> None:
        self._finish_message()
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(turn)

    @property
    def _has_turn(self) -> bool:
        return self._turn is not None and not self._turn.done()

    async def _await_turn(self, turn: asyncio.Future[AgentTurn]) -> AgentTurn:
        # Cancelling the caller must not mark the turn as over: the agent is still at work.
        return await asyncio.shield(turn)

    def _on_line(self, line: bytes | None) -> None:
        if line is None:
            return self._fail(LinkFailed(f"it wrote a line over {LONGEST_LINE >> 20} MB"))
        self._observe(RawLine(data=line))
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(message, dict):
            return None
        try:
            self._on_message(message)
        except LinkFailed as error:
            self._fail(LinkFailed(error.message, code=error.code, raw=line))
        return None

    def _fail(self, error: LinkFailed) -> None:
        """Fail everything that waits for the agent."""
        self._finish_message()
        pending: list[asyncio.Future[Any]] = list(self._waiting.values())
        if self._turn is not None:
            pending.append(self._turn)
        for waiting in pending:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # the caller may have been cancelled and never ask

    # What was said, in the order in which it is heard.

    def _open_session(self, session: str, *, resumed: bool) -> str:
        self.session = session
        self._observe(SessionOpened(session=session, resumed=resumed))
        return session

    def _hear_delta(self, text: str) -> None:
        if text:
            self._partial += text
            self._observe(TextDelta(text=text))

    def _hear_message(self, text: str) -> None:
        """Record a whole message; it replaces the pieces that were received before."""
        self._partial = ""
        if text:
            self._said = text
            self._observe(WholeMessage(text=text))

    def _finish_message(self) -> None:
        """Take the pieces received so far as a whole message."""
        self._hear_message(self._partial)

    def _hear_call(
        self, call: str, tool: str, title: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._finish_message()
        self._said = ""  # the answer is what is said after the last tool
        if call not in self._calls:
            self._calls[call] = tool
            self._observe(
                CallStarted(call=call, tool=tool, title=title[:400], arguments=arguments or {})
            )

    def _hear_result(self, call: str, text: str, *, ok: bool) -> None:
        self._finish_message()
        self._said = ""
        tool = self._calls.pop(call, None)
        if tool is not None:
            self._observe(CallFinished(call=call, tool=tool, ok=ok, text=text[:MOST_KEPT]))

    def _ask_policy(self, question: PermissionQuestion) -> bool:
        granted = self._policy.grants(question)
        name = question.tool or question.kind
        self._observe(PermissionAsked(tool=name, title=question.title[:400], granted=granted))
        return granted

    def _warn(self, code: str, text: str) -> None:
        """Report a warning, each text once: some agents repeat theirs in every turn."""
        warning = LinkWarning(code=code, text=text[:2000])
        if text and warning not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(warning)
            self._observe(warning)


def as_dict(value: object) -> Json:
    """Return a JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int:
    """Return a number of tokens; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def join_text(content: object) -> str:
    """Return the text of content blocks, however deep their vendors nest them."""
    if isinstance(content, str):
        return content
    parts = [as_dict(each) for each in (as_list(content) or [content])]
    texts = (as_text(part.get("text")) or join_text(part.get("content", "")) for part in parts)
    return "\n".join(text for text in texts if text)


def shorten(value: object) -> str:
    """Return a value as one line of at most 400 characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())[:400]
