"""Profile and own tools of a coding agent, as its contract defines them.

The steward checks them at the spawn, and the team starts the agent with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.agents.profiles import AgentProfile, find_profile, make_acp_profile
from retinue.core.contract import TOOLS, AgentProgram
from retinue.core.tool_servers import BETWEEN

# Tools that the team itself offers to an agent; the agent's own program does not have them.
SERVED = frozenset({"ask", "copy_files_batch"})


def select_own_tools(allowed: Sequence[str]) -> tuple[str, ...] | None:
    """Return the granted tools that the agent's own program has to provide; None: all of them."""
    if set(allowed) >= TOOLS:
        return None
    return tuple(tool for tool in allowed if tool not in SERVED and BETWEEN not in tool)


def make_profile(agent: AgentProgram) -> AgentProfile:
    """Return the profile of an agent in a contract."""
    known = find_profile(agent.type)
    if known is not None:
        return known
    return make_acp_profile(
        name=agent.name,
        argv=("program", *agent.argv),
        wire=agent.wire,
        environment=dict(agent.environment),
        masks=agent.masks,
    )
