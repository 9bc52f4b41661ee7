"""Round limits of the spawning team and of its subagents."""

from __future__ import annotations

import pytest

from retinue.formats.config_document import build_task_section, parse_task_config


@pytest.mark.requirement("R160")
def test_round_limits_that_are_left_out_are_those_of_the_spawning_team() -> None:
    document = {
        "timeout_settings": {"initial_round_timeout_seconds": 9, "round_timeout_grace_seconds": 2},
        "orchestrator": {
            "coordination": {
                "subagent_round_timeouts": {"initial_round_timeout_seconds": 3},
            }
        },
    }
    policy = parse_task_config(build_task_section(document), where="config")
    assert policy.own_round_limits_ms == (9000, 0, 2000)
    assert policy.round_limits_ms == (3000, 0, 2000)
