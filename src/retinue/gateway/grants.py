"""Who may ask: one token for each attempt, and what it stands for."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from retinue.domain.budget import Account, Booking, Budget, Spending, Verdict
from retinue.domain.policy import Traffic
from retinue.domain.recovery import TokenUsage
from retinue.domain.subagent import Subagent
from retinue.files import read_plain, storage_failures
from retinue.gateway.providers import Provider

SECRET = "gateway.key"
SECRET_BYTES = 32
PREFIX = "retinue-"


class Books(Protocol):
    """Where everything that passed is written down."""

    def book(self, booking: Booking, entry: int) -> int: ...

    def strike(self, entry: int) -> None: ...

    def usage(self, subagent: Subagent, attempt: int) -> TokenUsage | None: ...

    def account(self, subagent: Subagent) -> Account: ...


@dataclass(eq=False, kw_only=True)
class Grant:
    """An attempt that may ask models, while it lasts."""

    subagent: Subagent
    attempt: int
    token: str
    routes: Mapping[str, Provider]
    traffic: Traffic
    stop: Callable[[], None]
    under_way: set[asyncio.Task[object]] = field(default_factory=set)
    over_budget: str = ""
    denied: set[str] = field(default_factory=set)  # tools that its agent refused its model
    waits_for: str = ""  # the provider that it waits for, and until when

    @property
    def owner(self) -> tuple[str, str]:
        return self.subagent.task, self.subagent.id


class BudgetUsedUp(Exception):
    """Nothing is left of a budget; the message says of which part."""


class Accounts:
    """Nobody spends what is not there: before a request goes out, its cost is set aside."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._in_flight: dict[tuple[str, str], Spending] = {}
        self._change: asyncio.Future[None] | None = None

    def left(self, subagent: Subagent) -> Budget:
        return self._account(subagent).left

    async def reserve(self, grant: Grant, estimate: Spending) -> None:
        """The estimate is set aside; it may take until others have come to their end.

        Raises:
            BudgetUsedUp: it will never be there.
        """
        while grant.subagent.contract.budget.limited:
            change = self._next_change()
            account = self._account(grant.subagent)
            match account.decide(estimate):
                case Verdict.GRANTED:
                    break
                case Verdict.REFUSED:
                    raise BudgetUsedUp(account.budget.reached_by(account.spent))
                case Verdict.WAIT:
                    await asyncio.shield(change)
        self._in_flight[grant.owner] = self._held(grant) + estimate

    def settle(self, grant: Grant, estimate: Spending, booking: Booking | None, entry: int) -> None:
        """What was set aside is free again, and what the request took is on record."""
        left = self._held(grant).without(estimate)
        self._in_flight[grant.owner] = left
        if not left.turns:
            del self._in_flight[grant.owner]
        try:
            self.note(booking, entry)
        finally:
            self.look_again()

    def note(self, booking: Booking | None, entry: int) -> int:
        """The booking is on record in place of the entry, or no entry is; its number.

        Raises:
            StorageFailed: the disk said no.
        """
        if booking is not None:
            return self._books.book(booking, entry)
        if entry:
            self._books.strike(entry)
        return 0

    def look_again(self) -> None:
        """Whoever waits for a part of a budget asks once more."""
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)

    def _next_change(self) -> asyncio.Future[None]:
        if self._change is None or self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _held(self, grant: Grant) -> Spending:
        return self._in_flight.get(grant.owner, Spending())

    def _account(self, subagent: Subagent) -> Account:
        known = self._books.account(subagent)
        return known.reserve(self._in_flight.get((subagent.task, subagent.id), Spending()))


class Tokens:
    """Derived from one secret of the root, so that the next steward knows them again."""

    def __init__(self, root: Path) -> None:
        self._path = root / SECRET
        self._secret = b""

    def of(self, subagent: Subagent, attempt: int) -> str:
        """Raises:
        StorageFailed: the secret could not be kept.
        """
        name = f"{subagent.task}\0{subagent.id}\0{attempt}".encode()
        return PREFIX + hmac.new(self._known(), name, hashlib.sha256).hexdigest()

    def _known(self) -> bytes:
        if not self._secret:
            with storage_failures(self._path):
                # An empty one, left by a loss of power, would make tokens that anybody can make.
                if not self._path.exists() or self._path.stat().st_size < SECRET_BYTES:
                    fresh = self._path.with_name(f".{SECRET}.new")
                    fresh.unlink(missing_ok=True)
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                    descriptor = os.open(fresh, flags, 0o600)
                    with open(descriptor, "wb") as file:
                        file.write(secrets.token_bytes(SECRET_BYTES))
                    fresh.rename(self._path)
                self._secret = read_plain(self._path)
        return self._secret
