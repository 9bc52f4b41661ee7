"""Briefs of a spawn request as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.brief import Brief
from retinue.core.contract import WRITE


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
