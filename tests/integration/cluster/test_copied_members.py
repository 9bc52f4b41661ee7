"""Copies of roots and of nodes' folders harm nobody, and a node that was rebooted starts anew."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import pytest

from support.cluster import TASK, Lab, wait_for

# Children reach the folder of marks.
INHERITED = "orchestrator: {coordination: {subagent_runtime_mode: inherited}}"


@pytest.fixture
def lab(empty_lab: Lab) -> Lab:
    empty_lab.open(INHERITED)
    empty_lab.join("w1")
    return empty_lab


def test_a_copy_of_a_root_revokes_nothing_that_the_original_runs(lab: Lab) -> None:
    lab.spawn("long", f"while [ ! -e {lab.marks}/end ]; do sleep 0.05; done; echo done")
    wait_for(lambda: lab.show("long")["status"] == "running")
    lab.calls.release()
    lab.run("steward", "stop")
    copy = lab.top / "copy"
    shutil.copytree(lab.project, copy, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    root = ("--root", str(copy / ".retinue"))
    lab.run("trust", *root)
    done = lab.run("subagent", "list", TASK, *root)
    assert "long" in done.stdout
    refused = lab.run("nodes", *root, check=False)
    assert refused.returncode == 3 and "not_connected" in refused.stderr
    lab.run("steward", "stop", *root)
    (lab.marks / "end").touch()
    (row,) = lab.wait_closed("long")
    assert (row["status"], len(row["attempts"])) == ("completed", 1)


def test_a_copy_of_a_node_serves_nothing_while_the_original_does(lab: Lab) -> None:
    lab.spawn("long", f"while [ ! -e {lab.marks}/end ]; do sleep 0.05; done; echo done")
    wait_for(lambda: lab.show("long")["status"] == "running")
    shutil.copytree(lab.top / "w1", lab.top / "copy")
    refused = lab.run("node", "start", "--root", str(lab.top / "copy"), check=False)
    assert refused.returncode == 1 and "error[node_in_use]" in refused.stderr
    (lab.marks / "end").touch()
    (row,) = lab.wait_closed("long")
    assert (row["status"], len(row["attempts"])) == ("completed", 1)
    assert lab.list_nodes()["w1"]["state"] == "up"


def test_work_of_a_node_whose_machine_was_rebooted_is_done_again(lab: Lab) -> None:
    """The book says where its children were, and that is not here: they ended with that machine."""
    script = f'if [ "$RETINUE_ATTEMPT" = 2 ]; then exit 0; fi; touch {lab.marks}/up; sleep 60'
    lab.spawn("long", f"echo done; {script}")
    wait_for((lab.marks / "up").exists)
    lab.kill("w1")
    with closing(sqlite3.connect(lab.top / "w1" / "node.db")) as book, book:
        book.execute("UPDATE lease SET place = 'before the reboot'")
    lab.restart("w1")
    (row,) = lab.wait_closed("long")
    assert row["status"] == "completed"
    first, _ = row["attempts"]
    assert first["result"]["error"] == "the node w1 was lost"
