"""The example for constrained environments is accepted as written."""

from __future__ import annotations

from retinue.formats.config_document import parse_config
from retinue.formats.yaml_document import load_yaml

FALLBACK = """\
orchestrator:
  coordination:
    subagent_runtime_mode: isolated
    subagent_runtime_fallback_mode: inherited
"""


def test_an_explicit_fallback_is_accepted_as_written() -> None:
    found = parse_config(load_yaml(FALLBACK, where="c"), where="c").orchestrator.coordination
    assert found.subagent_runtime_mode == "isolated"
    assert found.subagent_runtime_fallback_mode == "inherited"
    assert not found.enable_subagents
