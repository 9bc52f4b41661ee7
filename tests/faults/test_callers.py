"""Who a connection to the steward is served as: decided by the socket it came in at."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.connections import AcceptLoop
from retinue.runtime import procfs
from retinue.runtime.procfs import UNKNOWN, find_calling_child
from retinue.sockets import SO_PEERPIDFD
from support.reader import Reader
from support.roots import BOUND_S, Root, python, until
from support.scenes import Scene, needs_python

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
USER_VERBS = ("task.list", "task.create", "steward.status", "steward.stop", "doctor", "gc")

# The parent makes the socket and a short-lived process connects it: the credentials that the
# steward reads are those of a process that has ended, while the connection is still open.
CONNECTS_BY_ANOTHER = """
import json, os, socket, time
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.005)
wait_for("connect")
link = socket.socket(socket.AF_UNIX)
link.settimeout(20)
pid = os.fork()
if not pid:
    link.connect(os.environ["RETINUE_STEWARD"])
    open("connected", "w").close()
    wait_for("end")
    os._exit(0)
os.waitpid(pid, 0)
open("reaped", "w").close()
wait_for("ask")
said = b""
try:
    request = {"v": 1, "id": 1, "verb": "task.list", "params": {}}
    link.sendall(json.dumps(request).encode() + b"\\n")
    said = link.makefile("rb").readline()
except OSError:
    pass
print("answer:", said.decode())
"""


def may_choose_process_numbers() -> bool:
    try:
        LAST_PID.write_text(LAST_PID.read_text())
    except OSError:
        return False
    return True


def process_with_number(pid: int) -> subprocess.Popen[bytes]:
    """Start a process of this machine that has exactly this number."""
    end = time.monotonic() + BOUND_S
    while time.monotonic() < end:
        LAST_PID.write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "60"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    raise AssertionError(f"number {pid} was not given again")


def ask(path: Path, verb: str) -> dict[str, Any]:
    """Send one request over a socket; an empty answer is a connection that was closed."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(BOUND_S)
        link.connect(str(path))
        request = {"v": 1, "id": 1, "verb": verb, "params": {"title": "t"}}
        with suppress(BrokenPipeError):  # it was refused before it could ask, and said why
            link.sendall(json.dumps(request).encode() + b"\n")
        line = link.makefile("rb").readline()
        return dict(json.loads(line)) if line else {}


@needs_python
@pytest.mark.skipif(not may_choose_process_numbers(), reason="process numbers cannot be chosen")
def test_a_child_is_not_the_user_when_its_process_number_went_to_another(scene: Scene) -> None:
    root, task = scene.root, scene.task()
    brief = python(CONNECTS_BY_ANOTHER, subagent_id="above", max_delegation_depth=1)
    root.spawn(task, brief)
    workspace = root.folder(task, "above") / "workspace"
    first = until(lambda: Reader(root.path).attempts(task, "above")[0]["pid"])
    steward, other = root.pid, None
    os.kill(steward, signal.SIGSTOP)  # it accepts the connection only when it goes on
    try:
        (workspace / "connect").touch()
        until((workspace / "connected").exists)
        connecting = procfs.list_process_tree(first)[-1].pid
        (workspace / "end").touch()
        until((workspace / "reaped").exists)
        other = process_with_number(connecting)
        os.kill(steward, signal.SIGCONT)
        (workspace / "ask").touch()
        root.call("subagent.wait_all", task=task, timeout_seconds=BOUND_S)
        answer = root.call("subagent.result", task=task, subagent="above")["answer"]
    finally:
        os.kill(steward, signal.SIGCONT)
        if other is not None:
            other.kill()
            other.wait()
    assert answer.startswith("answer:")
    assert '"result"' not in answer, "a child was served as the user"


@pytest.mark.parametrize("verb", USER_VERBS)
def test_the_socket_of_children_serves_no_user_verb(scene: Scene, verb: str) -> None:
    answer = ask(scene.root.path / "desk" / "steward.sock", verb)
    assert answer["error"]["code"] == "unknown_caller"
    assert scene.root.call("steward.status")["running"]


def test_the_socket_of_children_is_not_the_socket_of_the_user(scene: Scene) -> None:
    own = (scene.root.path / "steward.sock").lstat()
    of_children = (scene.root.path / "desk" / "steward.sock").lstat()
    assert (own.st_dev, own.st_ino) != (of_children.st_dev, of_children.st_ino)
    assert own.st_nlink == of_children.st_nlink == 1
    assert own.st_mode & 0o077 == of_children.st_mode & 0o077 == 0


@needs_python
def test_a_child_at_the_socket_of_the_user_is_still_a_child(fresh: Root) -> None:
    """Where the boundary is inherited, nothing hides the user's socket from a child."""
    task = fresh.create_task()
    path = fresh.path / "steward.sock"
    asks = f"import os\nos.environ['RETINUE_STEWARD'] = {str(path)!r}\n"
    script = asks + CONNECTS_BY_ANOTHER.replace('wait_for("connect")', "").replace(
        'wait_for("end")', ""
    ).replace('wait_for("ask")', "")
    (ended,) = fresh.run(task, python(script))
    assert '"result"' not in ended["answer"]
    asks_itself = script.replace("pid = os.fork()\nif not pid:", "if True:").replace(
        "    os._exit(0)\nos.waitpid(pid, 0)\n", ""
    )
    (alive,) = fresh.run(task, python(asks_itself))
    assert "subagents may not call task.list" in alive["answer"]


@pytest.fixture
def accepted() -> Iterator[tuple[socket.socket, int]]:
    """A connection whose connecting process can be ended, and that process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # an abstract name that the kernel chooses
    listener.listen()
    link, (ready, tells) = socket.socket(socket.AF_UNIX), os.pipe()
    pid = os.fork()
    if not pid:
        link.connect(listener.getsockname())
        os.write(tells, b"1")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    connection, _ = listener.accept()
    try:
        yield connection, pid
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for each in (connection, link, listener):
            each.close()
        os.close(ready)
        os.close(tells)


@pytest.mark.parametrize("option", [SO_PEERPIDFD, 9999], ids=["pidfd", "kernel before 6.5"])
def test_a_caller_is_unknown_once_its_process_has_ended(
    accepted: tuple[socket.socket, int], option: int
) -> None:
    connection, pid = accepted
    assert find_calling_child(connection, [], option) is None
    assert find_calling_child(connection, [pid], option) == pid
    assert find_calling_child(connection, [os.getpid()], option) == os.getpid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: (found := procfs.stat(pid)) is not None and found.state == "Z")
    assert find_calling_child(connection, [pid], option) == UNKNOWN, "a zombie asks nothing"
    os.waitpid(pid, 0)
    assert find_calling_child(connection, [pid], option) == UNKNOWN


def test_all_waiting_callers_are_identified_before_one_is_served() -> None:
    """A connection is judged while its process is most likely alive."""
    order: list[str] = []
    everybody = asyncio.Event()

    class Served(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            order.append("served")
            if len(order) == 6:
                everybody.set()
            transport.close()

    def identify(connection: socket.socket) -> asyncio.Protocol:
        order.append("identified")
        return Served()

    async def accept_three() -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("")
        listener.listen()
        listener.setblocking(False)
        links = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for link in links:
            link.connect(listener.getsockname())
        accepting = AcceptLoop(listener, identify, batch=len(links))
        async with asyncio.timeout(BOUND_S):
            await everybody.wait()
        accepting.close()
        for link in links:
            link.close()

    asyncio.run(accept_three())
    assert order == ["identified"] * 3 + ["served"] * 3
