"""Answers to an agent's permission questions: the contract decides, and each answer counts once."""

from __future__ import annotations

from retinue.agents.launch import SERVER, vendor_tools
from retinue.agents.link import PermissionQuestion
from retinue.agents.profiles import AgentProfile

# ACP names the kind of a tool, not always its name: what each kind needs to be granted.
_KINDS = {
    "read": ("read_file",),
    "search": ("search_files", "list_files"),
    "edit": ("write_file", "edit_file"),
    "delete": ("write_file",),
    "move": ("write_file",),
    "execute": ("run_command",),
}


class ContractPolicy:
    """Grants the tools that a contract names, or all tools if it names none.

    The agent's program enforces its list of tools itself; this class decides when it asks.
    """

    def __init__(self, profile: AgentProfile, tools: tuple[str, ...] | None) -> None:
        self._own = vendor_tools(profile, tools)
        self._tools = frozenset(tools or ())

    def grants(self, question: PermissionQuestion) -> bool:
        """Return whether the contract grants what the agent asks for."""
        if self._own is None or question.tool in self._own or _is_ours(question.tool):
            return True
        # A named tool that is not granted is refused, whatever kind it claims to be.
        needed = () if question.tool else _KINDS.get(question.kind, ())
        return bool(needed) and self._tools.issuperset(needed)


def _is_ours(tool: str) -> bool:
    """Return whether this is a tool of our server, which enforces its own list."""
    return tool.startswith((f"mcp__{SERVER}__", f"mcp_{SERVER}_", f"{SERVER}_", f"{SERVER}."))
