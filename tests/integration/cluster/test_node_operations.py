"""Operation of nodes: checkpoints, quotas, memory, drains, upgrades, and a hub that is down."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing

import pytest

from support.cluster import TASK, Lab, wait_for

CHECKPOINTS = """\
orchestrator:
  coordination:
    subagent_min_timeout: 1
    subagent_runtime_mode: {mode}
    subagent_retries_on_node_loss: {losses}
    subagent_checkpoint_seconds: 1
"""


def open_patient(lab: Lab, config: str = "") -> None:
    """Open with a lease that a restart on a busy machine does not exceed."""
    lab.lease_s = 10.0
    lab.open(config)


def wait_for_checkpoint(lab: Lab, name: str, text: str) -> None:
    """Wait for a line that the child writes when a checkpoint must have been made."""
    log = lab.folder(name) / "runtime/stdout.log"
    wait_for(lambda: log.exists() and text in log.read_text())


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
def test_the_last_checkpoint_is_what_a_lost_node_leaves(empty_lab: Lab, mode: str) -> None:
    empty_lab.open(CHECKPOINTS.format(mode=mode, losses=0))
    empty_lab.join("w1")
    script = "mkdir d; echo early > d/file; echo begun; sleep 2.5; echo checkpointed; sleep 60"
    empty_lab.spawn("gone", script)
    wait_for_checkpoint(empty_lab, "gone", "checkpointed")
    empty_lab.kill("w1")
    (row,) = empty_lab.wait_closed("gone")
    assert (row["status"], row["close_reason"]) == ("failed", "node_lost")
    assert (empty_lab.folder("gone") / "workspace/d/file").read_text() == "early\n"
    assert "its workspace is the checkpoint of 20" in empty_lab.result("gone")["warning"]


def test_the_next_attempt_starts_from_the_checkpoint(empty_lab: Lab) -> None:
    empty_lab.open(CHECKPOINTS.format(mode="inherited", losses=1))
    empty_lab.join("w1")
    script = (
        'if [ "$RETINUE_ATTEMPT" = 2 ]; then cat file; exit 0; fi; '
        "echo from the first > file; sleep 2.5; echo checkpointed; sleep 60"
    )
    empty_lab.spawn("again", script)
    wait_for_checkpoint(empty_lab, "again", "checkpointed")
    empty_lab.join("w2")
    empty_lab.kill("w1")
    (row,) = empty_lab.wait_closed("again")
    assert [each["node"] for each in row["attempts"]] == ["w1", "w2"]
    assert empty_lab.result("again")["answer"].strip() == "from the first"


def test_checkpoints_go_on_after_the_nodes_program_was_restarted(empty_lab: Lab) -> None:
    open_patient(empty_lab, CHECKPOINTS.format(mode="inherited", losses=0))
    empty_lab.join("w1")
    mark = empty_lab.marks / "next"
    script = (
        f"echo 1 > file; sleep 1.5; echo first; while [ ! -e {mark} ]; do sleep 0.1; done; "
        "echo 2 > file; sleep 2.5; echo second; sleep 60"
    )
    empty_lab.spawn("long", script)
    wait_for_checkpoint(empty_lab, "long", "first")
    empty_lab.kill("w1")
    empty_lab.restart("w1")
    mark.touch()
    wait_for_checkpoint(empty_lab, "long", "second")
    empty_lab.kill("w1")
    empty_lab.wait_closed("long")
    assert (empty_lab.folder("long") / "workspace/file").read_text() == "2\n"


def test_without_an_interval_there_is_no_checkpoint(lab: Lab) -> None:
    lab.spawn("plain", "echo early > file; echo begun; sleep 60")
    wait_for_checkpoint(lab, "plain", "begun")
    lab.kill("w1")
    wait_for(lambda: lab.list_nodes()["w1"]["state"] == "lost")
    lab.run("subagent", "cancel", TASK, "plain")
    assert not (lab.folder("plain") / "workspace/file").exists()


def test_a_quota_leaves_slots_for_other_stewards(empty_lab: Lab) -> None:
    empty_lab.open()
    steward = empty_lab.json("cluster", "status")["steward"]
    empty_lab.join("w1", "--quota", f"{steward}=1", "--quota", "5")
    empty_lab.spawn("first", "while [ ! -e file ]; do sleep 0.05; done; echo done", "--queue")
    wait_for(lambda: empty_lab.show("first")["status"] == "running")
    empty_lab.spawn("second", "echo done", "--queue")
    wait_for(lambda: empty_lab.show("second")["waits_for"].startswith("a node"))
    assert empty_lab.list_nodes()["w1"]["quota"] == 1
    empty_lab.run("subagent", "cancel", TASK, "first")
    (row,) = empty_lab.wait_closed("second")
    assert row["status"] == "completed"


def test_the_memory_of_a_node_is_given_out_once(empty_lab: Lab) -> None:
    empty_lab.open("orchestrator: {coordination: {subagent_limits: {memory_mb: 300}}}")
    empty_lab.join("w1", "--memory", "500")
    empty_lab.spawn("first", "sleep 60", "--queue")
    wait_for(lambda: empty_lab.show("first")["status"] == "running")
    empty_lab.spawn("second", "echo done", "--queue")
    wait_for(lambda: empty_lab.show("second")["waits_for"].startswith("a node"))
    empty_lab.run("subagent", "cancel", TASK, "first")
    (row,) = empty_lab.wait_closed("second")
    assert row["status"] == "completed"
    words = ("subagent", "spawn", TASK, "--on", "x86_64", "--limit", "memory_mb=299", "--", "true")
    empty_lab.kill("w1")
    empty_lab.restart("w1", "--memory", "200")
    wait_for(lambda: empty_lab.list_nodes()["w1"]["memory_mb"] == 200)
    done = empty_lab.run(*words, check=False)
    assert done.returncode == 1 and "no_such_node" in done.stderr, done.stderr


def test_a_drain_stops_what_has_not_ended_within_its_time(lab: Lab) -> None:
    lab.join("w2")
    script = 'if [ "$RETINUE_ATTEMPT" = 2 ]; then echo second; exit 0; fi; echo up; sleep 60'
    lab.spawn("moved", script, on="host=w1")
    wait_for(lambda: lab.show("moved")["status"] == "running")
    lab.run("node", "drain", "w1", "--within", "1s")
    (row,) = lab.wait_closed("moved")
    assert lab.nodes["w1"].wait(20) == 0
    wait_for(lambda: lab.list_nodes()["w1"]["state"] == "left")
    assert row["attempts"][0]["node"] == "w1"


def test_an_upgrade_is_a_restart_and_its_children_do_not_notice(empty_lab: Lab) -> None:
    """SIGTERM ends the program alone; the next one takes the children up again."""
    open_patient(empty_lab)
    empty_lab.join("w1")
    empty_lab.spawn("long", "echo begun; sleep 3; echo survived")
    wait_for_checkpoint(empty_lab, "long", "begun")
    empty_lab.nodes["w1"].send_signal(signal.SIGTERM)
    assert empty_lab.nodes["w1"].wait(20) == 0
    empty_lab.restart("w1")
    (row,) = empty_lab.wait_closed("long")
    assert (row["status"], len(row["attempts"])) == ("completed", 1)
    assert empty_lab.result("long")["answer"].strip().endswith("survived")
    assert empty_lab.events("node.lost") == []


def test_a_node_can_be_stopped_while_its_hub_is_down(lab: Lab) -> None:
    lab.kill("w1")
    os.kill(lab.find_hub_process(), signal.SIGKILL)
    lab.restart_soon("w1", 1)
    log = lab.top / "w1.log"
    wait_for(lambda: "does not answer; trying again until it does" in log.read_text())
    program = lab.nodes.pop("w1")
    program.send_signal(signal.SIGTERM)
    assert program.wait(20) == 0
    lab.run("hub", "start")
    lab.restart("w1")
    assert lab.list_nodes()["w1"]["state"] == "up"


def test_a_new_membership_of_a_folder_ends_what_the_earlier_one_ran(empty_lab: Lab) -> None:
    lab = empty_lab
    lab.open("orchestrator: {coordination: {subagent_runtime_mode: inherited}}")
    lab.join("w1", slots=1)
    # It would leave another mark if it lived on after the next membership has begun.
    lab.spawn("earlier", f"while :; do touch {lab.marks}/alive$RETINUE_ATTEMPT; sleep 0.05; done")
    wait_for((lab.marks / "alive1").exists)
    lab.nodes["w1"].send_signal(signal.SIGTERM)
    assert lab.nodes.pop("w1").wait(20) == 0
    assert "1 child continues" in (lab.top / "w1.log").read_text()
    lab.run("node", "leave", "--root", str(lab.top / "w1"))
    lab.join("w1", slots=1)
    (lab.marks / "alive1").unlink()
    # Its only slot is free: nothing of the earlier membership is reported for ever.
    with closing(sqlite3.connect(lab.top / "w1" / "node.db")) as book:
        assert book.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    lab.run("subagent", "cancel", TASK, "earlier")
    lab.spawn("later", "echo done", "--queue")
    (row,) = lab.wait_closed("later")
    assert row["status"] == "completed"
    assert not (lab.marks / "alive1").exists()


def test_rows_of_nodes_are_marked_as_old_while_the_hub_is_down(lab: Lab) -> None:
    assert lab.list_nodes()["w1"]["current"] is True
    os.kill(lab.find_hub_process(), signal.SIGKILL)
    wait_for(lambda: lab.json("cluster", "status")["connected"] is False)
    said = lab.run("nodes")
    assert "does not answer; what is listed is what was known" in said.stderr
    (row,) = [line.split() for line in said.stdout.splitlines() if line.startswith("w1")]
    assert row[1:3] == ["up", "(old)"] or row[2] == "(old)"
    assert json.loads(lab.run("nodes", "--json").stdout)[0]["current"] is False
    lab.run("hub", "start")
    wait_for(lambda: lab.list_nodes()["w1"]["current"] is True)
    assert "(old)" not in lab.run("nodes").stdout


def test_an_expelled_node_is_gone_and_its_work_is_done_elsewhere(lab: Lab) -> None:
    lab.join("w2")
    script = 'if [ "$RETINUE_ATTEMPT" = 2 ]; then echo second; exit 0; fi; echo up; sleep 60'
    lab.spawn("moved", script, on="x86_64")
    wait_for(lambda: lab.show("moved")["status"] == "running")
    first = lab.show("moved")["attempts"][0]["node"]
    began = time.monotonic()
    lab.run("hub", "expel", first)
    (row,) = lab.wait_closed("moved")
    assert time.monotonic() - began < lab.lease_s + 8
    assert [each["node"] for each in row["attempts"]] == [first, *({"w1", "w2"} - {first})]
    assert lab.result("moved")["answer"].strip() == "second"


def test_a_later_task_sends_only_what_changed_in_the_repository(lab: Lab) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", *who, *words], cwd=lab.project, check=True)

    def run_on_node(number: int) -> None:
        plan = lab.top / f"plan{number}.yaml"
        plan.write_text(
            "goal: change\nbase: {repository: .}\nsteps:\n  - id: change\n"
            f"    command: [sh, -c, 'echo {number} > made{number}; echo done']\n"
            "    owns: ['**']\n    on: gpu\n"
        )
        done = lab.run("run", "--plan", str(plan), check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    git("init", "-q", "-b", "main")
    for number in range(20):
        (lab.project / f"f{number}").write_bytes(os.urandom(100_000))
    (lab.project / ".gitignore").write_text(".retinue/\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    run_on_node(1)
    (lab.project / "f0").write_text("changed\n")
    git("commit", "-qam", "second")
    run_on_node(2)
    packs = (lab.top / "w1" / "repositories" / "git").glob("*/objects/pack/*.pack")
    sizes = sorted((pack.stat().st_size for pack in packs), reverse=True)
    # One repository on the node; a thin pack is completed with what it is based on.
    assert len(list((lab.top / "w1" / "repositories" / "git").iterdir())) == 1
    assert sizes[0] > 1_500_000 and all(size < 100_000 for size in sizes[1:]), sizes


def test_what_a_node_cannot_send_is_named_in_the_result(lab: Lab) -> None:
    lab.spawn("odd", "mkfifo pipe; echo made > file; echo done")
    (row,) = lab.wait_closed("odd")
    assert row["status"] == "completed"
    assert "not sent by its node: 'odd/workspace/pipe'" in lab.result("odd")["warning"]
    assert (lab.folder("odd") / "workspace/file").read_text() == "made\n"
