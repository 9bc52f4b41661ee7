"""Ports of nodes, a lost store of the hub, and work that goes on on another node."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from support.cluster import TASK, Lab, wait_for


def list_listening(pid: int) -> list[str]:
    """Return the addresses that a process listens at, as /proc/net/tcp writes them."""
    inodes = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(each).removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.append(words[1])
    return found


def test_only_the_hub_listens_at_a_port(lab: Lab) -> None:
    lab.spawn("one", "sleep 20")
    wait_for(lambda: lab.show("one")["status"] == "running")
    steward = lab.json("steward", "status")["pid"]
    assert list_listening(lab.find_hub_process())
    assert not list_listening(steward)
    assert not list_listening(lab.nodes["w1"].pid)


def test_a_deleted_store_of_the_hub_gives_no_second_result(empty_lab: Lab) -> None:
    lab = empty_lab.open("orchestrator: {coordination: {subagent_runtime_mode: inherited}}")
    lab.join("w1")
    names = [f"d{number}" for number in range(3)]
    for name in names:
        script = f"echo $RETINUE_ATTEMPT >> {lab.marks}/{name}; sleep 1; echo done"
        lab.spawn(name, script)
    os.kill(lab.find_hub_process(), signal.SIGKILL)
    shutil.rmtree(lab.top / "hub" / "store")
    lab.run("hub", "start")
    rows = lab.wait_closed(*names)
    assert [row["status"] for row in rows] == ["completed"] * len(names)
    closed = [event["agentInstance"] for event in lab.events("agent.subagent_closed")]
    assert sorted(closed) == sorted(names)
    for name in names:
        begun = (lab.marks / name).read_text().split()
        assert len(begun) == len(set(begun)), "an attempt began twice"
    assert lab.nodes["w1"].poll() is None
    lab.spawn("next", "echo flows")
    lab.wait_closed("next")
    assert lab.result("next")["answer"].strip() == "flows"


def test_a_continuation_goes_on_elsewhere_with_the_same_files(lab: Lab) -> None:
    lab.spawn("first", "cat file || echo nothing yet; echo kept > file", on="gpu")
    lab.wait_closed("first")
    assert lab.result("first")["answer"].strip() == "nothing yet"
    lab.run("node", "drain", "w1")
    wait_for(lambda: lab.list_nodes()["w1"]["state"] == "left")
    # Nothing waits for a node that may never come.
    refused = lab.run("subagent", "continue", TASK, "first", "once more", "--wait", check=False)
    assert refused.returncode == 1 and "no_such_node" in refused.stderr
    assert len(lab.json("subagent", "list", TASK)) == 1
    lab.join("w2", "--labels", "gpu")
    lab.run("subagent", "continue", TASK, "first", "once more", "--wait")
    *_, successor = [event["agentInstance"] for event in lab.events("agent.subagent_closed")]
    assert successor != "first"
    assert lab.result(successor)["answer"].strip() == "kept"
    assert lab.show(successor)["attempts"][0]["node"] == "w2"
