"""A loss is noticed in time with a lease that is longer than the interval of re-reading."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import Lab, wait_for

pytest.importorskip("nats")
from retinue.cluster.steward_link import READ_AGAIN_S

LEASE_S = 1.5 * READ_AGAIN_S
SUSPECTED_S = LEASE_S * 8 / 30
CONFIG = """\
orchestrator:
  coordination:
    subagent_min_timeout: 1
    subagent_runtime_mode: inherited
    subagent_retries_on_node_loss: 0
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, lease_s=LEASE_S)
    try:
        made.open(CONFIG)
        made.join("w1")
        yield made
    finally:
        made.close()


def test_a_loss_is_noticed_within_the_lease_and_two_seconds(lab: Lab) -> None:
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    lab.spawn("gone", "sleep 60")
    wait_for(lambda: lab.show("gone")["status"] == "running")
    lab.kill("w1")
    began = time.monotonic()
    wait_for(lambda: lab.list_nodes()["w1"]["state"] == "suspected")
    assert time.monotonic() - began < SUSPECTED_S + 2 * busy
    (row,) = lab.wait_closed("gone")
    # The record of the node is read in between, and says nothing new.
    assert time.monotonic() - began < LEASE_S + 2 * busy
    assert row["close_reason"] == "node_lost"
    assert [event["type"] for event in lab.events("node.")][-2:] == ["node.suspected", "node.lost"]
    assert len(lab.events("node.suspected")) == 1
