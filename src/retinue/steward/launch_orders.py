"""Launch orders for the runtime, and the kill timer of a child."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from retinue.core.subagent import Subagent
from retinue.ports import LaunchOrder, PreparedWorkspace


def make_launch_order(
    subagent: Subagent, prepared: PreparedWorkspace, argv: tuple[str, ...], attempt: int = 1
) -> LaunchOrder:
    """Return the order to run a command in a prepared workspace on the subagent's terms."""
    terms = subagent.contract.execution
    return LaunchOrder(
        task=subagent.task,
        subagent=subagent.id,
        attempt=attempt,
        argv=argv,
        environment=prepared.environment,
        workspace=prepared.workspace,
        runtime_folder=prepared.runtime_folder,
        timeout_ms=terms.attempt_timeout_ms,
        graces_ms=terms.cancel_grace_ms,
        output_limit_bytes=terms.output_limit_bytes,
        boundary=subagent.contract.boundary,
        writable=prepared.writable,
        readable=prepared.readable,
        lent=prepared.lent,
        hidden=prepared.hidden,
        below=prepared.below,
        contexts=prepared.contexts,
        views=prepared.views,
        identities=prepared.identities,
        owners=prepared.owners,
    )


# A child keeps its own deadline; only a frozen one runs longer than its graces plus this.
BACKSTOP_MS = 2_000


class KillTimer:
    """Timer that kills a child once, at the earliest of the armed times."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, allowed_ms: int) -> None:
        """Kill after this time plus `BACKSTOP_MS`, unless an earlier time is armed."""
        loop = asyncio.get_running_loop()
        due = loop.time() + (allowed_ms + BACKSTOP_MS) / 1000
        if self._timer is None or due < self._timer.when():
            self.cancel()
            self._timer = loop.call_at(due, self._kill)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
