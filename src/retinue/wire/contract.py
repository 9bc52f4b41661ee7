"""Contracts as the text that is stored, hashed and handed to the child."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from retinue.domain.boundary import Boundary, Limits
from retinue.domain.budget import Budget
from retinue.domain.contract import (
    Caller,
    Context,
    Contract,
    Delegation,
    Execution,
    Outputs,
    Parent,
    Permissions,
    Step,
    Team,
    TeamMember,
)
from retinue.domain.toolserver import ToolServer

# What is more than a plain value, by the field that holds it, one or a list of them.
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
    },
    Parent: {"caller": Caller},
    Boundary: {"limits": Limits},
    Team: {"members": TeamMember, "delegation": Delegation},
    TeamMember: {"servers": ToolServer},
}
_encode = json.JSONEncoder(default=vars, ensure_ascii=True, separators=(",", ":")).encode


def contract_to_text(contract: Contract) -> str:
    """The one text of a contract; its hash is in every event of the subagent."""
    return _encode(contract)


def contract_from_text(text: str) -> Contract:
    """The contract that was stored as this text."""
    contract: Contract = _made(Contract, json.loads(text))
    return contract


def contract_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _made(kind: Any, stored: dict[str, Any]) -> Any:
    """A part of a contract; what another version knew of it beyond its fields is left out."""
    parts, fields = _PARTS.get(kind, {}), kind.__dataclass_fields__
    if stored.keys() - fields.keys():
        stored = {name: value for name, value in stored.items() if name in fields}
    for name, value in stored.items():
        if type(value) is dict:
            stored[name] = _made(parts[name], value)
        elif type(value) is list:
            stored[name] = _listed(parts.get(name), value)
    if len(stored) < len(fields):
        return kind(**stored)  # which knows the rest
    # A frozen value is set field by field; a start that reads a thousand contracts would notice.
    made = object.__new__(kind)
    vars(made).update(stored)
    return made


def _listed(kind: Any, stored: list[Any]) -> tuple[Any, ...]:
    if kind is not None:
        return tuple([_made(kind, each) for each in stored])
    return tuple([_listed(None, each) if type(each) is list else each for each in stored])
