"""Ledger of model requests, one row per request."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence

from retinue.core.budget import Account, Booking, Spending
from retinue.core.lifecycle import State
from retinue.core.result import TokenUsage
from retinue.core.subagent import Subagent
from retinue.formats.contract_json import budget_from_text
from retinue.store.database import Database


class BookingLedger:
    """The ledger; each call is one transaction."""

    def __init__(self, database: Database, now: Callable[[], str]) -> None:
        self._db = database
        self._now = now

    def book(self, booking: Booking, entry: int = 0) -> int:
        """Record a booking, replacing `entry` if given; return its entry id.

        Raises:
            StorageFailed: the disk refused.
        """
        # Not durable: an fsync for each model request would be slow, and only a power loss can
        # lose it.
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
                seconds=booking.seconds,
            )
            (row,) = self._db.fetch_rows("last_booking")
        return entry or int(row["entry_id"])

    def delete_entry(self, entry: int) -> None:
        """Delete the entry of a request that came to nothing.

        Raises:
            StorageFailed: the disk refused.
        """
        with self._db.transaction(durable=False):
            self._db.run("strike_booking", entry_id=entry)

    def settle(self) -> None:
        """Mark requests that were open when the last steward died as cut.

        Raises:
            StorageFailed: the disk refused.
        """
        with self._db.transaction(durable=False):
            self._db.run("cut_open_bookings")

    def get_usage(self, subagent: Subagent, attempt: int = 0) -> TokenUsage | None:
        """Return the usage of one attempt, or of all; None if there was no request."""
        row = self._fetch_sums(subagent, attempt)
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

    def sum_spending(self, subagent: Subagent) -> Spending:
        """Return what a subagent itself spent in all attempts."""
        return _to_spending(self._fetch_sums(subagent, 0))

    def load_account(self, subagent: Subagent) -> Account:
        """Return the budget and everything that counts against it, except open requests."""
        below: dict[str, list[sqlite3.Row]] = {}
        # One query for the whole tree, which may be large: this is called for each model request.
        for row in self._db.fetch_rows("delegations", task_id=subagent.task):
            below.setdefault(row["delegated_by"], []).append(row)
        spent, lent = _sum_claims(self.sum_spending(subagent), below.get(subagent.id, ()), below)
        return Account(budget=subagent.contract.budget, spent=spent, lent=lent)

    def _fetch_sums(self, subagent: Subagent, attempt: int) -> sqlite3.Row:
        whose = {"task_id": subagent.task, "sub_agent_id": subagent.id}
        (row,) = self._db.fetch_rows("spent", **whose, attempt=attempt)
        return row


def _sum_claims(
    own: Spending, delegates: Sequence[sqlite3.Row], below: Mapping[str, Sequence[sqlite3.Row]]
) -> tuple[Spending, Spending]:
    """Return what is spent and what is reserved, for a subagent and all below it."""
    spent = own
    lent = Spending()
    for row in delegates:
        theirs, _ = _sum_claims(_to_spending(row), below.get(row["sub_agent_id"], ()), below)
        if row["state"] == State.CLOSED:
            spent += theirs
        else:
            # An open delegate reserves its whole budget, since it may still spend it.
            whole = budget_from_text(row["budget"])
            lent += whole.as_spending() if whole.limited else theirs
    return spent, lent


def _to_spending(row: sqlite3.Row) -> Spending:
    return Spending(
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cached_tokens=row["cached_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
        cost=row["cost"],
        turns=row["turns"],
        estimated=bool(row["estimated"]),
    )
