"""Cut links, a steward on a machine that was rebooted, and a drain that does not wait."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from integration.cluster.conftest import CONFIG
from support.cluster import TASK, Lab, wait_for

LEASE_S = 4.0
NODES = ("w1", "w2")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("faults"), LEASE_S)
    try:
        made.open(CONFIG)
        made.join("w1")
        made.join("w2")
        yield made
    finally:
        made.close()


def test_after_a_cut_late_reports_are_refused_and_orders_flow(lab: Lab) -> None:
    once = 'if [ "$RETINUE_ATTEMPT" = 2 ]; then echo second; exit 0; fi'
    beat = "while :; do date +%s.%N; sleep 0.05; done"
    lab.spawn("cut", f"{once}; {beat}")
    wait_for(lambda: lab.show("cut")["status"] == "running")
    first = lab.show("cut")["attempts"][0]["node"]
    child = f"{lab.top}/{first}/tasks"
    wait_for(lambda: lab.show("cut")["status"] == "running" and list_processes(child))
    assert list_booked(lab, first)
    lab.links[first].cut()
    began = time.monotonic()
    (row,) = lab.wait_closed("cut")
    assert time.monotonic() - began < LEASE_S + 4
    assert not list_processes(child), "the child outlived the loss of its node"
    assert row["status"] == "completed" and lab.result("cut")["answer"].strip() == "second"
    lab.links[first].mend()
    began = time.monotonic()
    # The node told an end that no one takes any more, and let go of it.
    wait_for(lambda: not list_booked(lab, first))
    lab.spawn("after", "echo flows", "--queue", on=f"host={first}")
    lab.wait_closed("after")
    print(f"orders flow {time.monotonic() - began:.1f} s after the link is mended")
    assert time.monotonic() - began < 15
    assert lab.result("after")["answer"].strip() == "flows"
    assert len(lab.show("cut")["attempts"]) == 2
    closed = [event["agentInstance"] for event in lab.events("agent.subagent_closed")]
    assert closed.count("cut") == 1


def test_a_hub_that_is_down_for_longer_costs_each_attempt_and_no_result_twice(lab: Lab) -> None:
    names = [f"longer{number}" for number in range(4)]
    once = 'if [ "$RETINUE_ATTEMPT" = 2 ]; then echo second; exit 0; fi'
    for name in names:
        lab.spawn(name, f"{once}; while :; do sleep 0.05; done", "--queue")
    for name in names:
        wait_for(lambda name=name: lab.show(name)["status"] == "running")
    wait_for(lambda: sum(len(list_processes(f"{lab.top}/{node}/tasks")) for node in NODES) >= 4)
    os.kill(lab.find_hub_process(), signal.SIGKILL)
    began = time.monotonic()
    # The children end by themselves, although neither steward nor nodes hear of each other.
    wait_for(lambda: not any(list_processes(f"{lab.top}/{node}/tasks") for node in NODES), 15)
    assert time.monotonic() - began < LEASE_S + 1
    lab.run("hub", "start")
    rows = lab.wait_closed(*names)
    assert [(row["status"], len(row["attempts"])) for row in rows] == [("completed", 2)] * 4
    assert [lab.result(name)["answer"].strip() for name in names] == ["second"] * 4
    closed = [event["agentInstance"] for event in lab.events("agent.subagent_closed")]
    assert all(closed.count(name) == 1 for name in names)


def list_booked(lab: Lab, node: str) -> list[str]:
    """The orders whose ends a node keeps."""
    with closing(sqlite3.connect(f"file:{lab.top / node / 'node.db'}?mode=ro", uri=True)) as book:
        return [key for (key,) in book.execute("SELECT key FROM orders")]


def list_processes(word: str) -> list[str]:
    """The processes whose working folder or command line names a folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(word):
                found.append(pid)
        except OSError:
            continue
    return found


def test_the_steward_s_machine_reboots_and_remote_children_are_adopted(lab: Lab) -> None:
    script = "sleep 4; echo kept > file; echo survived"
    lab.spawn("remote", f"echo begun >> begun; {script}")
    lab.spawn("local", script, on="")
    for name in ("remote", "local"):
        wait_for(lambda name=name: lab.show(name)["status"] == "running")
    lab.kill_steward()
    boot = lab.top / "boot"
    boot.write_text("11111111-2222-3333-4444-555555555555\n")
    # The next steward finds another boot id, and a clock that began anew.
    unshare = ("unshare", "-mT", "--monotonic", "90000", "--boottime", "90000", "--")
    command = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    done = subprocess.run(
        [*unshare, "sh", "-c", command, str(boot), sys.executable, "-m", "retinue", "task", "list"],
        cwd=lab.project,
        env=lab.environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    if re.match("unshare: |mount: ", done.stderr):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    remote, local = lab.wait_closed("remote", "local")
    assert (remote["status"], len(remote["attempts"])) == ("completed", 1)
    assert lab.result("remote")["answer"].strip() == "survived"
    assert (lab.folder("remote") / "workspace/file").read_text() == "kept\n"
    assert (lab.folder("remote") / "workspace/begun").read_text() == "begun\n"
    assert local["status"] == "failed", "the steward did not notice the reboot"
    lab.kill_steward()  # the next one is on this machine as it is


def test_output_is_here_soon_after_it_was_written(lab: Lab) -> None:
    """99 of 100 lines within 100 ms on a quiet machine; a busy one is given more."""
    lab.spawn("lines", "for n in $(seq 100); do date +%s.%N; sleep 0.02; done; sleep 1")
    log = lab.folder("lines") / "runtime/stdout.log"
    delays: list[float] = []
    wait_for(log.exists)
    until = time.monotonic() + 30
    while len(delays) < 100 and time.monotonic() < until:
        lines = log.read_text().splitlines()
        delays += [time.time() - float(line) for line in lines[len(delays) :] if len(line) > 15]
        time.sleep(0.002)
    lab.wait_closed("lines")
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    assert len(delays) == 100
    assert sorted(delays)[98] < 0.1 * max(1.0, 2 * busy), sorted(delays)[-5:]


def test_a_drain_that_does_not_wait_stops_the_children_and_recovers_their_answers(
    lab: Lab,
) -> None:
    script = "trap 'exit 3' INT; echo partial > \"$RETINUE_ANSWER\"; echo up; "
    lab.spawn("stopped", script + "while :; do sleep 0.05; done", on="host=w2")
    log = lab.folder("stopped") / "runtime/stdout.log"
    wait_for(lambda: log.exists() and log.read_text() == "up\n")
    lab.run("node", "drain", "w2", "--within", "1s")
    (row,) = lab.wait_closed("stopped")
    assert lab.result("stopped")["answer"].strip() == "partial", row
    assert lab.nodes.pop("w2").wait(20) == 0
    wait_for(lambda: lab.list_nodes()["w2"]["state"] == "left")
    assert lab.run("verify", TASK).returncode == 0
