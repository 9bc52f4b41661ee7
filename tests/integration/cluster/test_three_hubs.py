"""A hub of three servers goes on when one of them is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.cluster.hub_server import Hub
from support.cluster import Lab, find_free_port

LEASE_S = 20.0


@pytest.fixture
def hubs(tmp_path: Path, empty_lab: Lab) -> Iterator[list[Hub]]:
    """Three servers of one hub, with the lab's root connected to all of them."""
    ports = [find_free_port() for _ in range(3)]
    routes = ",".join(f"127.0.0.1:{find_free_port()}" for _ in range(3))
    words = ["task", "create", "--title", "T", "--id", "work"]
    (empty_lab.top / "config.yaml").write_text(
        "orchestrator: {coordination: {subagent_runtime_mode: inherited}}"
    )
    empty_lab.run(*words, "--config", str(empty_lab.top / "config.yaml"))
    made = [Hub(empty_lab.top / "hub"), Hub(tmp_path / "hub2"), Hub(tmp_path / "hub3")]
    try:
        for hub, port, route in zip(made, ports, routes.split(","), strict=True):
            if hub is not made[0]:
                hub.folder.mkdir()
                for name in ("hub.json", "cert.pem", "key.pem"):
                    shutil.copy(made[0].folder / name, hub.folder / name)
            empty_lab.run(
                *("hub", "start", "--listen", f"127.0.0.1:{port}", "--lease", str(LEASE_S)),
                *("--cluster", route, "--routes", routes),
                RETINUE_HUB=str(hub.folder),
            )
        empty_lab.lease_s = LEASE_S
        empty_lab.hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        yield made
    finally:
        for hub in made:
            hub.stop()


def test_each_server_of_three_can_be_lost_once_the_one_before_is_back(
    hubs: list[Hub], empty_lab: Lab
) -> None:
    lab = empty_lab
    invitation = lab.run("hub", "invite", "--host", lab.hosts).stdout.strip()
    lab.start_node("w1", "join", invitation, "--name", "w1", "--slots", "4")
    lab.spawn("before", "echo done")
    lab.wait_closed("before")
    for number, lost in enumerate(hubs):
        during, after = f"during-{number}", f"after-{number}"
        lab.spawn(during, "echo begun; sleep 4; echo done")
        os.kill(lost.find_process(), signal.SIGKILL)
        lab.spawn(after, "echo done", "--queue")
        rows = lab.wait_closed(during, after)
        assert [(row["status"], len(row["attempts"])) for row in rows] == [("completed", 1)] * 2
        asyncio.run(lost.start())
        assert lost.find_process()
