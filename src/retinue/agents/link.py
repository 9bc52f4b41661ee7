"""Connection to a coding agent that runs as a process: what all dialects have in common.

An `AgentLink` is one process and one conversation. It reports what it hears to an observer as
updates; whatever the program writes is a claim and never ends this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from retinue.core.errors import RetinueError

Json = dict[str, Any]
MOST_KEPT = 64 * 1024  # bytes of a tool's result or of a broken line
Stop = Literal["end", "cancelled", "limit", "refused", "error"]


class LinkFailed(RetinueError):
    """The agent could not be started, has ended, or broke its protocol.

    Codes: `agent_not_started`, `agent_ended`, `agent_protocol`, `agent_refused` (it answered a
    request of ours with an error, for example that a session to resume is unknown).
    """

    default_code = "agent_protocol"
    default_hint = "read stream.jsonl in the member's logs for what the agent wrote"

    def __init__(self, message: str, *, code: str | None = None, raw: bytes = b"") -> None:
        """Args: raw: the line that broke the protocol; at most 64 KB of it are kept."""
        super().__init__(message, code=code)
        self.raw = raw[:MOST_KEPT]


@dataclass(frozen=True, kw_only=True)
class ClaimedUsage:
    """Tokens of a turn as the agent counts them; the gateway's count is the one to trust."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class AgentTurn:
    """How one prompt ended.

    `end` is the agent's own word: some report success when the provider refused them.
    """

    text: str  # what it said after its last tool call
    stop: Stop
    error: str = ""
    structured: Any = None  # the answer by schema, where the agent returns it as a value
    usage: ClaimedUsage | None = None


@dataclass(frozen=True, kw_only=True)
class SessionOpened:
    session: str
    resumed: bool


@dataclass(frozen=True, kw_only=True)
class TextDelta:
    """Next piece of a message that is still being written."""

    text: str


@dataclass(frozen=True, kw_only=True)
class WholeMessage:
    """Complete message; reported before the tools run that it calls."""

    text: str


@dataclass(frozen=True, kw_only=True)
class CallStarted:
    call: str  # its id
    tool: str  # the vendor's name, or its kind of tool where it tells no name
    title: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CallFinished:
    call: str
    tool: str
    ok: bool
    text: str = ""  # result or error, cut at 64 KB


@dataclass(frozen=True, kw_only=True)
class PermissionAsked:
    """The agent asked whether it may use a tool; the policy answered."""

    tool: str
    title: str
    granted: bool


@dataclass(frozen=True, kw_only=True)
class LinkWarning:
    """Something that a reader of the result should know; the turn goes on."""

    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RawLine:
    """One line as the agent wrote it, without its newline."""

    data: bytes


Update = (
    SessionOpened
    | TextDelta
    | WholeMessage
    | CallStarted
    | CallFinished
    | PermissionAsked
    | LinkWarning
    | RawLine
)
Observer = Callable[[Update], None]


@dataclass(frozen=True, kw_only=True)
class PermissionQuestion:
    """What an agent wants to do, as far as it says."""

    tool: str = ""  # the vendor's name
    kind: str = ""  # ACP: read, edit, delete, move, search, execute, think, fetch, other
    title: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


class PermissionPolicy(Protocol):
    """The contract's answer to permission questions."""

    def grants(self, question: PermissionQuestion) -> bool: ...


class AgentLink(Protocol):
    """One running agent.

    Raises:
        LinkFailed: from `open`, `prompt`, `steer` and `interrupt`.
    """

    #: Whether `steer` can join a running turn, known after `open`.
    steers_in_turn: bool

    async def open(self, session: str = "") -> str:
        """Start the program; begin a session, or resume this one. Return the session's id.

        After a LinkFailed with the code `agent_refused` the session cannot be resumed, and
        `open("")` begins a new one. After any other failure the program was ended.
        """
        ...

    async def prompt(self, text: str, schema: Mapping[str, Any] | None = None) -> AgentTurn:
        """Send a prompt and wait until its turn is over.

        If the caller's task is cancelled meanwhile, the turn goes on until `interrupt`; a later
        prompt first waits for its end.
        """
        ...

    async def steer(self, text: str) -> bool:
        """Add a message to the running turn; return False if it has to wait for the next turn."""
        ...

    async def interrupt(self) -> None:
        """Ask the agent to end the running turn; its `prompt` returns with stop `cancelled`."""
        ...

    async def close(self) -> None:
        """End the program: EOF, 1 s, SIGTERM, 1 s, SIGKILL of its process group."""
        ...
