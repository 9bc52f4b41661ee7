"""What a runtime is told to start."""

from __future__ import annotations

from retinue.domain.subagent import Subagent
from retinue.ports import LaunchOrder, Prepared


def order_for(
    subagent: Subagent, prepared: Prepared, argv: tuple[str, ...], attempt: int = 1
) -> LaunchOrder:
    """The command runs in the folder that is ready for it, on the terms of the subagent."""
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
    )
