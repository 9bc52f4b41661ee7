"""Checks of durations, and the timeout of an attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import BadInput
from retinue.core.task_config import MAX_SECONDS, TaskConfig, require_duration, to_milliseconds


@pytest.mark.parametrize("value", [1, 0.001, 0.1, 90.5, MAX_SECONDS, float(MAX_SECONDS)])
def test_a_valid_duration_is_returned(value: float) -> None:
    assert require_duration(value, "timeout_seconds") == value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        0,
        0.0,
        -0.0,
        -1,
        MAX_SECONDS + 1,
        10**400,
        True,
        False,
        "90",
        "",
        b"1",
        None,
        [1],
        1j,
    ],
)
def test_an_invalid_duration_is_refused_by_name(value: object) -> None:
    with pytest.raises(BadInput) as refused:
        require_duration(value, "timeout_seconds")
    assert refused.value.code == "invalid_timeout"
    assert refused.value.message.startswith("timeout_seconds must be a number of seconds")
    assert "\n" not in refused.value.message


def test_a_hostile_text_is_not_repeated_raw() -> None:
    with pytest.raises(BadInput) as refused:
        require_duration("\x1b[2J\n" * 1000, "timeout_seconds")
    assert refused.value.message.isascii()
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 200


@pytest.mark.requirement("R161", "R218")
@pytest.mark.parametrize(
    ("asked", "bound"),
    [(None, 300_000), (1, 60_000), (61.5, 61_500), (600, 600_000), (86_400, 600_000)],
)
def test_a_timeout_is_clamped_to_the_configured_range(asked: float | None, bound: int) -> None:
    assert TaskConfig().clamp_timeout_ms(asked) == bound


@pytest.mark.requirement("R161")
def test_a_default_outside_the_range_is_clamped_too() -> None:
    config = TaskConfig(default_timeout_ms=900_000, min_timeout_ms=1, max_timeout_ms=120_000)
    assert config.clamp_timeout_ms(None) == 120_000


@given(st.floats(min_value=1e-9, max_value=MAX_SECONDS))
def test_every_usable_duration_gives_a_time_within_the_range(asked: float) -> None:
    config = TaskConfig(default_timeout_ms=500, min_timeout_ms=100, max_timeout_ms=1000)
    assert 100 <= config.clamp_timeout_ms(require_duration(asked, "asked")) <= 1000


def test_no_duration_becomes_zero_milliseconds() -> None:
    assert to_milliseconds(1e-9) == 1


@pytest.mark.requirement("R40", "R156", "R157", "R158", "R159")
def test_a_task_without_configuration_has_the_documented_defaults() -> None:
    config = TaskConfig()
    assert config.wait_timeout_seconds == 3600
    assert (config.default_timeout_ms, config.min_timeout_ms, config.max_timeout_ms) == (
        300_000,
        60_000,
        600_000,
    )
    assert config.max_concurrent == 3
    assert config.admission == "reject"
    assert config.graces_ms == (3000, 2000)
    assert config.output_limit_bytes == 16 * 1024 * 1024
