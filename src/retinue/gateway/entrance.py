"""The gateway as the supervisor knows it: nothing is loaded before somebody may ask a model."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.domain import event as events
from retinue.domain.access import ModelAccess, Spent
from retinue.domain.boundary import ISOLATED
from retinue.domain.budget import Budget
from retinue.domain.errors import LaunchFailed, RetinueError
from retinue.domain.event import Event, Recorded
from retinue.domain.ids import TaskId
from retinue.domain.policy import TaskConfig
from retinue.domain.recovery import TokenUsage
from retinue.domain.staffing import ModelBackend
from retinue.domain.subagent import Subagent
from retinue.gateway.grants import Accounts, Books, Grant, Tokens
from retinue.gateway.providers import routes
from retinue.gateway.reporting import Reporting
from retinue.ports import Stop

if TYPE_CHECKING:
    from retinue.gateway.host import Host

PLACEHOLDER = "{gateway}"  # the child's first process puts the address here


class Entrance:
    """Implements `Gateway`."""

    def __init__(
        self,
        root: Path,
        books: Books,
        policy: Callable[[TaskId], TaskConfig],
        reporting: Reporting,
    ) -> None:
        self._root = root
        self._books = books
        self._policy = policy
        self._reporting = reporting
        self._tokens = Tokens(root)
        self._accounts = Accounts(books)
        self._host: Host | None = None
        self._opening = asyncio.Lock()
        self._given: dict[tuple[str, str], TaskConfig] = {}  # of attempts not yet admitted

    async def access(self, subagent: Subagent, attempt: int) -> ModelAccess:
        boundary = subagent.contract.boundary
        if boundary.network == "off":
            return ModelAccess()
        try:
            config = self._policy(subagent.task)
            backends = config.reachable if subagent.contract.team else config.backends
            if not backends:
                return ModelAccess()
            self._given[subagent.task, subagent.id] = config
            token = self._tokens.of(subagent, attempt)
            host = await self.host()
            listens = boundary.mode == ISOLATED and boundary.network == "models"
            address = PLACEHOLDER
            if not listens:
                address = f"http://127.0.0.1:{host.server.loopback()}"
        except RetinueError as error:
            raise LaunchFailed(f"no way to models: {error.message}", hint=error.hint) from error
        except (OSError, ImportError) as error:
            raise LaunchFailed(f"the gateway could not be opened: {error}") from error
        return ModelAccess(environment=variables(address, token), listens=listens)

    async def admit(
        self, subagent: Subagent, attempt: int, listener: socket.socket | None, stop: Stop
    ) -> None:
        boundary = subagent.contract.boundary
        listens = boundary.mode == ISOLATED and boundary.network == "models"
        if listens and listener is None and subagent.standing.in_attempt:
            self._reporting.tell(subagent.task, _lost(subagent, attempt))
        config = self._given.pop((subagent.task, subagent.id))
        grant = Grant(
            subagent=subagent,
            attempt=attempt,
            token=self._tokens.of(subagent, attempt),
            routes=routes(config.reachable),
            traffic=config.traffic,
            stop=stop,
        )
        (await self.host()).server.admit(grant, listener)

    async def dismiss(self, subagent: Subagent, attempt: int) -> Spent:
        grant = None
        self._given.pop((subagent.task, subagent.id), None)
        if self._host is not None:
            grant = await self._host.dismiss(self._tokens.of(subagent, attempt))
        return Spent(
            usage=self._books.usage(subagent, attempt),
            over_budget=grant.over_budget if grant else "",
        )

    async def host(self) -> Host:
        """Raises:
        OSError, ImportError: it cannot be opened.
        """
        async with self._opening:
            if self._host is None:
                module = await asyncio.to_thread(importlib.import_module, "retinue.gateway.host")
                self._host = await module.open_host(self._root, self._accounts, self._reporting)
        return self._host

    async def close(self) -> None:
        if self._host is not None:
            await self._host.close()

    async def survey(
        self, backends: Sequence[ModelBackend], environment: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """Every provider there is, and whether it can be reached from here."""
        from retinue.gateway.listing import survey

        return await survey(await self.host(), backends, environment)

    def left(self, subagent: Subagent) -> Budget:
        """What a subagent could give to its next one at most."""
        return self._accounts.left(subagent)

    def usage(self, subagent: Subagent) -> TokenUsage | None:
        """What a subagent took until now; None when nothing passed."""
        return self._books.usage(subagent, 0)

    def waits_for(self, subagent: Subagent) -> str:
        return self._host.server.waits_for(subagent.task, subagent.id) if self._host else ""

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """Somebody has come to its end: what was set aside for it may be free."""
        if any(entry.event.type == events.SUBAGENT_CLOSED for entry in recorded):
            self._accounts.look_again()


def variables(address: str, token: str) -> dict[str, str]:
    """What a child is told, so that vendors' clients work without being configured."""
    return {
        "RETINUE_GATEWAY": address,
        "RETINUE_GATEWAY_TOKEN": token,
        "OPENAI_BASE_URL": f"{address}/openai/v1",
        "OPENAI_API_KEY": token,
        "ANTHROPIC_BASE_URL": f"{address}/anthropic",
        "ANTHROPIC_API_KEY": token,
        "GOOGLE_GEMINI_BASE_URL": f"{address}/gemini",
        "GEMINI_API_KEY": token,
    }


def _lost(subagent: Subagent, attempt: int) -> Event:
    return Event(
        type=events.GATEWAY_LOST,
        subagent=subagent.id,
        attempt=attempt,
        summary=f"{subagent.id} cannot reach its models any more: its steward was replaced",
        payload={"reason": "the child's first process did not hand its socket over again"},
    )
