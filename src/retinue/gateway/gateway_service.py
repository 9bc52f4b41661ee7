"""Gateway interface of the steward; loads the HTTP server on first use."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.core import events
from retinue.core.budget import AttemptSpending, Budget, ModelAccess
from retinue.core.errors import LaunchFailed, RetinueError
from retinue.core.events import Event, Recorded
from retinue.core.ids import TaskId
from retinue.core.result import TokenUsage
from retinue.core.staffing import ModelBackend, ModelServer
from retinue.core.subagent import Subagent
from retinue.core.task_config import TaskConfig
from retinue.gateway.grants import AttemptTokens, BudgetAccounts, EventReporter, UsageLedger
from retinue.gateway.providers import build_environment, list_reachable
from retinue.ports import Stop

if TYPE_CHECKING:
    from retinue.gateway.gateway_server import GatewayServer

PLACEHOLDER = "{gateway}"  # the child's init process replaces it with the address


class ModelGateway:
    """Implementation of the `Gateway` port."""

    def __init__(
        self,
        root: Path,
        ledger: UsageLedger,
        load_config: Callable[[TaskId], TaskConfig],
        reporting: EventReporter,
    ) -> None:
        self._root = root
        self._ledger = ledger
        self._load_config = load_config
        self._reporting = reporting
        self._tokens = AttemptTokens(root)
        self.make_digest = self._tokens.make_digest
        self._accounts = BudgetAccounts(ledger)
        self._server: GatewayServer | None = None
        self._opening = asyncio.Lock()
        self._configs: dict[tuple[str, str], TaskConfig] = {}  # for attempts not yet admitted

    async def grant_access(self, subagent: Subagent, attempt: int) -> ModelAccess:
        boundary = subagent.contract.boundary
        if boundary.network == "off":
            return ModelAccess()
        try:
            config = self._load_config(subagent.task)
            if not list_reachable(subagent.contract, config):
                return ModelAccess()
            self._configs[subagent.task, subagent.id] = config
            token = self._tokens.derive_token(subagent, attempt)
            await self.ensure_server()
        except RetinueError as error:
            raise LaunchFailed(f"no access to models: {error.message}", hint=error.hint) from error
        except (OSError, ImportError) as error:
            raise LaunchFailed(f"the gateway cannot be started: {error}") from error
        # The child's init process holds the port, on the machine's loopback too. If the steward
        # held it, another user could take the port when the steward stops.
        return ModelAccess(environment=build_environment(PLACEHOLDER, token), listens=True)

    async def admit(
        self, subagent: Subagent, attempt: int, listener: socket.socket | None, stop: Stop
    ) -> None:
        # A running child without a listener was adopted from an earlier steward and cannot connect.
        if listener is None and subagent.standing.in_attempt:
            self._reporting.report(subagent.task, _make_lost_event(subagent, attempt))
        server = await self.ensure_server()
        config = self._configs.pop((subagent.task, subagent.id))
        token = self._tokens.derive_token(subagent, attempt)
        server.admit(subagent, attempt, token, config, listener, stop)

    async def revoke_access(self, subagent: Subagent, attempt: int) -> AttemptSpending:
        grant = None
        self._configs.pop((subagent.task, subagent.id), None)
        if self._server is not None:
            grant = await self._server.revoke_token(self._tokens.derive_token(subagent, attempt))
        return AttemptSpending(
            usage=self._ledger.get_usage(subagent, attempt),
            over_budget=grant.over_budget if grant else "",
        )

    async def ensure_server(self) -> GatewayServer:
        """Return the running server; start it on the first call.

        Raises:
            OSError, ImportError: it cannot be started.
        """
        # Two children may launch at the same time; only one call may open the socket.
        async with self._opening:
            if self._server is None:
                # In a thread: the import takes half a second.
                module = await asyncio.to_thread(
                    importlib.import_module, "retinue.gateway.gateway_server"
                )
                self._server = await module.open_server(self._root, self._accounts, self._reporting)
        return self._server

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def probe_providers(
        self, backends: Sequence[ModelBackend], environment: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """Return one row for each known provider, with whether it can be reached."""
        from retinue.gateway.provider_status import probe_providers

        return await probe_providers(await self.ensure_server(), backends, environment)

    async def find_local_servers(self) -> list[ModelServer]:
        """Return the model servers that answer on this machine."""
        from retinue.gateway.provider_status import find_local_servers

        return await find_local_servers((await self.ensure_server()).upstream)

    def get_remaining_budget(self, subagent: Subagent) -> Budget:
        """Return the largest budget that the subagent can give to a new subagent."""
        return self._accounts.get_remaining_budget(subagent)

    def get_usage(self, subagent: Subagent) -> TokenUsage | None:
        """Return the subagent's usage so far; None if it made no request."""
        return self._ledger.get_usage(subagent, 0)

    def describe_wait(self, subagent: Subagent) -> str:
        if self._server is None:
            return ""
        return self._server.describe_wait(subagent.task, subagent.id)

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """Retry waiting reservations when a subagent closes and releases its budget."""
        # Only the server makes reservations.
        if self._server is None:
            return
        if any(entry.event.type == events.SUBAGENT_CLOSED for entry in recorded):
            self._accounts.wake_waiters()


def _make_lost_event(subagent: Subagent, attempt: int) -> Event:
    return Event(
        type=events.GATEWAY_LOST,
        subagent=subagent.id,
        attempt=attempt,
        summary=f"{subagent.id} lost its access to models when the steward was replaced",
        payload={"reason": "the child's init process did not pass its gateway socket again"},
    )
