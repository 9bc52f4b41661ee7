"""Subagents on other machines: placed, run, returned, and tried again when a node is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from mcp import StdioServerParameters
from mcp.client.client import Client

from integration.cluster.conftest import CONFIG
from support.cluster import BOUND_S, TASK, Lab, wait_for

RUNS_ITS_BRIEF = """\
agents:
  - id: runs-its-brief
    backend: {type: command, argv: [sh, -c, 'exec sh "$RETINUE_BRIEF"']}
orchestrator: {coordination: {subagent_runtime_fallback_mode: inherited}}
"""


def test_a_command_runs_on_a_node_and_its_files_come_back(lab: Lab) -> None:
    lab.spawn("one", 'mkdir d; echo made > d/file; ln -s file d/link; echo "in $PWD"')
    (row,) = lab.wait_closed("one")
    assert row["status"] == "completed"
    assert "w1/tasks" in lab.result("one")["answer"]
    assert (lab.folder("one") / "workspace/d/file").read_text() == "made\n"
    assert os.readlink(lab.folder("one") / "workspace/d/link") == "file"
    assert [each["node"] for each in row["attempts"]] == ["w1"]
    assert [event["payload"]["node"] for event in lab.events("agent.placed")] == ["w1"]
    # The node lets go of what the steward has recorded.
    wait_for(lambda: not any((lab.top / "w1/tasks").iterdir()))


def test_both_nodes_are_used_and_each_answer_is_its_own(lab: Lab) -> None:
    lab.join("w2")
    names = [f"n{number}" for number in range(12)]
    for name in names:
        lab.spawn(name, f"sleep 3; echo answer {name}", "--queue")
    rows = lab.wait_closed(*names)
    assert {row["attempts"][0]["node"] for row in rows} == {"w1", "w2"}
    assert [lab.result(name)["answer"].strip() for name in names] == [f"answer {n}" for n in names]


def test_a_label_that_no_node_has_is_refused_and_named(lab: Lab) -> None:
    done = lab.run("subagent", "spawn", TASK, "--on", "tpu", "--", "true", check=False)
    assert done.returncode == 1
    assert "no_such_node" in done.stderr and "no connected node has tpu" in done.stderr
    assert lab.json("subagent", "list", TASK) == []


def test_a_queued_one_starts_when_a_fitting_node_joins(lab: Lab) -> None:
    lab.spawn("later", "echo done", "--queue", on="tpu")
    row = lab.show("later")
    assert row["status"] == "pending" and row["waits_for"].startswith("a node with tpu")
    lab.join("w2", "--labels", "tpu")
    (row,) = lab.wait_closed("later")
    assert row["attempts"][0]["node"] == "w2"


def test_one_that_waits_for_a_node_can_be_cancelled(lab: Lab) -> None:
    lab.spawn("later", "echo done", "--queue", on="host=nowhere")
    lab.run("subagent", "cancel", TASK, "later")
    assert lab.show("later")["status"] == "cancelled"


def test_a_cancel_reaches_the_child_at_once_and_recovers_its_answer(lab: Lab) -> None:
    script = "trap 'echo partial > \"$RETINUE_ANSWER\"; exit 1' INT; echo up; "
    script += "while :; do sleep 0.05; done"
    lab.spawn("long", script)
    log = lab.folder("long") / "runtime/stdout.log"
    wait_for(lambda: log.exists() and log.read_text() == "up\n")
    began = time.monotonic()
    lab.run("subagent", "cancel", TASK, "long")
    assert time.monotonic() - began < 3
    (row,) = lab.wait_closed("long")
    assert row["status"] == "cancelled"
    assert lab.result("long")["answer"].strip() == "partial"


def test_output_is_seen_here_while_the_child_runs(lab: Lab) -> None:
    lab.spawn("chatty", "echo first; sleep 2; echo second")
    log = lab.folder("chatty") / "runtime/stdout.log"
    wait_for(lambda: log.exists() and log.read_text() == "first\n", 1.9)
    lab.wait_closed("chatty")
    assert log.read_text() == "first\nsecond\n"


def test_a_command_that_is_not_there_fails_with_the_reason(lab: Lab) -> None:
    lab.run("subagent", "spawn", TASK, "--id", "none", "--on", "gpu", "--", "/no/such/program")
    (row,) = lab.wait_closed("none")
    assert row["status"] == "failed"
    assert "no such file" in row["attempts"][0]["result"]["error"].lower()


def test_context_files_are_read_on_the_node(lab: Lab) -> None:
    given = lab.project / "given"
    given.mkdir()
    (given / "note.txt").write_text("from here\n")
    lab.run(
        *("subagent", "spawn", TASK, "--id", "reader", "--on", "gpu"),
        *("--context-path", "given", "--", "sh", "-c"),
        f'cat "$RETINUE_CONTEXT"/paths/given/note.txt || cat {given}/note.txt',
    )
    lab.wait_closed("reader")
    assert lab.result("reader")["answer"].strip() == "from here"


def test_a_restarted_node_program_goes_on_with_its_children(empty_lab: Lab) -> None:
    lab = empty_lab
    lab.lease_s = 10.0  # a restart on a busy machine takes less
    lab.open(CONFIG)
    lab.join("w1", "--labels", "gpu")
    mark = lab.marks / "begun"
    lab.spawn("long", f"echo $$ >> {mark}; sleep 3; echo survived", on="gpu")
    wait_for(lambda: lab.show("long")["status"] == "running")
    time.sleep(0.3)
    lab.kill("w1")
    lab.restart("w1", "--labels", "gpu")
    (row,) = lab.wait_closed("long")
    assert (row["status"], len(row["attempts"])) == ("completed", 1)
    assert lab.result("long")["answer"].strip() == "survived"


def test_work_of_a_lost_node_is_done_elsewhere_after_its_children_are_gone(lab: Lab) -> None:
    lab.join("w2")
    once = 'if [ "$RETINUE_ATTEMPT" = 2 ]; then date +%s.%N; exit 0; fi'
    lab.spawn("retried", f"{once}; while :; do date +%s.%N; sleep 0.05; done")
    (first,) = [event["payload"]["node"] for event in lab.events("agent.placed")][-1:]
    log = lab.folder("retried") / "runtime/stdout.log"
    wait_for(lambda: log.exists() and log.stat().st_size)
    began = time.monotonic()
    lab.kill(first)
    (row,) = lab.wait_closed("retried")
    assert time.monotonic() - began < lab.lease_s + 4
    assert row["status"] == "completed"
    nodes = [each["node"] for each in row["attempts"]]
    assert nodes[0] == first and nodes[1] != first
    # The last sign of the first attempt came before the second began.
    before = lab.folder("retried") / "runtime/attempts/1/stdout.log"
    last = float(before.read_text().split()[-1])
    assert last < float(lab.result("retried")["answer"].split()[0])
    assert lab.list_nodes()[first]["state"] == "lost"
    assert [event["payload"]["node"] for event in lab.events("node.lost")] == [first]


def test_one_whose_node_is_lost_says_for_which_one_it_waits(lab: Lab) -> None:
    lab.spawn("placed", "sleep 60", on="host=w1")
    wait_for(lambda: lab.show("placed")["status"] == "running")
    lab.kill("w1")
    row = wait_for(lambda: (row := lab.show("placed"))["status"] == "pending" and row)
    assert row["waits_for"] == "the node w1" and len(row["attempts"]) == 1
    lab.run("subagent", "cancel", TASK, "placed")
    assert lab.show("placed")["status"] == "cancelled"


def test_no_retry_is_left_closes_it_as_node_lost(empty_lab: Lab) -> None:
    empty_lab.open(
        "orchestrator: {coordination: {subagent_retries_on_node_loss: 0, "
        "subagent_runtime_fallback_mode: inherited}}"
    )
    empty_lab.join("w1")
    empty_lab.spawn("gone", "sleep 60")
    wait_for(lambda: empty_lab.show("gone")["status"] == "running")
    empty_lab.kill("w1")
    (row,) = empty_lab.wait_closed("gone")
    assert (row["status"], row["close_reason"]) == ("failed", "node_lost")


def test_a_killed_steward_leaves_remote_children_to_the_next_one(lab: Lab) -> None:
    names = [f"s{number}" for number in range(4)]
    for name in names:
        lab.spawn(name, "sleep 1.5; echo kept > file; echo done")
    lab.kill_steward()
    rows = lab.wait_closed(*names)
    assert [row["status"] for row in rows] == ["completed"] * 4
    assert [len(row["attempts"]) for row in rows] == [1] * 4
    for name in names:
        assert (lab.folder(name) / "workspace/file").read_text() == "kept\n"


def test_a_hub_that_is_down_for_less_than_the_lease_costs_nothing(lab: Lab) -> None:
    lab.spawn("through", "sleep 2; echo done")
    os.kill(lab.find_hub_process(), signal.SIGKILL)
    time.sleep(0.5)
    lab.run("hub", "start")
    (row,) = lab.wait_closed("through")
    assert (row["status"], len(row["attempts"])) == ("completed", 1)


def test_a_frozen_node_program_is_lost_and_comes_back_with_a_new_epoch(lab: Lab) -> None:
    lab.join("w2")
    lab.spawn("frozen", 'if [ "$RETINUE_ATTEMPT" = 2 ]; then echo second; exit 0; fi; sleep 60')
    wait_for(lambda: lab.show("frozen")["status"] == "running")
    first = lab.show("frozen")["attempts"][0]["node"]
    lab.nodes[first].send_signal(signal.SIGSTOP)
    (row,) = lab.wait_closed("frozen")
    assert lab.result("frozen")["answer"].strip() == "second"
    lab.nodes[first].send_signal(signal.SIGCONT)
    wait_for(lambda: lab.list_nodes()[first]["state"] == "up")
    lab.spawn("again", "echo back", on=f"host={first}")
    lab.wait_closed("again")
    assert lab.result("again")["answer"].strip() == "back"
    assert len(row["attempts"]) == 2


def test_a_drained_node_takes_no_more_work_and_leaves(lab: Lab) -> None:
    lab.join("w2")
    lab.spawn("last", "sleep 1; echo done", on="host=w1")
    lab.run("node", "drain", "w1")
    lab.spawn("next", "echo done")
    rows = lab.wait_closed("last", "next")
    assert [row["attempts"][0]["node"] for row in rows] == ["w1", "w2"]
    assert lab.nodes["w1"].wait(20) == 0
    wait_for(lambda: lab.list_nodes()["w1"]["state"] == "left")


def test_one_that_starts_while_the_hub_is_down_waits_for_it(lab: Lab) -> None:
    os.kill(lab.find_hub_process(), signal.SIGKILL)
    lab.spawn("patient", "echo done", "--queue")
    assert lab.show("patient")["status"] == "pending"
    lab.run("hub", "start")
    (row,) = lab.wait_closed("patient")
    assert (row["status"], len(row["attempts"])) == ("completed", 1)


def test_an_agent_names_the_node_of_a_task_over_mcp(lab: Lab) -> None:
    config = lab.top / "runs-its-brief.yaml"
    config.write_text(RUNS_ITS_BRIEF)

    async def scene() -> None:
        words = ["-m", "retinue", "--root", str(lab.root), "mcp", "--config", str(config)]
        server = StdioServerParameters(
            command=sys.executable, args=words, env=lab.environment(), cwd=lab.project
        )
        async with asyncio.timeout(BOUND_S), Client(server, mode="legacy") as client:
            (spawn, *_) = (await client.list_tools()).tools
            assert "on" in spawn.input_schema["properties"]["tasks"]["items"]["properties"]
            one = {"task": 'echo "in $PWD"', "subagent_id": "one", "context_paths": []}
            answer = await client.call_tool("spawn_subagents", {"tasks": [one | {"on": "gpu"}]})
            (result,) = (answer.structured_content or {})["results"]
            assert "w1/tasks" in result["answer"], result
            other = one | {"subagent_id": "other", "on": "tpu"}
            refused = await client.call_tool("spawn_subagents", {"tasks": [other]})
            error = (refused.structured_content or {})["error"]
            assert error["code"] == "no_such_node" and "leave on out" in error["hint"], error

    asyncio.run(scene())
