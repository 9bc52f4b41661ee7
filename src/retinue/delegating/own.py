"""A child's subagents: they are in its own task, and whose they are the steward knows by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retinue.delegating.desk import Call


class OwnDesk:
    """Verbs about the subagents of the child that this process belongs to."""

    def __init__(self, call: Call) -> None:
        self._steward = call

    async def look(self) -> None:
        """There is no task to be looked for."""

    async def standing(self) -> None:
        """The task is not its own to be shown."""

    async def spawn(self, **params: Any) -> Any:
        return await self._steward("parent.spawn", **params)

    async def ask(self, verb: str, **params: Any) -> Any:
        return await self._steward(f"parent.{verb}", **params)

    async def rows(self, limit: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self._steward("subagent.list", limit=max(1, limit))
        return rows

    async def unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = await self._steward("parent.take", but=list(but))
        return taken

    async def take_back(self, names: Sequence[str]) -> None:
        await self._steward("parent.take_back", subagents=list(names))
