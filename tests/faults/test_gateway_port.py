"""Gateway ports of children on the machine's loopback, while no steward runs."""

from __future__ import annotations

import os
import select
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.models import asking, keyed, model_task, upstream
from support.roots import until
from support.upstream import Upstream

__all__ = ["upstream"]

pytestmark = pytest.mark.timeout(60)

ASK_TWICE = """
import pathlib, time
print(os.environ["RETINUE_GATEWAY"], chat().status, flush=True)
while not pathlib.Path("go").exists(): time.sleep(0.01)
print(chat().status)
"""
TAKE = """
import errno, socket, sys
taken = socket.socket()
taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
try:
    taken.bind(("127.0.0.1", int(sys.argv[1])))
    taken.listen()
except OSError as refused:
    sys.exit(0 if refused.errno == errno.EADDRINUSE else 2)
sys.exit(1)
"""
STRANGER = 4002


def taken_by_another_user(port: int) -> bool:
    """Return whether another user could listen there; as this user if we may not be another."""
    who = {"user": STRANGER, "group": STRANGER} if os.geteuid() == 0 else {}
    done = subprocess.run(["/usr/bin/python3", "-I", "-c", TAKE, str(port)], check=False, **who)  # type: ignore[call-overload]
    assert done.returncode in (0, 1)
    return bool(done.returncode)


@pytest.mark.parametrize(
    ("mode", "network"), [("isolated", "on"), ("inherited", "models"), ("inherited", "on")]
)
def test_no_other_user_can_take_a_childs_port_while_no_steward_runs(
    tmp_path: Path, upstream: Upstream, mode: str, network: str
) -> None:
    with keyed(tmp_path / ".retinue") as root:
        task = model_task(root, upstream, mode=mode, more=f"    subagent_network: {network}")
        (name,) = root.spawn(task, asking(ASK_TWICE))
        log = root.folder(task, name) / "runtime" / "stdout.log"
        address, status = str(until(lambda: log.exists() and log.read_text())).split()
        assert status == "200"
        port = urlsplit(address).port
        assert port is not None
        steward = os.pidfd_open(root.pid)
        root.call("steward.stop")
        root.release()
        ended, _, _ = select.select([steward], [], [], 10.0)
        os.close(steward)
        assert ended
        assert not taken_by_another_user(port)
        root.call("task.list")  # which starts the next steward
        (root.folder(task, name) / "workspace" / "go").touch()
        root.call("subagent.wait_all", task=task, timeout_seconds=20)
        result = root.call("subagent.result", task=task, subagent=name)
        assert str(result["answer"]).split() == [address, "200", "200"]
        assert len(upstream.asked) == 2


def test_a_childs_port_refuses_another_childs_token(tmp_path: Path, upstream: Upstream) -> None:
    with keyed(tmp_path / ".retinue") as root:
        task = model_task(root, upstream, more="    subagent_network: on")
        waits = "print(os.environ['RETINUE_GATEWAY'], flush=True); import time; time.sleep(60)"
        root.spawn(task, asking(waits, subagent_id="other"))
        log = root.folder(task, "other") / "runtime" / "stdout.log"
        address = until(lambda: log.exists() and log.read_text().strip())
        script = f"os.environ['OPENAI_BASE_URL'] = '{address}/openai/v1'\nprint(chat().status)"
        (result,) = root.run(task, asking(script))
        assert result["answer"] == "401"
        root.call("subagent.cancel", task=task, subagent="other", kill=True)
