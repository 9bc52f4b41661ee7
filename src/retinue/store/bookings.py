"""What passed to models, booked request by request."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from retinue.domain.budget import Account, Booking, Spending
from retinue.domain.lifecycle import State
from retinue.domain.recovery import TokenUsage
from retinue.domain.subagent import Subagent
from retinue.store.database import Database
from retinue.store.rows import subagent_of


class Bookings:
    """Each call is one transaction: it holds whole, or nothing happened."""

    def __init__(self, database: Database, now: Callable[[], str]) -> None:
        self._db = database
        self._now = now

    def book(self, booking: Booking, entry: int = 0) -> int:
        """The booking is on record, in place of an entry that was noted before.

        Raises:
            StorageFailed: the disk said no.
        """
        spending = booking.spending
        with self._db.transaction(durable=False):
            self._db.run(
                "put_booking",
                entry_id=entry or None,
                task_id=booking.task,
                sub_agent_id=booking.subagent,
                attempt=booking.attempt,
                ts=self._now(),
                provider=booking.provider,
                model=booking.model,
                input_tokens=spending.input_tokens,
                output_tokens=spending.output_tokens,
                cached_tokens=spending.cached_tokens,
                reasoning_tokens=spending.reasoning_tokens,
                cost=spending.cost if booking.priced else None,
                estimated=int(spending.estimated),
                status=booking.status,
            )
            (row,) = self._db.rows("last_booking")
        return entry or int(row["entry_id"])

    def strike(self, entry: int) -> None:
        """The entry of a request that came to nothing is gone.

        Raises:
            StorageFailed: the disk said no.
        """
        with self._db.transaction(durable=False):
            self._db.run("strike_booking", entry_id=entry)

    def settle(self) -> None:
        """Requests that were under way when the last holder was killed count as cut.

        Raises:
            StorageFailed: the disk said no.
        """
        with self._db.transaction(durable=False):
            self._db.run("cut_open_bookings")

    def usage(self, subagent: Subagent, attempt: int = 0) -> TokenUsage | None:
        """What one attempt took, or all of them; None when nothing passed."""
        row = self._row(subagent, attempt)
        if not row["turns"]:
            return None
        return TokenUsage(
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            estimated_cost=round(row["cost"], 10),
            cached_tokens=row["cached_tokens"] or None,
            reasoning_tokens=row["reasoning_tokens"] or None,
            estimated=bool(row["estimated"]),
            unpriced=row["priced"] < row["turns"],
        )

    def spent(self, subagent: Subagent) -> Spending:
        """What a subagent took itself, in all its attempts."""
        row = self._row(subagent, 0)
        return Spending(
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            cached_tokens=row["cached_tokens"],
            reasoning_tokens=row["reasoning_tokens"],
            cost=row["cost"],
            turns=row["turns"],
            estimated=bool(row["estimated"]),
        )

    def account(self, subagent: Subagent) -> Account:
        """Its budget with all that counts against it, but for requests that are under way."""
        spent, lent = self.spent(subagent), Spending()
        for delegate in self._delegates(subagent):
            theirs = self.account(delegate)
            if delegate.standing.state is State.CLOSED:
                spent += theirs.spent
            else:
                whole = delegate.contract.budget
                lent += whole.as_spending() if whole.limited else theirs.spent
        return Account(budget=subagent.contract.budget, spent=spent, lent=lent)

    def _delegates(self, subagent: Subagent) -> list[Subagent]:
        rows = self._db.rows("delegates_of", task_id=subagent.task, sub_agent_id=subagent.id)
        return [subagent_of(row) for row in rows]

    def _row(self, subagent: Subagent, attempt: int) -> sqlite3.Row:
        whose = {"task_id": subagent.task, "sub_agent_id": subagent.id}
        (row,) = self._db.rows("spent", **whose, attempt=attempt)
        return row
