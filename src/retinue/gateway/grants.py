"""Access tokens, grants, budget accounts and ledger entries of attempts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from retinue.core.agent_cli_tools import list_native_tools
from retinue.core.budget import Account, Booking, Budget, Spending, Verdict
from retinue.core.contract import TOOLS
from retinue.core.errors import RetinueError, StorageFailed
from retinue.core.events import Event
from retinue.core.ids import TaskId
from retinue.core.result import TokenUsage
from retinue.core.subagent import Subagent
from retinue.core.task_config import Traffic
from retinue.files import read_plain, storage_failures
from retinue.gateway.providers import Provider

if TYPE_CHECKING:
    # The steward imports this module when it starts; the policy is needed only by requests.
    from retinue.gateway.request_policy import RequestPolicy

SECRET = "gateway.key"
SECRET_BYTES = 32
PREFIX = "retinue-"
MOST_EXPECTED = 8
SEARCHED_BYTES = 1024 * 1024  # at each end of a request
DELAY_SECONDS = 0.25  # a request that ends sooner is written once, at its end


class UsageLedger(Protocol):
    """Storage for bookings and accounts: `BookingLedger`, which the gateway must not import."""

    def book(self, booking: Booking, entry: int) -> int: ...

    def delete_entry(self, entry: int) -> None: ...

    def get_usage(self, subagent: Subagent, attempt: int) -> TokenUsage | None: ...

    def load_account(self, subagent: Subagent) -> Account: ...


@dataclass(kw_only=True)
class MemberTraffic:
    """Requests of one coding agent in an attempt; its team compares them with its messages."""

    requests: int = 0  # that asked a model
    answered: int = 0  # with success
    running: int = 0
    status: int = 0  # of the newest that ended; 0: it was cut
    error: str = ""  # its words, if it was refused
    spent: Spending = field(default_factory=Spending)
    recalled: bool = False  # a request held words of an earlier conversation
    _expected: tuple[bytes, ...] = ()
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def expect_words(self, texts: Sequence[str]) -> None:
        """Look for these in further requests, so that a resumed conversation is known as such."""
        # Security: a child chooses the texts and the requests, and the event loop waits for the
        # search. Its team sends at most five.
        self._expected = tuple(text.encode() for text in texts if text)[:MOST_EXPECTED]
        self.recalled = False

    def begin(self, body: bytes) -> None:
        if self._expected and not self.recalled:
            # The first words of a conversation are near the beginning, the last ones near the end.
            parts = (body[:SEARCHED_BYTES], body[-SEARCHED_BYTES:])
            self.recalled = any(text in part for text in self._expected for part in parts)
        self.requests += 1
        self.running += 1
        self._idle.clear()

    def end(self, status: int, error: str) -> None:
        self.running -= 1
        self.answered += 200 <= status < 300
        self.status = status
        self.error = error
        if not self.running:
            self._idle.set()

    async def wait_idle(self, seconds: float) -> None:
        """Wait until no request runs, at most this long.

        An agent receives the end of its answer a moment before the gateway has recorded it.
        """
        if self.running:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()

    def to_json(self) -> dict[str, object]:
        # A child that expects nothing may be older than this field.
        recalled = {"recalled": self.recalled} if self._expected else {}
        return recalled | {
            "requests": self.requests,
            "answered": self.answered,
            "running": self.running,
            "status": self.status,
            "error": self.error,
            "input_tokens": self.spent.input_tokens,
            "output_tokens": self.spent.output_tokens,
            "cost": self.spent.cost,
        }


@dataclass(eq=False, kw_only=True)
class Grant:
    """Permission of one attempt to ask models."""

    subagent: Subagent
    attempt: int
    token: str
    routes: Mapping[str, Provider]
    traffic: Traffic
    policy: RequestPolicy
    stop: Callable[[], None]
    running: set[asyncio.Task[object]] = field(default_factory=set)
    over_budget: str = ""
    denied: set[str] = field(default_factory=set)  # called tools that were not offered
    refused: set[str] = field(default_factory=set)  # features and models with a recorded refusal
    waits_for: str = ""  # what a queued request waits for
    by_member: dict[str, MemberTraffic] = field(default_factory=dict)  # of coding agents

    def find_member_traffic(self, member: str) -> MemberTraffic:
        return self.by_member.setdefault(member, MemberTraffic())

    def is_held_to_tools(self, member: str) -> bool:
        """Return whether its command, or this coding agent, has a list of allowed tools."""
        contract = self.subagent.contract
        if member:
            return not TOOLS.issubset(contract.permissions.allowed_tools)
        return list_native_tools(contract.command) is not None

    @property
    def owner(self) -> tuple[str, str]:
        return self.subagent.task, self.subagent.id


class BudgetUsedUp(Exception):
    """A budget is used up; the message names the limit."""


class BudgetAccounts:
    """Budget accounting: reserve an estimate before each request, settle it afterwards."""

    def __init__(self, ledger: UsageLedger) -> None:
        self._ledger = ledger
        self._in_flight: dict[tuple[str, str], Spending] = {}
        self._change: asyncio.Future[None] | None = None

    def get_remaining_budget(self, subagent: Subagent) -> Budget:
        if not subagent.contract.budget.limited:
            return Budget()
        return self._load_account(subagent).left

    async def reserve(self, grant: Grant, estimate: Spending) -> None:
        """Reserve the estimate; wait while other requests hold what it needs.

        Raises:
            BudgetUsedUp: the budget cannot cover any further request.
        """
        while grant.subagent.contract.budget.limited:
            change = self._get_change_future()
            account = self._load_account(grant.subagent)
            match account.decide(estimate):
                case Verdict.GRANTED:
                    break
                case Verdict.REFUSED:
                    raise BudgetUsedUp(account.budget.find_reached_limit(account.spent))
                case Verdict.WAIT:
                    # All waiters share the future: cancelling one must not cancel it.
                    await asyncio.shield(change)
        self._in_flight[grant.owner] = self._get_reserved(grant) + estimate

    def settle(self, grant: Grant, estimate: Spending, booking: Booking | None, entry: int) -> None:
        """Release the reservation and record what the request used."""
        left = self._get_reserved(grant).release_request(estimate)
        self._in_flight[grant.owner] = left
        if not left.turns:
            del self._in_flight[grant.owner]
        try:
            self.write_entry(booking, entry)
        finally:
            self.wake_waiters()

    def write_entry(self, booking: Booking | None, entry: int) -> int:
        """Write the booking over the entry, or delete the entry; return the entry's number.

        Raises:
            StorageFailed: the database cannot be written.
        """
        if booking is not None:
            return self._ledger.book(booking, entry)
        if entry:
            self._ledger.delete_entry(entry)
        return 0

    def wake_waiters(self) -> None:
        """Let every waiting reservation try again."""
        change = self._change
        self._change = None
        if change is not None and not change.done():
            change.set_result(None)

    def _get_change_future(self) -> asyncio.Future[None]:
        if self._change is None or self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _get_reserved(self, grant: Grant) -> Spending:
        return self._in_flight.get(grant.owner, Spending())

    def _load_account(self, subagent: Subagent) -> Account:
        account = self._ledger.load_account(subagent)
        return account.reserve(self._in_flight.get((subagent.task, subagent.id), Spending()))


class LedgerEntry:
    """Ledger row of a running request, rewritten at most every DELAY_SECONDS.

    After a crash, the row still shows what the request had used.
    """

    def __init__(self, write: Callable[[int], int]) -> None:
        self._write = write  # takes the old entry number (0: none) and returns the new one
        self._timer: asyncio.TimerHandle | None = None
        self.entry = 0

    def schedule_write(self) -> None:
        """Write the row soon, together with the changes that follow meanwhile."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(DELAY_SECONDS, self._write_now)

    def finish(self) -> int:
        """Stop writing and return the entry's number."""
        if self._timer is not None:
            self._timer.cancel()
        return self.entry

    def _write_now(self) -> None:
        self._timer = None
        # The end of the request writes again and reports a failure.
        with suppress(StorageFailed):
            self.entry = self._write(self.entry)


