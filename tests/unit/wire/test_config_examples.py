"""The example for constrained environments is accepted as written, too."""

from __future__ import annotations

from retinue.wire.config import parse_config
from retinue.wire.yaml import load_yaml

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
