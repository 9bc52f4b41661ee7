"""What is overheard of a coding agent that is held to tools: its model called one it has not."""

from __future__ import annotations

import json

from retinue.domain import event as events
from retinue.domain.event import Event, shorten
from retinue.domain.restraint import own_tools
from retinue.gateway.tally import Tally
from retinue.wire.vendors.readings import offered

MOST = 16  # tools that are told of in one attempt: their names are the model's to choose
REASON = "its contract does not grant it, so its agent does not offer it"


def denials(tally: Tally) -> list[Event]:
    """An event for each tool that the answer called and the request had not offered; each is told
    once in an attempt.
    """
    grant, called = tally.call.grant, tally.meter.called if tally.meter else set()
    own = own_tools(grant.subagent.contract.command) or frozenset()
    strange = called - own - grant.denied
    if not strange or len(grant.denied) >= MOST:
        return []
    try:
        had = offered(json.loads(tally.call.body))
    except (ValueError, RecursionError):
        return []  # nobody answers such a request with a call
    new = sorted(strange - had)[: MOST - len(grant.denied)]
    grant.denied.update(new)
    subagent = grant.subagent
    return [
        Event(
            type=events.TOOL_DENIED,
            subagent=subagent.id,
            attempt=grant.attempt,
            summary=shorten(f"{subagent.id} may not use {tool}: {REASON}"),
            payload={"member": subagent.id, "tool": shorten(tool, 80), "reason": REASON},
        )
        for tool in new
    ]
