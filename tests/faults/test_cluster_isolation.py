"""The attempts of the isolation suite, made by a child on a node: it is held as one here is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.test_isolation_files import ON_THE_LINK_ITSELF
from support.cluster import Lab, wait_for
from support.roots import sh
from support.scenes import ATTACKER, PYTHON, Attack, needs_python

pytest.importorskip("nats")
pytestmark = needs_python

CONFIG = """
orchestrator:
  coordination:
    subagent_default_timeout: 60
    subagent_min_timeout: 0.1
    subagent_runtime: nodes
"""
SECRET = "hunter2-of-the-node"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("isolation"), lease_s=10.0)
    try:
        made.open()
        made.join("w1", SECRET_OF_THE_NODE=SECRET)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def attack(lab: Lab) -> Attack:
    """What a child on the node could do."""
    shutil.copy(ATTACKER, lab.project / "attacker.py")
    secret = lab.top / "canary.txt"
    secret.write_text(SECRET)
    node = lab.nodes["w1"].pid
    task = lab.call("task.create", title="t", config_text=CONFIG)["task_id"]
    sibling = lab.calls.spawn(task, sh("echo mine > private.txt; sleep 60"))[0]
    theirs = lab.top / "w1" / "tasks"
    (private,) = wait_for(lambda: list(theirs.glob("*/agents/*/workspace/private.txt")))
    forbidden = {
        "the canary": secret,
        "the sibling": private.parent,
        "the sibling's file": private,
        "the node's book": lab.top / "w1" / "node.db",
        "the node's credentials": lab.top / "w1" / "cluster.json",
        "the node's lease": lab.top / "w1" / "lease",
        "the hub's keys": lab.top / "hub",
        "the steward's database": lab.root / "retinue.db",
        "the project": lab.project / "attacker.py",
        "the node's environment": Path(f"/proc/{node}/environ"),
        "our own home": Path.home(),
        "devices": Path("/sys"),
    }
    targets: dict[str, Any] = {
        "groups": ["looking", "reading", "writing", "prying", "leaving", "calling"],
        "root": str(lab.top / "w1"),
        "forbidden": {name: str(path) for name, path in forbidden.items()},
        "protected": {"the sibling": str(private.parent), "the system": "/etc/passwd"},
        "hosts": ["127.0.0.1"],
        "tcp": lab.port,
        "udp": 53,
        "unix": str(lab.root / "steward.sock"),
        "abstract": "\0nobody",
        "mounts": ["/usr", "/", "/proc"],
        "processes": {"the node": node, "the hub": lab.find_hub_process()},
    }
    if os.geteuid() == 0:
        # An ordinary user's child sees folders of its own on the way to its workspace, and may
        # rename those.
        targets["protected"]["the node's folder"] = str(lab.top / "w1")
        targets["protected"]["the node's lease"] = str(lab.top / "w1" / "lease")
    script = f'exec {PYTHON} -I -S "$RETINUE_CONTEXT/files/attacker.py" "$1"'
    brief = {
        "argv": ["sh", "-c", script, "sh", json.dumps(targets)],
        "context_paths": [],
        "context_files": ["attacker.py"],
        "max_retries": 0,
    }
    (result,) = lab.calls.run(task, brief, cwd=str(lab.project))
    lab.call("subagent.cancel", task=task, subagent=sibling, kill=True)
    assert result["status"] == "completed", result
    tries = json.loads(Path(result["workspace"], "report.json").read_text())
    return Attack(result=result, tries=tries)


def test_nothing_outside_its_own_tree_can_be_read(attack: Attack) -> None:
    worked = {name: value for name, value in attack.worked("read ").items() if value != []}
    assert not worked, worked
    assert SECRET not in json.dumps(attack.tries)


def test_it_is_another_user_without_rights(attack: Attack) -> None:
    status = attack.value("status")
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert str(os.geteuid()) not in status["Uid"].split() or os.geteuid() != 0


def test_no_process_of_the_node_can_be_touched_or_looked_into(attack: Attack) -> None:
    verbs = ("signal ", "hold ", "trace ", "read memory", "renice ", "pin ", "limit ", "stop ")
    assert not attack.worked(*verbs, "/proc/")
    assert max(int(each) for each in attack.value("processes")) < 10


def test_no_way_leads_out_of_its_namespaces(attack: Attack) -> None:
    ways = ("unshare", "clone", "enter", "chroot", "pivot", "mount", "bind", "remount", "unmount")
    others = ("make ", "open_tree", "fsopen", "bpf", "perf", "userfault", "add_key", "keyctl")
    final = ("init_module", "sethostname", "settimeofday", "swapon", "write core", "raise ")
    assert not attack.worked(*ways, *others, *final)


def test_nothing_outside_its_own_tree_can_be_changed(attack: Attack, lab: Lab) -> None:
    named = ("the node's", "the sibling", "the system")
    worked = [
        name
        for name, each in attack.tries.items()
        if each["ok"]
        and any(word in name for word in named)
        and not name.startswith(("see ", "read "))
        and not (name.endswith("by a symbolic link") and name.startswith(ON_THE_LINK_ITSELF))
    ]
    assert not worked
    assert lab.list_nodes()["w1"]["state"] == "up"


def test_neither_the_hub_nor_any_other_address_is_reached(attack: Attack) -> None:
    assert not attack.worked("tcp", "mptcp", "udp", "unix", "raw", "ping", "netlink", "packet")


def test_it_holds_nothing_but_three_streams(attack: Attack) -> None:
    assert attack.value("descriptors") == [0, 1, 2]
    assert attack.value("host name") == "retinue"
    assert not attack.worked("push input")


def test_its_environment_holds_nothing_of_the_node(attack: Attack) -> None:
    environment = attack.value("environment")
    assert not [name for name in environment if name.startswith(("RETINUE_HUB", "SECRET", "XDG_"))]
