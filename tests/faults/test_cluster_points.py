"""The steward or a node's program is killed at each named point of an attempt on a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import TASK, Lab, wait_for

pytest.importorskip("nats")
CONFIG = """\
orchestrator:
  coordination:
    subagent_min_timeout: 1
    subagent_runtime_mode: inherited
"""
STEWARD = (
    "offered",
    "accepted",
    "before_go",
    "remote_ended",
    "workspace_moved",
    "laid_out",
)
NODE = (
    "node_swapped",
    "node_accepted",
    "node_prepared",
    "node_released",
    "node_exited",
    "node_booked_end",
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, lease_s=6.0)  # a program starts again within it, on a busy machine as well
    try:
        yield made.open(CONFIG)
    finally:
        made.close()


def judge(lab: Lab) -> None:
    """Check that the subagent ended once, no attempt began twice, and its files are here."""
    (row,) = lab.wait_closed("one")
    assert row["status"] == "completed", row
    assert lab.result("one")["answer"].strip() == "done"
    assert (lab.folder("one") / "workspace/made").read_text() == "made\n"
    begun = (lab.marks / "begun").read_text().split()
    assert len(begun) == len(set(begun)), "an attempt began twice"
    assert len(lab.events("agent.subagent_closed")) == 1
    assert lab.run("verify", TASK).returncode == 0


def spawn(lab: Lab) -> None:
    script = f"echo $RETINUE_ATTEMPT >> {lab.marks}/begun; echo made > made; echo done"
    words = ("subagent", "spawn", TASK, "--id", "one", "--key", "one", "--on", "x86_64")
    # The call may end with the steward that answers it; its key makes it the same subagent.
    lab.run(*words, "--", "sh", "-c", script, check=False)


@pytest.mark.parametrize("point", STEWARD)
def test_a_steward_that_is_killed_there_leaves_one_result(lab: Lab, point: str) -> None:
    lab.join("w1")
    lab.run("steward", "stop")
    lab.run("task", "list", RETINUE_FAILPOINT=point)
    dying = lab.json("steward", "status")["pid"]
    spawn(lab)
    wait_for(lambda: not Path(f"/proc/{dying}").exists())
    spawn(lab)
    judge(lab)


@pytest.mark.parametrize("point", NODE)
def test_a_node_that_is_killed_there_leaves_one_result(lab: Lab, point: str) -> None:
    lab.join("w1", RETINUE_NODE_FAILPOINT=point)
    spawn(lab)
    lab.nodes.pop("w1").wait(timeout=20)
    lab.restart("w1")
    judge(lab)
