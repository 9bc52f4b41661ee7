"""Record of what a coding agent says and does, written to disk as it happens.

So an attempt that is cut off loses none of it: messages, tool calls, the words of an unfinished
message, and the raw lines of the program.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from retinue.agents.link import (
    CallFinished,
    CallStarted,
    LinkWarning,
    PermissionAsked,
    PermissionPolicy,
    PermissionQuestion,
    RawLine,
    SessionOpened,
    TextDelta,
    Update,
    WholeMessage,
)
from retinue.core.conversation import Call, Turn
from retinue.core.ids import MemberId
from retinue.team.team_state import TeamState
from retinue.team.testimony_writer import TestimonyWriter

MOST_STREAM_BYTES = 16 * 1024 * 1024
KEEP_SECONDS = 0.2
NOT_GRANTED = "its contract does not grant this tool"


class AgentRecorder:
    """Recorder of the updates of one agent.

    Args:
        metered: whether the gateway sees its requests, and so records calls that were refused.
    """

    def __init__(
        self,
        name: MemberId,
        state: TeamState,
        testimony: TestimonyWriter,
        policy: PermissionPolicy,
        *,
        metered: bool,
    ) -> None:
        self._name = name
        self._state = state
        self._testimony = testimony
        self._policy = policy
        self._metered = metered
        self.heard = asyncio.Event()  # something new was heard
        self.heard_at = time.monotonic()
        self.calls: dict[str, Call] = {}  # that have begun and not ended
        self._count = {"turns": 0, "calls": 0}
        self._words = ""  # of the message that is being written
        self._said = ""  # the last whole message
        self._said_before = ""  # the one before it
        self._keeping: asyncio.TimerHandle | None = None
        self._stream: int | None = None
        self._stream_bytes = 0

    @property
    def last_words(self) -> str:
        """The last whole message, else the words of an unfinished one."""
        return self._said or self._words

    def open_stream(self, folder: Path) -> None:
        """Open the file for the raw lines; later programs of the attempt share it."""
        if self._stream is None:
            folder.mkdir(exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._stream = os.open(folder / "stream.jsonl", flags, 0o644)

    def close(self) -> None:
        if self._stream is not None:
            os.close(self._stream)
            self._stream = None

    def begin_turn(self) -> None:
        self._count["turns"] += 1
        self._said = self._said_before = self._words = ""
        self.heard_at = time.monotonic()
        self.show(doing="thinking", turns=self._count["turns"])

    def note_activity(self) -> None:
        self.heard_at = time.monotonic()
        self.heard.set()

    def hear(self, update: Update) -> None:
        """Record an update of the agent."""
        if isinstance(update, RawLine):
            return self._write_raw(update.data)
        self.note_activity()
        match update:
            case TextDelta(text=text):
                self._words += text
                self._keep_words_soon()
            case WholeMessage(text=text):
                self.hear_message(text)
            case CallStarted():
                self._hear_call(update)
            case CallFinished():
                self._hear_result(update)
            case PermissionAsked(tool=tool, title=title, granted=granted):
                said = "granted" if granted else "denied"
                self._testimony.record_notice(
                    "agent_permission", self._name, tool=tool or title, answer=said
                )
                if not granted:
                    self._testimony.record_refusal(self._name, tool or title, NOT_GRANTED)
            case LinkWarning(code=code, text=text):
                self.warn(code, text)
            case SessionOpened():
                pass  # `open` returns it
        return None

    def hear_message(self, text: str) -> None:
        """Record a whole message, unless it is the last one again."""
        self._words = ""
        if not text.strip() or text == self._said:
            return
        self._said_before, self._said = self._said, text
        self._testimony.keep_words(self._name, text, whole=True)
        self.record_turn(Turn(role="assistant", text=text))
        self.show(last_words=text.strip()[-400:])

    def end_turn(self, text: str) -> None:
        """Record the last message of a turn, unless the agent reported it before."""
        if text.strip() and text != self._said:
            self.hear_message(text)

    def forget_words(self, text: str) -> None:
        """Drop the program's words after a refusal: no model wrote them."""
        if text.strip() and text == self._said:
            self._said, self._said_before = self._said_before, ""
            self._testimony.keep_words(self._name, self._said, whole=True)

    def show(self, **facts: object) -> None:
        """Show facts about the agent in status.json."""
        self._testimony.show_agent(self._name, **facts)
        self._state.report_spending()

    def warn(self, code: str, text: str) -> None:
        self._testimony.record_notice("agent_warning", self._name, code=code, text=text)

    def record_turn(self, turn: Turn) -> None:
        self._testimony.record_turn(self._name, turn)

    def _keep_words_soon(self) -> None:
        """Write the words of an unfinished message, at most a few times in a second."""
        if self._keeping is None:
            loop = asyncio.get_running_loop()
            self._keeping = loop.call_later(KEEP_SECONDS, self._keep_words)

    def _keep_words(self) -> None:
        self._keeping = None
        if self._words:
            self._testimony.keep_words(self._name, self._words, whole=False)

    def _hear_call(self, update: CallStarted) -> None:
        if self._words.strip():
            self.hear_message(self._words)
        call = Call(id=update.call, tool=update.tool, arguments=update.arguments)
        self.calls[update.call] = call
        self._count["calls"] += 1
        self.record_turn(Turn(role="assistant", calls=(call,)))
        doing = f"{update.tool}: {update.title}" if update.title else update.tool
        self.show(doing=doing[:200], calls=self._count["calls"])

    def _hear_result(self, update: CallFinished) -> None:
        call = self.calls.pop(update.call, Call(id=update.call, tool=update.tool))
        text = update.text if update.ok else f"error: {update.text}"
        self.record_turn(Turn(role="tool", text=text, call=call))
        # The gateway records calls of tools that were not offered, but sees no own login's.
        asked = PermissionQuestion(tool=call.tool)
        if not (update.ok or self._metered or self._policy.grants(asked)):
            self._testimony.record_refusal(self._name, call.tool, NOT_GRANTED)
        self.show(doing="thinking")

    def _write_raw(self, line: bytes) -> None:
        left = MOST_STREAM_BYTES - self._stream_bytes
        if self._stream is None or left <= 0:
            return
        data = line + b"\n" if len(line) < left else b'{"retinue": "cut here"}\n'
        self._stream_bytes += max(len(data), len(line))
        with suppress(OSError):
            os.write(self._stream, data)
