"""Requests to spawn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from retinue.domain.brief import Brief


def parse_briefs(items: Any) -> list[Brief]:
    """Every item as a brief.

    Raises:
        BadInput: names the first item that is wrong, and what to change.
    """
    from retinue.wire.forms import brief

    return brief.parse_briefs(items)


def brief_to_json(brief: Brief) -> dict[str, Any]:
    return {
        "task": brief.text,
        "subagent_id": brief.id,
        "argv": _listed(brief.argv),
        "subagent_type": brief.type,
        "context_paths": _listed(brief.context_paths),
        "context_files": _listed(brief.context_files),
        "timeout_seconds": brief.timeout_seconds,
        "allowed_tools": _listed(brief.tools),
        "refine": brief.refine,
        "max_retries": brief.retries,
        "retry_on_timeout": brief.retry_on_timeout,
        "close_on_completion": brief.close_on_completion,
        "integration": brief.integration,
        "max_delegation_depth": brief.delegation_depth,
        "title": brief.title,
        "success_criteria": _listed(brief.success_criteria),
        "report_path_pattern": brief.report_path_pattern,
    }


def request_sha256(briefs: Sequence[Brief]) -> str:
    """What makes two requests the same request."""
    text = json.dumps([brief_to_json(brief) for brief in briefs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _listed(words: Any) -> Any:
    """The words as a list; one text is not taken apart, but left for its reader to refuse."""
    several = isinstance(words, Sequence) and not isinstance(words, str | bytes)
    return list(words) if several else words
