"""Fixtures of the tests with more than one node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import Lab

pytest.importorskip("nats")


@pytest.fixture
def empty_lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def lab(empty_lab: Lab) -> Lab:
    """A hub with one node, w1, in a connected root."""
    empty_lab.open(CONFIG)
    empty_lab.join("w1", "--labels", "gpu")
    return empty_lab


CONFIG = """\
orchestrator:
  coordination:
    subagent_max_concurrent: 32
    subagent_min_timeout: 1
    subagent_runtime_fallback_mode: inherited
"""
