"""What a steward lays out of an end, whatever its disk and its user allow."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("nats")
from retinue.cluster import archive
from retinue.cluster.messages import AttemptKey
from retinue.cluster.remote_runtime import RemoteChild
from retinue.cluster.sealing import make_key
from retinue.cluster.steward_link import EndClaim, RemoteAttempt, StewardLink
from retinue.core.result import Ending, EndKind

KEY = AttemptKey(node="n", steward="s", nonce="a")


def wait_ended(agent: Path, files: bytes) -> Ending:
    """Return the end of a child whose node sent these files for the folder `agent`."""
    link = SimpleNamespace(connection=None, failpoint=lambda _: None)

    async def scene() -> Ending:
        attempt = RemoteAttempt(KEY, make_key())
        child = RemoteChild(
            cast(StewardLink, cast(Any, link)), attempt, agent / "runtime", agent / "workspace"
        )
        attempt.settle(EndClaim(head={"kind": EndKind.LOST}, files=files))
        async with asyncio.timeout(10):
            return await child.wait_ended()

    return asyncio.run(scene())


def make_files(top: Path, name: str) -> bytes:
    """Return what a node sends: a workspace and logs."""
    for part in ("workspace", "full_logs"):
        (top / name / part).mkdir(parents=True)
        (top / name / part / "made").write_text("by the child")
    return archive.pack(top, [f"{name}/workspace", f"{name}/full_logs"])


def test_files_that_cannot_be_stored_end_the_attempt(tmp_path: Path) -> None:
    files = make_files(tmp_path / "node", "one")

    (tmp_path / "agents").write_text("in the place of the folder")

    ending = wait_ended(tmp_path / "agents" / "one", files)

    assert ending.kind is EndKind.LOST
    assert "could not be stored" in ending.error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_user_with_another_group_number_gets_the_logs(tmp_path: Path) -> None:
    files = make_files(tmp_path / "node", "one")
    # Not below `tmp_path`, which other users cannot reach.
    with tempfile.TemporaryDirectory() as top:
        agent = Path(top) / "one"
        for part in ("runtime", "workspace", "full_logs"):
            (agent / part).mkdir(parents=True)
        for path in (Path(top), agent, *agent.iterdir()):
            os.chown(path, 12345, 100)
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(100)
        os.seteuid(12345)
        try:
            ending = wait_ended(agent, files)
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)

        assert "stored" not in ending.error
        assert (agent / "full_logs" / "made").read_text() == "by the child"
        assert (agent / "workspace" / "made").read_text() == "by the child"
