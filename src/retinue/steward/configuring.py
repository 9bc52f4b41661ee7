"""The configuration that a task is created with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retinue.app import App
from retinue.domain.errors import BadInput
from retinue.steward.params import Params
from retinue.wire.config import parse_config
from retinue.wire.yaml import Place, load_yaml


def configuration(app: App, params: Params) -> dict[str, Any]:
    """The configuration a task is created with: the one it is given, else the root's."""
    text = params.text("config_text", "")
    where = params.text("config_name", "configuration")
    default = app.settings.root / "config.yaml"
    if not text and default.is_file():
        text, where = default.read_text(), str(default)
    lines: dict[Place, int] = {}
    document = load_yaml(text, where=where, lines=lines) if text else {}
    if not isinstance(document, dict):
        raise BadInput(f"{where}: a configuration is a mapping", code="bad_config")
    parsed = parse_config(document, where=where, lines=lines)
    traffic = parsed.orchestrator.coordination.subagent_traffic
    if traffic.mode == "replay":
        _require_recordings(app.settings.project / traffic.folder)
    return document


def _require_recordings(folder: Path) -> None:
    """Raises:
    BadInput: what is to be replayed is not there.
    """
    if not folder.is_dir():
        raise BadInput(
            f"subagent_traffic.folder: there is no folder {str(folder)!a} to replay from",
            code="bad_config",
            hint="'mode: record' makes one, tasks/TASK/traffic of the root; a relative path is "
            "relative to the project",
        )
