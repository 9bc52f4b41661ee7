"""The hub keeps files for a while and drops the oldest when it is full: they are sent again."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing

import pytest

from integration.cluster.conftest import CONFIG
from retinue.cluster.hub_server import Hub
from retinue.cluster.hub_users import BLOBS
from support.cluster import TASK, Lab, wait_for
from support.node_plans import make_repository
from support.repositories import carry_out, plan, reasons, step


def drop_files(lab: Lab, pieces: str = ">") -> None:
    """Let the hub drop the files that it has, or some of their pieces."""

    async def work() -> None:
        connection = await Hub(lab.top / "hub").connect()
        streams = connection._client.jetstream(timeout=5)
        await streams.purge_stream(BLOBS, subject=f"blob.*.*.{pieces}" if pieces != ">" else None)
        await connection.close()

    asyncio.run(asyncio.wait_for(work(), 20))


def has_ended(lab: Lab, node: str) -> bool:
    with closing(sqlite3.connect(f"file:{lab.top / node / 'node.db'}?mode=ro", uri=True)) as book:
        (count,) = book.execute("SELECT count(*) FROM orders WHERE ended NOTNULL").fetchone()
    return bool(count)


@pytest.mark.parametrize("pieces", [">", "1"])
def test_a_context_and_a_base_are_sent_again_to_the_next_node(empty_lab: Lab, pieces: str) -> None:
    lab = empty_lab
    repository = make_repository(lab, folders=1, files=2)
    (lab.project / "large").write_bytes(os.urandom(1_200_000))
    repository.git("add", "large")
    repository.git("commit", "-qm", "a large file")
    (lab.project / "given").write_bytes(os.urandom(1_200_000))
    lab.open(CONFIG)
    for name in ("w1", "w2"):
        lab.join(name)
        on = f"host={name}"
        lab.spawn(name, 'wc -c < "$RETINUE_CONTEXT"/paths/given', "--context-path", "given", on=on)
        lab.wait_closed(name)
        assert lab.result(name)["answer"].strip() == "1200000", lab.result(name)
        make = step("make", f"wc -c < large; echo {name} > {name}", on=on)
        end = carry_out(lab.calls, plan(make))
        assert reasons(end) == {"make": "merged"}, end
        drop_files(lab, pieces)


def test_what_a_child_left_is_sent_again_when_the_steward_is_back(empty_lab: Lab) -> None:
    lab = empty_lab.open("orchestrator: {coordination: {subagent_runtime_mode: inherited}}")
    lab.join("w1")
    wait = f"while [ ! -e {lab.marks}/end ]; do sleep 0.05; done"
    lab.spawn("large", f"{wait}; head -c 1200000 /dev/urandom > file; echo done")
    wait_for(lambda: lab.show("large")["status"] == "running")
    lab.calls.release()
    lab.kill_steward()
    (lab.marks / "end").touch()
    wait_for(lambda: has_ended(lab, "w1"))
    drop_files(lab)
    (row,) = lab.wait_closed("large")
    assert row["status"] == "completed", lab.result("large")
    file = lab.folder("large") / "workspace" / "file"
    assert file.stat().st_size == 1_200_000
    assert lab.run("verify", TASK).returncode == 0
