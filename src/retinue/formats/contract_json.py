"""Briefs and contracts as JSON; a contract's text is stored, hashed and passed to the child."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.brief import Brief
from retinue.core.budget import Budget
from retinue.core.command_variables import SecretSource
from retinue.core.contract import (
    WRITE,
    AgentProgram,
    Caller,
    Context,
    Contract,
    Delegation,
    Execution,
    Interpreter,
    Outputs,
    Parent,
    PathIdentity,
    Permissions,
    Step,
    Team,
    TeamMember,
)
from retinue.core.placement import Placement
from retinue.core.task_config import Boundary, Limits
from retinue.core.tool_servers import ToolServer

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
        "python": Interpreter,
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


def parse_briefs(items: Any) -> list[Brief]:
    """Parse every item as a brief.

    Raises:
        BadInput: names the first invalid item and the problem.
    """
    from retinue.formats.schemas import brief_schema as brief

    return brief.parse_briefs(items)


def brief_to_json(brief: Brief) -> dict[str, Any]:
    # Left out if empty, so that a request keeps the hash that earlier versions gave it.
    added: dict[str, Any] = {"owns": _to_list(brief.owns)} if brief.owns else {}
    added |= {"agent": brief.agent} if brief.agent else {}
    added |= {"model": brief.model} if brief.model else {}
    added |= {"access": brief.access} if brief.access != WRITE else {}
    added |= {"answer_schema": dict(brief.answer_schema)} if brief.answer_schema else {}
    added |= {"turns": brief.turns} if brief.turns is not None else {}
    added |= {"on": _to_list(brief.on)} if brief.on else {}
    added |= {"env": _to_dict(brief.env)} if brief.env else {}
    added |= {"stdin": brief.stdin} if brief.stdin else {}
    added |= {"limits": _to_dict(brief.limits)} if brief.limits else {}
    added |= {"secrets": _to_list(brief.secrets)} if brief.secrets else {}
    added |= {"redact": True} if brief.redact else {}
    added |= {"python": brief.python} if brief.python else {}
    return added | {
        "task": brief.text,
        "subagent_id": brief.id,
        "argv": _to_list(brief.argv),
        "subagent_type": brief.type,
        "context_paths": _to_list(brief.context_paths),
        "context_files": _to_list(brief.context_files),
        "timeout_seconds": brief.timeout_seconds,
        "allowed_tools": _to_list(brief.tools),
        "refine": brief.refine,
        "max_retries": brief.retries,
        "retry_on_timeout": brief.retry_on_timeout,
        "close_on_completion": brief.close_on_completion,
        "integration": brief.integration,
        "max_delegation_depth": brief.delegation_depth,
        "title": brief.title,
        "success_criteria": _to_list(brief.success_criteria),
        "report_path_pattern": brief.report_path_pattern,
    }


def request_sha256(briefs: Sequence[Brief]) -> str:
    """Return the hash by which a repeated request is recognized."""
    text = json.dumps([brief_to_json(brief) for brief in briefs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _to_list(words: Any) -> Any:
    """Return a sequence as a list."""
    # A str is also a sequence. It is passed on unchanged, so that the parser refuses it.
    several = isinstance(words, Sequence) and not isinstance(words, str | bytes)
    return list(words) if several else words


def _to_dict(value: Any) -> Any:
    """Return a mapping as a dict; anything else unchanged, so that the parser refuses it."""
    return dict(value) if isinstance(value, Mapping) else value
