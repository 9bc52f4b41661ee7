"""Contracts as JSON text, which is stored, hashed and passed to the child."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from retinue.core.budget import Budget
from retinue.core.contract import (
    AgentProgram,
    Caller,
    Context,
    Contract,
    Delegation,
    Execution,
    Outputs,
    Parent,
    PathIdentity,
    Permissions,
    Step,
    Team,
    TeamMember,
)
from retinue.core.placement import Placement
from retinue.core.policy import Boundary, Limits
from retinue.core.tool_servers import ToolServer
from retinue.core.variables import SecretSource

# Fields that hold another dataclass, or a list of them.
_PARTS: Mapping[type, Mapping[str, type]] = {
    Contract: {
        "parent": Parent,
        "step": Step,
        "permissions": Permissions,
        "execution": Execution,
        "outputs": Outputs,
        "context": Context,
        "boundary": Boundary,
        "budget": Budget,
        "team": Team,
        "placement": Placement,
        "secrets": SecretSource,
    },
    Parent: {"caller": Caller},
    Context: {"identities": PathIdentity},
    Boundary: {"limits": Limits},
    Team: {"members": TeamMember, "delegation": Delegation},
    TeamMember: {"servers": ToolServer, "agent": AgentProgram},
}
_encode = json.JSONEncoder(default=vars, ensure_ascii=True, separators=(",", ":")).encode


def contract_to_text(contract: Contract) -> str:
    """Return the canonical text of a contract; its hash is in every event of the subagent."""
    return _encode(contract)


def contract_from_text(text: str) -> Contract:
    contract: Contract = _make_part(Contract, json.loads(text))
    return contract


def budget_from_text(text: str | None) -> Budget:
    """Return the budget from its part of a contract's text; None means no limit."""
    made: Budget = _make_part(Budget, json.loads(text)) if text else Budget()
    return made


def hash_contract(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _make_part(kind: Any, stored: dict[str, Any]) -> Any:
    """Build one dataclass from stored data; fields that only another version knows are dropped."""
    parts = _PARTS.get(kind, {})
    fields = kind.__dataclass_fields__
    if stored.keys() - fields.keys():
        stored = {name: value for name, value in stored.items() if name in fields}
    for name, value in stored.items():
        if type(value) is dict:
            stored[name] = _make_part(parts[name], value)
        elif type(value) is list:
            stored[name] = _to_tuple(parts.get(name), value)
    if len(stored) < len(fields):
        # An earlier version stored fewer fields. The constructor adds their defaults.
        return kind(**stored)
    # The constructor of a frozen dataclass sets fields one by one, which is slow for a steward that
    # reads a thousand contracts at start. All fields are present, so skip it.
    made = object.__new__(kind)
    vars(made).update(stored)
    return made


def _to_tuple(kind: Any, stored: list[Any]) -> tuple[Any, ...]:
    if kind is not None:
        return tuple([_make_part(kind, each) for each in stored])
    return tuple([_to_tuple(None, each) if type(each) is list else each for each in stored])