class AttemptTokens:
    """Tokens derived from one secret of the root.

    The next steward derives the same tokens, so running children keep their access.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / SECRET
        self._secret = b""

    def derive_token(self, subagent: Subagent, attempt: int) -> str:
        """Return the token of an attempt.

        Raises:
            StorageFailed: the secret cannot be read or written.
        """
        name = f"{subagent.task}\0{subagent.id}\0{attempt}".encode()
        return PREFIX + hmac.new(self._load_secret(), name, hashlib.sha256).hexdigest()

    def make_digest(self, text: str) -> str:
        """Return a digest that tells nothing about the text without the secret of the root.

        Raises:
            StorageFailed: the secret cannot be read or written.
        """
        return hmac.new(self._load_secret(), b"text\0" + text.encode(), hashlib.sha256).hexdigest()

    def _load_secret(self) -> bytes:
        if not self._secret:
            with storage_failures(self._path):
                # A power loss can leave an empty file; tokens of an empty secret can be forged.
                if not self._path.exists() or self._path.stat().st_size < SECRET_BYTES:
                    # Rename last: a reader finds the whole secret or none.
                    unfinished = self._path.with_name(f".{SECRET}.new")
                    unfinished.unlink(missing_ok=True)
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                    descriptor = os.open(unfinished, flags, 0o600)
                    with open(descriptor, "wb") as file:
                        file.write(secrets.token_bytes(SECRET_BYTES))
                    unfinished.rename(self._path)
                self._secret = read_plain(self._path)
        return self._secret


@dataclass(frozen=True, kw_only=True)
class EventReporter:
    """Writer of events to a task's log; failures go to the steward's log."""

    record: Callable[[TaskId, Event], object]
    complain: Callable[[str], None]

    def report(self, task: TaskId, event: Event) -> None:
        """Record the event; if that fails, say so in the steward's log."""
        try:
            self.record(task, event)
        except RetinueError as error:
            self.complain(f"{task}: {event.type} was not recorded: {error.message}")
