"""The terms in force, from the files of a root and its project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retinue.delegating.terms import Terms
from retinue.domain.errors import BadInput
from retinue.subagent_types.loading import discover
from retinue.wire.config import parse_config
from retinue.wire.yaml import Place, load_yaml

MAX_QUEUED = 1000


def read_terms(root: Path, text: str, where: str) -> Terms:
    """What the given configuration allows, else the root's own, else the defaults.

    Whoever starts this server wants subagents, so only a configuration that says otherwise
    disables them.

    Raises:
        BadInput: the configuration is wrong; it names the key and the line.
    """
    default = root / "config.yaml"
    if not text and default.is_file():
        try:
            text, where = default.read_text(encoding="utf-8"), str(default)
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{default}: {error}", code="bad_file") from None
    lines: dict[Place, int] = {}
    document: Any = load_yaml(text, where=where, lines=lines) if text else {}
    given = parse_config(document or {}, where=where, lines=lines).orchestrator.coordination
    said = "enable_subagents" in given.model_fields_set
    catalogue = discover(root.parent)
    queued = given.subagent_admission == "queue"
    return Terms(
        enabled=given.enable_subagents if said else True,
        background=given.background_subagents.enabled,
        most=MAX_QUEUED if queued else given.subagent_max_concurrent,
        default_seconds=given.subagent_default_timeout,
        least_seconds=given.subagent_min_timeout,
        most_seconds=given.subagent_max_timeout,
        types=catalogue.active(given.subagent_types)[0],
        type_names=catalogue.narrowed(given.subagent_types).names,
    )
